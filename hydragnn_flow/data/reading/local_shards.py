"""Copies of a store's shards on a node's own disk: sent in advance, or made when needed."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from hydragnn_flow.data.reading.node_cache import (
    NodeEntry,
    directory_of_user,
    node_entry,
    unfinished_of,
)
from hydragnn_flow.data.store.integrity import verify_checksum, verify_presence
from hydragnn_flow.data.store.manifest import MANIFEST, Manifest, load_manifest
from hydragnn_flow.errors import StoreError


def identity(path: Path, manifest: Manifest, keys: Sequence[str] = ()) -> str:
    """Return a digest of a store's content and of the keys to read, 16 hexadecimal digits.

    Shards without recorded checksums count by the path, size and time of the last change of their
    files.
    """
    digest = hashlib.blake2b(manifest.model_dump_json().encode(), digest_size=8)
    digest.update(repr(list(keys)).encode())
    for shard in manifest.shards:
        if not shard.files:  # without checksums, path, size and time identify it
            for file in sorted((path / shard.path).iterdir()):
                found = file.stat()
                described = (str(file.resolve()), found.st_size, found.st_mtime_ns)
                digest.update(repr(described).encode())
    return digest.hexdigest()


def files_to_send(store: Path) -> list[tuple[Path, str]]:
    """Return a store's files to send to nodes, each with its path in a node's scratch directory.

    The files must be sent in this order: without the last, a node ignores the others. The list is
    empty for a store without checksums, since its copy could not be verified, and for a store that
    uses files in place.

    Raises
    ------
    StoreError
        If the directory is not a store.
    """
    manifest = load_manifest(store)
    if manifest.in_place or not all(shard.files for shard in manifest.shards):
        return []
    folder, name = directory_of_user(Path()), identity(store, manifest)
    files = [store / shard.path / file for shard in manifest.shards for file in shard.files]
    places = [str(folder / _sent(name, number)) for number in range(len(files))]
    return [*zip(files, places, strict=True), (store / MANIFEST, str(folder / _mark(name)))]


def is_here(path: Path, manifest: Manifest, scratch: Path) -> bool:
    """Return True if the node's directory ``scratch`` has a copy of a store's shards.

    An unfinished copy counts, and so do files that were sent to the node.
    """
    folder, name = directory_of_user(scratch), identity(path, manifest)
    # In the order in which one becomes the next, so that a change in between is not missed.
    stages = folder / _mark(name), unfinished_of(folder / _entry(name)), folder / _entry(name)
    return any(stage.exists() for stage in stages)


def local_shards(path: Path, manifest: Manifest, scratch: Path) -> NodeEntry:
    """Copy a store's shards (BP5 files) to the node's scratch directory, once per node.

    The copy is verified by the recorded checksums. Files of :func:`files_to_send` that were sent to
    the node are used if they are intact.

    Raises
    ------
    StoreError
        If there is no room, no right to write, or the store is damaged.
    """
    name, folder = identity(path, manifest), directory_of_user(scratch)

    def copy(directory: Path) -> None:
        if not _take(folder, name, manifest, directory):
            for shard in manifest.shards:
                target = directory / shard.path
                target.mkdir(exist_ok=True)  # a HydraGNN file is the directory itself
                for file in (path / shard.path).iterdir():
                    shutil.copyfile(file, target / file.name)
            _verify(manifest, directory)

    files = [file for shard in manifest.shards for file in (path / shard.path).iterdir()]
    # Files that were sent already occupy their space.
    was_sent = (folder / _mark(name)).exists()
    size = 0 if was_sent else sum(file.stat().st_size for file in files)
    return node_entry(_entry(name), size, copy, [scratch])


def _take(folder: Path, name: str, manifest: Manifest, directory: Path) -> bool:
    """Move files that were sent to the node into ``directory``; return True if all are intact.

    ``folder`` is the user's directory within the scratch directory, ``name`` the digest of the
    store. ``directory`` is emptied if a file is missing or damaged.
    """
    mark = folder / _mark(name)
    if not mark.exists():
        return False
    mark.unlink()
    number = 0
    try:
        for shard in manifest.shards:
            (directory / shard.path).mkdir()
            for file in shard.files:
                (folder / _sent(name, number)).replace(directory / shard.path / file)
                number += 1
        _verify(manifest, directory)
    except (OSError, StoreError):
        shutil.rmtree(directory)
        directory.mkdir()
        return False
    return True


def _verify(manifest: Manifest, directory: Path) -> None:
    for shard in manifest.shards:
        verify_presence(directory / shard.path, shard.files)
        for file, record in shard.files.items():
            verify_checksum(directory / shard.path / file, record)


def _entry(name: str) -> str:
    return f"{name}-shards"


def _mark(name: str) -> str:
    return f"{name}.sent"


def _sent(name: str, number: int) -> str:
    return f"{name}.{number}.part"
