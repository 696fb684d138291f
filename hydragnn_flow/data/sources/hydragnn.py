"""Graphs that HydraGNN or this package has stored, with the splits they are in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.graph_sources import HydragnnSource
from hydragnn_flow.config.targets import TargetConfig
from hydragnn_flow.data.reading.graph_store import GraphStore
from hydragnn_flow.data.sources.base import Part, Record
from hydragnn_flow.data.sources.features import named
from hydragnn_flow.data.sources.files import Role, ranges
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
        self._section = section

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
        _open_current(self._path)  # which says what is wrong where there is none
        return _files(self._path)

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
            targets = self._labelled(arrays, n, origin)
            self._labels.check(targets, n, origin)
            yield graph_record(
                arrays,
                "x",
                self.node_features,
                targets,
                part.first + i,
                origin,
                [target.key or name for name, target in self._targets.items()],
            )

    def _labelled(self, arrays: Arrays, n: int, origin: str) -> dict[str, NDArray[np.float64]]:
        if self._section.output_dim is not None:
            return unpack(arrays, self._targets, self._section.output_dim, n, origin)
        known = self._store.manifest.targets
        found = {}
        for name, target in self._targets.items():
            key = target.key or name
            level = target.level or (known[key].level if key in known else None)
            found[name] = shaped(named(arrays, key, origin), level, n)
        return found

    @cached_property
    def _targets(self) -> Mapping[str, TargetConfig]:
        if self._section.targets is not None:
            return self._section.targets
        if not (known := self._store.manifest.targets):
            raise InputError(
                f"{self._path} does not say which of its keys are targets; name them in "
                "data.source.targets"
            )
        return {
            name: TargetConfig(unit=target.unit, level=target.level, extensive=target.extensive)
            for name, target in known.items()
        }

    @cached_property
    def _labels(self) -> LabelCheck:
        return LabelCheck(self._targets)

    @cached_property
    def _store(self) -> GraphStore:
        return _open_current(self._path)


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def _open_current(path: Path) -> GraphStore:
    """The store as it is on disk now.

    Raises
    ------
    InputError
        Where there is none, or it cannot be opened.
    """
    described = [(file, file.stat()) for file in _files(path)]
    return _open(path, tuple((file, said.st_size, said.st_mtime_ns) for file, said in described))


@lru_cache(maxsize=1)
def _open(path: Path, state: tuple[tuple[Path, int, int], ...]) -> GraphStore:
    """The store; kept for all tasks of this process, as opening a `.bp` means to read it through.

    ``state`` is what its files are, so that others in their place are opened anew.
    """
    return GraphStore.open(path, "random")


def unpack(
    arrays: Arrays,
    targets: Mapping[str, TargetConfig],
    dims: Sequence[int],
    n: int,
    origin: str,
) -> dict[str, NDArray[np.float64]]:
    """The targets in HydraGNN's packed ``y``, which ``y_loc`` divides.

    Raises
    ------
    InputError
        Beginning with ``origin``, where ``y`` holds more or less than ``targets`` and ``dims`` say.
    """
    y = named(arrays, "y", origin).reshape(-1)
    bounds = named(arrays, "y_loc", origin).reshape(-1).astype(np.int64)
    levels = [target.level for target in targets.values()]
    sizes = [dim * (n if level == "node" else 1) for dim, level in zip(dims, levels, strict=True)]
    if not np.array_equal(bounds, np.cumsum([0, *sizes])) or bounds[-1] != len(y):
        held = ", ".join(str(size) for size in np.diff(bounds))
        said = ", ".join(str(size) for size in sizes)
        raise InputError(
            f"{origin}: y holds parts of {held} numbers, but data.source.targets and output_dim "
            f"mean {said}; correct their order, levels or number of components"
        )
    parts = np.split(y, bounds[1:-1])
    return {
        name: shaped(part.reshape(-1, dim), level, n)
        for name, part, dim, level in zip(targets, parts, dims, levels, strict=True)
    }
