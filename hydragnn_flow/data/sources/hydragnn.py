"""Source of graphs that HydraGNN or this package has stored, with their splits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.network import NetworkConfig, VariablesOfInterest
from hydragnn_flow.config.sources import (
    SPLIT_OF_ROLE,
    TRAIN,
    Level,
    Role,
    SourceSection,
    TargetConfig,
    Targets,
    class_key,
    is_taken,
)
from hydragnn_flow.data.hydragnn_bp.packed import levels_of, places_in_y, unpack_outputs
from hydragnn_flow.data.sources.arrays import Arrays, named
from hydragnn_flow.data.sources.base import Chunk, Record
from hydragnn_flow.data.sources.file_names import FileName, no_file, ranges
from hydragnn_flow.data.sources.labels import LabelCheck, MissingLabel, check_weight, shaped
from hydragnn_flow.data.store.manifest import MANIFEST, Manifest, Target
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    from hydragnn_flow.data.reading.graph_store import GraphStore


class HydragnnSource(SourceSection):
    """Configuration section `data.source` for a store, or a `.bp` file that HydraGNN wrote.

    The splits of the file are kept.
    """

    reads = "a `.bp` that HydraGNN wrote, or a store"
    labels = "its keys, or components of its `y`"

    file: FileName
    """Path of the `.bp` or of the store's directory."""
    targets: Targets | None = None
    """Targets by name: the unit of each, and its key and level if they differ. A target that is not
    a key of the graphs is the output of that name in HydraGNN's packed `y`. By default a store has
    its own targets. Of a `.bp` with `y` all outputs are targets, without units; for potentials its
    keys `energy` and `forces` are."""
    outputs: VariablesOfInterest | None = None
    """Outputs in HydraGNN's packed `y`, in the form of `Variables_of_interest`. By default those of
    the network."""

    def for_network(self, network: NetworkConfig) -> HydragnnSource:
        """Return the section, completed by the network's outputs in HydraGNN's packed array ``y``.

        The section itself is returned if it has outputs already, and for potentials, which do not
        read ``y``.

        Raises
        ------
        ValueError
            If graphs use the name of an output for something else.
        """
        potential = network.Architecture.enable_interatomic_potential
        if potential or self.outputs is not None:
            return self
        asked = network.Variables_of_interest
        for name in asked.output_names:
            if is_taken(name):
                raise ValueError(
                    f"network: Variables_of_interest.output_names: {name!r} means something else "
                    f"in a graph; choose another name, which for an output in y may be any"
                )
        # Networks with other inputs share the store.
        inputs = VariablesOfInterest.model_fields["input_node_features"].default
        outputs = asked.model_copy(update={"input_node_features": inputs})
        return self.model_copy(update={"outputs": outputs})

    def open(self, folder: Path, seed: int) -> StoredGraphs:
        return StoredGraphs(self, folder)

    def _conflicts(self) -> Iterator[str]:
        if any(one.unit_in_file for one in (self.targets or {}).values()):
            yield "targets: graphs keep the units of their file; leave unit_in_file out"

    def check_in_place(self) -> None:
        """Accept the use of files in place; the keys of a file are only checked when it is read."""

    def check_files(self, folder: Path) -> None:
        """Raise InputError if the file does not exist in ``folder``."""
        if not (folder / self.file).exists():
            raise no_file(self.file, folder, "data.source.file")

    @property
    def roles(self) -> tuple[Role, ...]:
        """Splits for which the file must have structures: training, validation and test.

        The file may also have structures for calibration.
        """
        return ("train", "val", "test")

    @property
    def target_levels(self) -> dict[str, Level | None] | None:
        """Level (``graph`` or ``node``) of each target by name; None for an unknown level.

        None instead of a dict if the section names no targets, so that those of the file count.
        """
        if self.targets is None:
            return None
        packed = levels_of(self.outputs)
        return {name: target.level or packed.get(name) for name, target in self.targets.items()}


