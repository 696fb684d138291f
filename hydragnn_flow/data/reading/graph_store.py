"""GraphStore: material graphs on disk, opened safely and read in one of three modes."""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import get_args

from hydragnn_flow.config.data import Mode
from hydragnn_flow.data.hydragnn_bp.manifests import bp_manifest
from hydragnn_flow.data.hydragnn_bp.trial_read import trial_of_shards
from hydragnn_flow.data.reading.disk import DiskReader
from hydragnn_flow.data.reading.index import Reader, SplitIndex
from hydragnn_flow.data.reading.local_shards import identity, is_here, local_shards
from hydragnn_flow.data.reading.node_cache import NodeEntry
from hydragnn_flow.data.reading.shard_file import ShardFile
from hydragnn_flow.data.reading.shared_memory import in_shared_memory
from hydragnn_flow.data.reading.split import GraphSplit, StreamReader
from hydragnn_flow.data.store.integrity import is_payload, verify_checksum, verify_presence
from hydragnn_flow.data.store.manifest import MANIFEST, Manifest, Shard, load_manifest
from hydragnn_flow.errors import InputError, StoreError

_logger = logging.getLogger(__name__)


class GraphStore:
    """Store of material graphs on disk, divided into splits such as ``store["trainset"]``.

    Stores are opened by :meth:`open`, which reads the manifest and verifies sizes and metadata.
    Payload (the arrays of graphs) is verified when it is first read. A store is a context manager.
    Outside a ``with`` statement, memory shared with other processes is released when neither the
    store nor a split of it is referenced any more.
    """

    def __init__(
        self,
        path: str | Path,
        manifest: Manifest,
        mode: Mode = "memory",
        without: Collection[str] = (),
        scratch: str | Path | None = None,
    ) -> None:
        self.path = path = Path(path)
        self.manifest = manifest
        self.mode: Mode = mode
        self._staged: NodeEntry | None = None
        keys = {key: value for key, value in manifest.keys.items() if key not in without}
        folder = path
        # Data are used in place because they are large, larger than the disk of a node.
        scratch = None if scratch is None else Path(scratch)
        local = None if manifest.in_place else scratch
        if local is not None and (mode != "memory" or is_here(path, manifest, local)):
            try:
                self._staged = local_shards(path, manifest, local)
                folder = self._staged.path
            except StoreError as error:
                if mode != "memory":
                    raise
                _logger.warning("%s; the store is read from %s", error, path)
        shards = [ShardFile(folder / shard.path, shard) for shard in manifest.shards]
        self._shards = shards
        data = identity(path, manifest, list(keys))
        reading = partial(_open_reader, mode, data, scratch, self._staged)
        self._splits = {}
        for name in manifest.splits:
            graphs = [shard.splits[name].graphs for shard in manifest.shards]
            index = SplitIndex(name, keys, shards, graphs)
            self._splits[name] = GraphSplit(path, index, manifest.targets, mode, reading)

    @classmethod
    def open(
        cls,
        path: Path | str,
        mode: Mode = "memory",
        *,
        without: Collection[str] = (),
        scratch: Path | str | None = None,
    ) -> GraphStore:
        """Open a store directory, or a single ``.bp`` that HydraGNN wrote.

        A HydraGNN file has neither units nor checksums: its manifest is computed from its arrays,
        and another process reads the file first, since a damaged file can crash the process that
        opens it.

        Parameters
        ----------
        path
            Directory of the store.
        mode
            ``memory``: whole splits in memory, one copy for all processes of a node. ``random``:
            each graph from disk. ``stream``: from disk in blocks of about 4 MB, for splits larger
            than memory; graphs should then be read in about the order of a plan for streams
            (:func:`hydragnn_flow.training.plan.epochs.Epoch`).
        without
            Names of keys to leave out of the graphs.
        scratch
            Fast local directory. Modes ``random`` and ``stream`` read from a verified copy of the
            store there, made once per node, unless the data are used in place. Mode ``memory``
            uses the directory if ``/dev/shm`` has no room.

        Raises
        ------
        StoreError
            If a file is missing, damaged or not a store; the message names that file.
        InputError
            If ``mode`` is none of the three.
        """
        path = Path(path)
        modes = get_args(Mode)
        if mode not in modes:
            raise InputError(f"{path}: mode {mode!r} is not one of {', '.join(modes)}; give one")
        if not path.exists():
            raise StoreError(f"{path} does not exist; prepare the store or correct the path")
        if not (path / MANIFEST).exists() and path.suffix == ".bp":
            manifest = bp_manifest(path)
        else:
            manifest = load_manifest(path)
            for shard in manifest.shards:
                _verify_metadata(path / shard.path, shard)
        return cls(path, manifest, mode, without, None if scratch is None else Path(scratch))

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the store's splits, such as ``trainset``."""
        return tuple(self._splits)

    def __getitem__(self, name: str) -> GraphSplit:
        if name not in self._splits:
            known = ", ".join(self._splits)
            raise InputError(f"{self.path} has no split {name!r}; it has {known}")
        return self._splits[name]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {len(split)}" for name, split in self._splits.items())
        return f"GraphStore({str(self.path)!r}, {sizes})"

    def __enter__(self) -> GraphStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store's files, and release the memory shared with other processes."""
        for split in self._splits.values():
            split.close()
        for shard in self._shards:
            shard.close()
        if self._staged is not None:
            self._staged.release()


def open_foreign(path: str | Path) -> GraphStore:
    """Open a store that somebody else may have made, in mode ``random``.

    Another process first reads the first and last value of each variable in its shards (all values
    of a HydraGNN file), as wrong files may crash ADIOS2. A StoreError is raised if a file is
    missing, damaged or not a store.
    """
    store = GraphStore.open(path, "random")
    if (Path(path) / MANIFEST).exists():
        trial_of_shards(Path(path), [shard.path for shard in store.manifest.shards])
    return store


def _open_reader(
    mode: Mode, data: str, scratch: Path | None, staged: NodeEntry | None, index: SplitIndex
) -> Reader:
    """Return the reader of a split in the given mode.

    The store itself is no parameter: it would keep a reference to itself.

    Parameters
    ----------
    mode
        Way of reading: ``memory``, ``random`` or ``stream``.
    data
        Digest that identifies the store's data and keys.
    scratch
        Fast local directory to use if memory for files is short.
    staged
        Local copy from which the shards are read, held as long as a split is referenced.
    index
        Index of the split, which locates each graph's rows.
    """
    if mode == "memory":
        return in_shared_memory(index, data, scratch)
    return StreamReader(index) if mode == "stream" else DiskReader(index)


def verify_payload(store: GraphStore) -> None:
    """Verify the checksums of a store's payload: the files that hold the arrays of graphs.

    Raises
    ------
    StoreError
        If a file has changed; the message names that file.
    """
    for shard in store.manifest.shards:
        for name, record in shard.files.items():
            if is_payload(name):
                file = store.path / shard.path / name
                verify_checksum(file, record, in_place=shard.is_in_place)


def _verify_metadata(folder: Path, shard: Shard) -> None:
    verify_presence(folder, shard.files, in_place=shard.is_in_place)
    for name, record in shard.files.items():
        if not is_payload(name):
            verify_checksum(folder / name, record, in_place=shard.is_in_place)
