"""Writer of a store, which appears complete or not at all, in bounded memory."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor
from torch_geometric.data import Data

from hydragnn_flow.config.sources import TRAIN
from hydragnn_flow.data.columns import Column, pack
from hydragnn_flow.data.reading.graph_store import GraphStore
from hydragnn_flow.data.store.describe import (
    USUAL_TARGETS,
    Content,
    Description,
    find_targets,
    join_contents,
    make_manifest,
)
from hydragnn_flow.data.store.integrity import alone, cannot_write, fsync_path, fsync_tree
from hydragnn_flow.data.store.manifest import Dtypes, Key, Target, save_manifest
from hydragnn_flow.data.store.shard_writer import ShardWriter, describe_keys
from hydragnn_flow.errors import InputError, StoreError

# Long enough for a disk to stream, short enough that a shuffled stream can hold many.
BLOCK_BYTES = 4 << 20


class ShardSeries:
    """Writer of consecutive shards (BP5 files of a store); each is complete before the next begins.

    As a context manager it deletes an unfinished shard after an error.

    Parameters
    ----------
    directory
        Existing directory in which shards are written.
    names
        Iterator that gives the name of each new shard.
    splits
        Names of the store's splits, in their order.
    name, dtypes, described
        Name of the data set, storage of integers (as in :func:`write_store`), and properties of the
        store that its graphs do not contain.
    labels
        Keys whose values may be NaN, as labels that are missing are.
    """

    def __init__(
        self,
        directory: Path,
        names: Iterator[str],
        splits: Sequence[str],
        *,
        name: str,
        dtypes: Dtypes,
        described: Description,
        labels: Collection[str] = (),
    ) -> None:
        self._directory, self._names, self._splits = directory, names, list(splits)
        self._name, self._dtypes, self._described = name, dtypes, described
        self._labels = labels
        self._targets: dict[str, Target] = {}
        self._open: ShardWriter | None = None
        self._done: list[Content] = []
        self._graphs: list[Data] = []
        self._where: list[str] = []
        self._bytes = 0
        self._split = ""
        self._like: dict[str, Key] | None = None

    def __enter__(self) -> ShardSeries:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Delete the unfinished shard after an error."""
        if kind is not None and self._open is not None:
            self._open.abort()

    def add(self, split: str, graph: Data, where: str) -> None:
        """Add a graph to a split of the store; ``where`` names the graph in error messages.

        Graphs are checked and written together, about 4 MB at a time.

        Raises
        ------
        InputError
            If a graph added since the last write is not finite or does not fit earlier graphs.
        StoreError
            If the shard cannot be written.
        """
        if split != self._split:
            self._flush()
            self._split = split
        self._graphs.append(graph)
        self._where.append(where)
        self._bytes += sum(
            value.nbytes for value in graph.to_dict().values() if isinstance(value, Tensor)
        )
        if self._bytes >= BLOCK_BYTES:
            self._flush()

    def append(self, split: str, columns: Mapping[str, Column]) -> None:
        """Write graphs of a split, given as columns by key, as a block of their own."""
        self._flush()
        self._append(split, columns)

    def close(self) -> Content:
        """Finish the last shard and return the content of all shards.

        At least one graph must have been added.
        """
        self._flush()
        self._finish()
        return join_contents(self._done)

    def _flush(self) -> None:
        if not self._graphs:
            return
        columns = pack(self._graphs, self._where, self._like, self._labels)
        self._graphs, self._where, self._bytes = [], [], 0
        self._append(self._split, columns)

    def _append(self, split: str, columns: Mapping[str, Column]) -> None:
        if self._like is None:
            self._like = describe_keys(columns)
            self._targets = find_targets(self._like, self._described)
        if self._open is not None and not self._open.takes(columns):
            self._finish()
        if self._open is None:
            self._open = ShardWriter(
                self._directory / next(self._names),
                name=self._name,
                dtypes=self._dtypes,
                targets=self._targets,
                node_features=self._described.node_features,
            )
        self._open.append(split, columns)

    def _finish(self) -> None:
        if self._open is not None:
            shard = self._open.close(self._splits)
            self._done.append(Content([shard], self._open.keys, self._open.statistics))
            self._open = None