class StoredGraphs:
    """Reader of the graphs of a store or of a `.bp` file that HydraGNN wrote.

    Parameters
    ----------
    section
        Section of the source: file and targets.
    folder
        Directory that the file name is relative to.
    """

    def __init__(self, section: HydragnnSource, folder: Path) -> None:
        self._path = folder / section.file
        self._section = section
        self.unlabelled: list[str] = []
        """Reason, split and number of each graph that was left out for want of labels."""

    @cached_property
    def node_features(self) -> Sequence[str]:
        """Names of the node features, the columns of ``x``."""
        return self._store.manifest.node_features

    @property
    def found_targets(self) -> Mapping[str, Target]:
        """Targets (quantities to learn) by name, found in the graphs read so far."""
        return self._labels.found

    def files(self) -> list[Path]:
        """Return every file in the directory of the store or `.bp`, in order of their paths.

        A store is opened before, which raises an error if there is none. A `.bp` is not opened, as
        that would read all of it.
        """
        if not (self._path.is_dir() and self._path.suffix == ".bp"):
            _open_current(self._path)  # raises an error if there is no store
        return _files(self._path)

    def in_place(self, branch: int | None) -> Manifest:
        """Return the manifest of a store that reads these graphs in place, without a copy.

        Parameters
        ----------
        branch
            Index of the branch (output heads for one data set) of all graphs; None for the branches
            in the files, if any.

        Raises
        ------
        InputError
            If training cannot read the files in place.
        """
        from hydragnn_flow.data.hydragnn_bp.manifests import bp_manifest, in_place
        from hydragnn_flow.data.reading.graph_store import GraphStore

        if not (self._path / MANIFEST).is_file() and self._path.is_dir():
            # Its graphs are checked later, by many processes.
            described = bp_manifest(self._path, statistics=False)
            self._store = GraphStore(self._path, described, "random")
        manifest, levels = self._store.manifest, levels_of(self._section.outputs)
        packed = {
            name
            for name, target in self._targets.items()
            if self._is_packed(name, target.key or name, manifest.keys)
        }
        parts = places_in_y(self._store, levels, packed) if packed else {}
        return in_place(manifest, self._path, self._targets, parts, branch)

    def chunks(self) -> list[Chunk]:
        """Return chunks (ranges of graphs) that together cover each split.

        The first training graph is read and checked before.
        """
        chunks = [
            Chunk(role, str(self._path), start, stop, 0)
            for role, split in SPLIT_OF_ROLE.items()
            if split in self._store.splits
            for start, stop in ranges(len(self._store[split]), 2000, 10_000)
        ]
        if not chunks or chunks[0].role != "train":
            raise InputError(f"{self._path} has no graphs in {TRAIN}; name a store that has some")
        self._labels.complete(chunks, self.read)
        self.unlabelled.clear()
        return chunks

    def read(self, chunk: Chunk) -> Iterator[Record]:
        """Yield the graphs of a chunk (range in one split) with their labels, in order."""
        from hydragnn_flow.data.sources.pyg_graphs import graph_of, tensors

        split = SPLIT_OF_ROLE[chunk.role]
        labels = [target.key or name for name, target in self._targets.items()]
        for i in range(chunk.start, chunk.stop):
            origin = f"{chunk.file}: {split}: graph {i}"
            arrays = tensors(self._store[split][i])
            found = graph_of(arrays, "x", self.node_features, labels, origin)
            targets = self._labelled(arrays, len(found.atoms), origin)
            assert found.nodes is not None
            try:
                check_weight(found.nodes.keys, origin)
                targets, lacking = self._labels.check(targets, len(found.atoms), origin)
            except MissingLabel as error:
                self.unlabelled.append(str(error))
                continue
            index = chunk.first + i
            yield Record(found.atoms, targets, origin, index, nodes=found.nodes, lacking=lacking)

    def _labelled(self, arrays: Arrays, n: int, origin: str) -> dict[str, NDArray[np.float64]]:
        known = self._store.manifest.targets
        found = {}
        for name, target in self._targets.items():
            key = target.key or name
            if self._is_packed(name, key, arrays):
                assert self._section.outputs is not None
                found[name] = unpack_outputs(arrays, self._section.outputs, n, origin)[name]
                continue
            level = target.level or (known[key].level if key in known else None)
            found[name] = shaped(named(arrays, key, origin, is_label=True), level, n)
            is_named = target.classes and found[name].shape[-1] == 1
            if is_named and np.isfinite(found[name]).all():
                found[name] = self._labels.classes(
                    name, found[name], origin, "node" if found[name].ndim > 1 else "graph"
                )
        return found

    def _is_packed(self, name: str, key: str, arrays: Collection[str]) -> bool:
        """Return True if a target is an output packed in ``y``, not a key of its own.

        ``key`` is the key of the target in the file, ``arrays`` the names of the graphs' keys.
        """
        if self._section.targets is None:
            return self._outputs_are_targets
        return key not in arrays and "y" in arrays and name in levels_of(self._section.outputs)

    @cached_property
    def _outputs_are_targets(self) -> bool:
        manifest = self._store.manifest
        is_store = (self._path / MANIFEST).is_file()
        return self._section.outputs is not None and not is_store and "y" in manifest.keys

    @cached_property
    def _targets(self) -> Mapping[str, TargetConfig]:
        if self._section.targets is not None:
            self._check_classes(self._section.targets)
            return self._section.targets
        if self._outputs_are_targets:
            levels = levels_of(self._section.outputs)
            return {name: TargetConfig(unit="", level=level) for name, level in levels.items()}
        if not (known := self._store.manifest.targets):
            raise InputError(
                f"{self._path} does not say which of its keys are targets; name them in "
                "data.source.targets"
            )
        return {
            name: TargetConfig(**target.model_dump(exclude={"dim"}))
            for name, target in known.items()
        }

    def _check_classes(self, targets: Mapping[str, TargetConfig]) -> None:
        """Raise InputError if columns of a store's classes would get the names of others."""
        for name, target in targets.items():
            own = self._store.manifest.targets.get(target.key or name)
            ours, theirs = ([*map(class_key, one.classes)] if one else [] for one in (target, own))
            if ours and theirs and ours != theirs:
                raise InputError(
                    f"{self._path}: data.source.targets.{name}.classes are {', '.join(ours)}, and "
                    f"those of the store are {', '.join(theirs)}; write them in its order, or "
                    f"leave data.source.targets out"
                )

    @cached_property
    def _labels(self) -> LabelCheck:
        return LabelCheck(self._targets)

    @cached_property
    def _store(self) -> GraphStore:
        return _open_current(self._path)


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def _open_current(path: Path) -> GraphStore:
    """Return the store as it is on disk now; a StoreError is raised if it cannot be opened."""
    described = [(file, file.stat()) for file in _files(path)]
    return _open(path, tuple((file, said.st_size, said.st_mtime_ns) for file, said in described))


@lru_cache(maxsize=1)
def _open(path: Path, state: tuple[tuple[Path, int, int], ...]) -> GraphStore:
    """Return the open store, the same object for all tasks of this process.

    Opening a `.bp` reads all of it. ``state`` has path, size [bytes] and time of the last change
    [ns] of each file, so that changed files are opened again.
    """
    from hydragnn_flow.data.reading.graph_store import open_foreign

    return open_foreign(path)
