"""Graphs that HydraGNN or this package has stored, with the splits they are in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hydragnn_flow.config.sources import Level, Role, SourceSection
from hydragnn_flow.config.targets import TargetConfig, Targets
from hydragnn_flow.data.sources.base import Chunk, Record
from hydragnn_flow.data.sources.features import named
from hydragnn_flow.data.sources.file_names import FileName, no_file, ranges
from hydragnn_flow.data.sources.graph_files import with_levels
from hydragnn_flow.data.sources.labels import LabelCheck, shaped
from hydragnn_flow.data.sources.pyg_keys import Arrays, graph_record, n_nodes, tensors
from hydragnn_flow.data.splits import SPLIT_OF_ROLE, TRAIN
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    from hydragnn_flow.data.reading.graph_store import GraphStore

_GRAPHS_PER_CHUNK = 2000
_MOST_CHUNKS = 10_000


class HydragnnSource(SourceSection):
    """A `.bp` file that HydraGNN wrote, or a store, with the splits it has."""

    reads = "a `.bp` that HydraGNN wrote, or a store"
    labels = "its keys, or components of its `y`"

    file: FileName
    """The `.bp` or the store's directory."""
    targets: Targets | None = None
    """Name of each target -> its unit, and its key and level if they differ. The default is the
    targets that the file itself names; HydraGNN's files name them without units."""
    output_dim: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    """Number of components of each target, to read the targets from HydraGNN's packed `y`. Its
    order is that of `targets`."""

    @model_validator(mode="after")
    def _packing(self) -> HydragnnSource:
        if self.output_dim is None:
            return self
        targets = self.targets or {}
        if len(self.output_dim) != len(targets):
            raise ValueError("output_dim needs one entry for each of targets")
        with_levels(targets)
        return self

    def open(self, folder: Path, seed: int) -> StoredGraphs:
        return StoredGraphs(self, folder)

    def check_files(self, folder: Path) -> None:
        """Refuse a name that is no file."""
        if not (folder / self.file).exists():
            raise no_file(self.file, folder, "data.source.file")

    @property
    def roles(self) -> tuple[Role, ...]:
        """Those that every such file has; the structures for calibration may be among them."""
        return ("train", "val", "test")

    @property
    def target_levels(self) -> dict[str, Level | None] | None:
        """Level of each target; None if the file names the targets."""
        if self.targets is None:
            return None
        return {name: target.level for name, target in self.targets.items()}


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
        """Names of the columns of ``x``."""
        return self._store.manifest.node_features

    @property
    def found_targets(self) -> Mapping[str, Target]:
        """The targets as the graphs read so far have them."""
        return self._labels.found

    def files(self) -> list[Path]:
        """Every file of the store."""
        _open_current(self._path)  # which says what is wrong where there is none
        return _files(self._path)

    def chunks(self) -> list[Chunk]:
        """Ranges of the graphs of each split."""
        chunks = [
            Chunk(role, str(self._path), start, stop, 0)
            for role, split in SPLIT_OF_ROLE.items()
            if split in self._store.splits
            for start, stop in ranges(len(self._store[split]), _GRAPHS_PER_CHUNK, _MOST_CHUNKS)
        ]
        if not chunks or chunks[0].role != "train":
            raise InputError(f"{self._path} has no graphs in {TRAIN}; name a store that has some")
        first = chunks[0]
        next(self.read(Chunk(first.role, first.file, 0, 1, 0)))
        return chunks

    def read(self, chunk: Chunk) -> Iterator[Record]:
        """The graphs of a chunk."""
        split = SPLIT_OF_ROLE[chunk.role]
        for i in range(chunk.start, chunk.stop):
            origin = f"{chunk.file}: {split}: graph {i}"
            arrays = tensors(self._store[split][i])
            n = n_nodes(arrays, origin)
            targets = self._labelled(arrays, n, origin)
            self._labels.check(targets, n, origin)
            yield graph_record(
                arrays,
                "x",
                self.node_features,
                targets,
                chunk.first + i,
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
        If there is none, or it cannot be opened.
    """
    described = [(file, file.stat()) for file in _files(path)]
    return _open(path, tuple((file, said.st_size, said.st_mtime_ns) for file, said in described))


@lru_cache(maxsize=1)
def _open(path: Path, state: tuple[tuple[Path, int, int], ...]) -> GraphStore:
    """The store; kept for all tasks of this process, as opening a `.bp` means to read it through.

    ``state`` identifies its files, so that others in their place are opened anew.
    """
    from hydragnn_flow.data.reading.graph_store import GraphStore

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
            f"{origin}: y is made of {held} numbers, but data.source.targets and output_dim "
            f"mean {said}; correct their order, levels or number of components"
        )
    pieces = np.split(y, bounds[1:-1])
    return {
        name: shaped(piece.reshape(-1, dim), level, n)
        for name, piece, dim, level in zip(targets, pieces, dims, levels, strict=True)
    }
