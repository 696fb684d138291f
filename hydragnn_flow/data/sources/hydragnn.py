"""Graphs that HydraGNN or this package has stored, with the splits they are in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.graph_sources import HydragnnSource, PackedTarget
from hydragnn_flow.data.reading.graph_store import GraphStore
from hydragnn_flow.data.sources.base import Part, Record, Role
from hydragnn_flow.data.sources.features import named
from hydragnn_flow.data.sources.files import ranges
from hydragnn_flow.data.sources.labels import LabelCheck, shaped
from hydragnn_flow.data.sources.pyg_keys import Arrays, graph_record, n_nodes, tensors
from hydragnn_flow.data.splits import TEST, TRAIN, VALIDATION
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError

_SPLITS: dict[Role, str] = {"train": TRAIN, "val": VALIDATION, "test": TEST}
_GRAPHS_PER_PART = 2000
_MOST_PARTS = 10_000


class StoredGraphs:
    """The graphs of a store or of a `.bp` file that HydraGNN wrote.

    Parameters
    ----------
    section
        File and targets.
    folder
        Directory the file is relative to.
    """

    def __init__(self, section: HydragnnSource, folder: Path) -> None:
        self._path = folder / section.file
        self._packed = section.targets

    @cached_property
    def units(self) -> Mapping[str, str]:
        """Name of each target -> its unit."""
        if self._packed is not None:
            return {name: target.unit for name, target in self._packed.items()}
        targets = self._store.manifest.targets
        if not targets:
            raise InputError(
                f"{self._path} does not say which of its keys are targets; name what its y holds "
                "in data.source.targets"
            )
        return {name: target.unit for name, target in targets.items()}

    @cached_property
    def node_features(self) -> Sequence[str]:
        """What the columns of ``x`` are."""
        return self._store.manifest.node_features

    @property
    def found_targets(self) -> Mapping[str, Target]:
        """The targets as the graphs read so far have them."""
        return self._labels.found

    def files(self) -> list[Path]:
        """Every file of the store."""
        assert self._store  # which says what is wrong where there is none
        return sorted(path for path in self._path.rglob("*") if path.is_file())

    def parts(self) -> list[Part]:
        """Ranges of the graphs of each split."""
        parts = [
            Part(role, str(self._path), start, stop, 0)
            for role, split in _SPLITS.items()
            if split in self._store.splits
            for start, stop in ranges(len(self._store[split]), _GRAPHS_PER_PART, _MOST_PARTS)
        ]
        if not parts or parts[0].role != "train":
            raise InputError(f"{self._path} has no graphs in {TRAIN}; name a store that has some")
        first = parts[0]
        next(self.read(Part(first.role, first.file, 0, 1, 0)))
        return parts

    def read(self, part: Part) -> Iterator[Record]:
        """The graphs of a part."""
        split = _SPLITS[part.role]
        for i in range(part.start, part.stop):
            origin = f"{part.file}: {split}: graph {i}"
            arrays = tensors(self._store[split][i])
            n = n_nodes(arrays, origin)
            targets = self._targets(arrays, n, origin)
            self._labels.check(targets, n, origin)
            yield graph_record(arrays, "x", self.node_features, targets, part.first + i, origin)

    def _targets(self, arrays: Arrays, n: int, origin: str) -> dict[str, NDArray[np.float64]]:
        if self._packed is not None:
            return unpack(arrays, self._packed, n, origin)
        described = self._store.manifest.targets
        return {
            name: shaped(named(arrays, name, origin), target.level, n)
            for name, target in described.items()
        }

    @cached_property
    def _labels(self) -> LabelCheck:
        return LabelCheck(self.units)

    @cached_property
    def _store(self) -> GraphStore:
        return GraphStore.open(self._path, "random")


def unpack(
    arrays: Mapping[str, NDArray[Any]], targets: Mapping[str, PackedTarget], n: int, origin: str
) -> dict[str, NDArray[np.float64]]:
    """The targets in HydraGNN's packed ``y``, which ``y_loc`` divides.

    Raises
    ------
    InputError
        Beginning with ``origin``, where ``y`` holds more or less than ``targets`` say.
    """
    y = named(arrays, "y", origin).reshape(-1)
    bounds = named(arrays, "y_loc", origin).reshape(-1).astype(np.int64)
    sizes = [target.dim * (n if target.level == "node" else 1) for target in targets.values()]
    if not np.array_equal(bounds, np.cumsum([0, *sizes])) or bounds[-1] != len(y):
        held = ", ".join(str(size) for size in np.diff(bounds))
        said = ", ".join(str(size) for size in sizes)
        raise InputError(
            f"{origin}: y holds parts of {held} numbers, but data.source.targets says {said}; "
            "correct the order, levels or dims"
        )
    parts = np.split(y, bounds[1:-1])
    return {
        name: shaped(part.reshape(-1, target.dim), target.level, n)
        for part, (name, target) in zip(parts, targets.items(), strict=True)
    }