def write_store(
    path: Path | str,
    splits: Mapping[str, Iterable[Data]],
    *,
    dtypes: Dtypes = "hydragnn",
    targets: Mapping[str, Target] | None = None,
    units: Mapping[str, str] | None = None,
    cutoff: float | None = None,
    max_neighbours: int | None = None,
    node_features: Sequence[str] | None = None,
) -> GraphStore:
    """Write graphs to a new store on disk, and return the store opened for reading.

    The store is built next to ``path`` under a temporary name, forced to disk and renamed, so that
    ``path`` is always complete. A process killed before leaves only the temporary directory, which
    the next writer there removes.

    Parameters
    ----------
    path
        New directory; it must not exist.
    splits
        Graphs by split; generators are consumed graph by graph, so that their graphs are never in
        memory together. All graphs have the same keys; ``trainset`` has at least one graph.
    dtypes
        ``hydragnn`` stores every number in its own type, for HydraGNN to read; ``compact`` stores
        the integers of nodes and edges in 16 or 32 bits and widens them again when read.
    targets
        Keys that are labels; by default ``energy`` and ``forces`` if the graphs have them. A label
        that is NaN is missing.
    units
        Units by key, also of the default targets; described targets have their own unit.
    cutoff, max_neighbours
        Settings with which edges were found; models and predictions need them.
    node_features
        Names of the columns of ``x``. By default they are ``feature_0``, ``feature_1``, …; the
        first is ``atomic_number`` if all its values can be atomic numbers.

    Raises
    ------
    InputError
        If graphs are not finite or do not fit each other.
    StoreError
        If ``path`` exists, is being written by another process or cannot be written, or the file
        system has no locks.
    """
    path = Path(path)
    if path.exists():
        raise StoreError(f"{path} exists; choose another name or delete it first")
    if TRAIN not in splits:
        raise no_training_graphs(path)
    for split in splits:
        if not split or "/" in split:
            raise InputError(f"{path}: {split!r} is no name for a split; use one without a slash")
    described = Description(
        targets=targets,
        units=units,
        cutoff=cutoff,
        max_neighbours=max_neighbours,
        node_features=node_features,
    )
    with alone(path, "writing") as building:
        staging = building / "store"
        try:
            shutil.rmtree(staging, ignore_errors=True)  # left by a process that was killed
            try:
                staging.mkdir()
            except OSError as error:
                raise cannot_write(path, error) from error
            with ShardSeries(
                staging,
                (f"shard-{number:05d}.bp" for number in itertools.count()),
                list(splits),
                name=path.name,
                dtypes=dtypes,
                described=described,
                labels=USUAL_TARGETS if targets is None else targets,
            ) as series:
                for split, graphs in splits.items():
                    number = -1
                    for number, graph in enumerate(graphs):
                        series.add(split, graph, f"{split}: graph {number}")
                    if number < 0 and split == TRAIN:
                        raise no_training_graphs(path)
                content = series.close()
            commit_store(staging, path, content, described, dtypes)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return GraphStore.open(path)


def commit_store(
    staging: Path, path: Path, content: Content, described: Description, dtypes: Dtypes
) -> None:
    """Write the manifest next to finished shards and give the store its final name.

    Raises
    ------
    InputError
        If a target is not among the keys of the graphs or does not match its description.
    StoreError
        If the disk cannot be written, or another writer was faster.
    """
    try:
        save_manifest(staging, make_manifest(content, described, dtypes))
        fsync_tree(staging)
        staging.rename(path)
        fsync_path(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error


def no_training_graphs(path: Path) -> InputError:
    """Return the InputError for a store without training graphs."""
    return InputError(f"{path}: {TRAIN} has no graphs; a store needs some to train on")
