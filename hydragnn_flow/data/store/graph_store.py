"""GraphStore: material graphs on disk."""

from __future__ import annotations

from pathlib import Path

from hydragnn_flow.data.columns import check_graphs
from hydragnn_flow.data.splits import TRAIN
from hydragnn_flow.data.store.bp5 import Bp5File
from hydragnn_flow.data.store.describe import describe
from hydragnn_flow.data.store.integrity import is_payload, verify_checksum, verify_presence
from hydragnn_flow.data.store.layout import read_columns, split_keys, split_lengths
from hydragnn_flow.data.store.manifest import MANIFEST, Manifest, Shard, load_manifest
from hydragnn_flow.data.store.probe import probe
from hydragnn_flow.data.store.split import Columns, GraphSplit, InMemory, InShards
from hydragnn_flow.errors import InputError


class GraphStore:
    """Material graphs on disk, in splits: ``store["trainset"]``.

    Made by :meth:`open`, which reads the manifest and verifies sizes and metadata. The payload is
    verified and read when a split first needs it, whole, and stays in memory.
    """

    def __init__(
        self, path: Path, manifest: Manifest, read: dict[str, Columns] | None = None
    ) -> None:
        self.path = path
        self.manifest = manifest
        self._payload_verified = False
        sources = read or {name: InShards(name, self._verified_shards) for name in manifest.splits}
        self._splits = {
            name: GraphSplit(name, size.graphs, manifest.targets, sources[name])
            for name, size in manifest.splits.items()
        }

    @classmethod
    def open(cls, path: Path | str) -> GraphStore:
        """Open a store directory, or a single ``.bp`` that HydraGNN wrote.

        A HydraGNN file carries neither units nor checksums: its manifest is worked out from its
        arrays, and another process tries it out first, since a damaged one can take down whoever
        opens it. Changed bytes within its payload go unnoticed all the same.

        Raises
        ------
        InputError
            Naming the file that is missing, damaged or no store.
        """
        path = Path(path)
        if not path.exists():
            raise InputError(f"{path} does not exist; prepare the store or correct the path")
        if not (path / MANIFEST).exists() and path.suffix == ".bp":
            return cls._open_foreign(path)
        manifest = load_manifest(path)
        for shard in manifest.shards:
            folder = path / shard.path
            verify_presence(folder, shard.files)
            for name, record in shard.files.items():
                if not is_payload(name):
                    verify_checksum(folder / name, record)
        return cls(path, manifest)

    @classmethod
    def _open_foreign(cls, path: Path) -> GraphStore:
        probe(path)
        with Bp5File(path) as file:
            columns = {
                name: read_columns(file, name, split_keys(file, name))
                for name in split_lengths(file)
            }
        if TRAIN not in columns:
            raise InputError(f"{path} has no {TRAIN}; it is not in HydraGNN's layout")
        for name, part in columns.items():
            check_graphs(part, f"{path}: {name}")
        manifest = describe(columns, shards=[Shard(path=".", files={})])
        return cls(path, manifest, {name: InMemory(part) for name, part in columns.items()})

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._splits)

    def __getitem__(self, name: str) -> GraphSplit:
        if name not in self._splits:
            known = ", ".join(self._splits)
            raise InputError(f"{self.path} has no split {name!r}; it has {known}")
        return self._splits[name]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {len(split)}" for name, split in self._splits.items())
        return f"GraphStore({str(self.path)!r}, {sizes})"

    def verify_payload(self) -> None:
        """Verify the checksums of the payload, once in the life of this object.

        Raises
        ------
        InputError
            Naming the file that has changed.
        """
        if self._payload_verified:
            return
        for shard in self.manifest.shards:
            for name, record in shard.files.items():
                if is_payload(name):
                    verify_checksum(self.path / shard.path / name, record)
        self._payload_verified = True

    def _verified_shards(self) -> list[Path]:
        self.verify_payload()
        return [self.path / shard.path for shard in self.manifest.shards]
