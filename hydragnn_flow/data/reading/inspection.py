"""Summary and check of a store as plain data, for ``store info`` and ``store check``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols

from hydragnn_flow.data.reading.graph_store import GraphStore, open_foreign
from hydragnn_flow.data.store.integrity import verify_checksum
from hydragnn_flow.data.store.manifest import Key, SplitSize
from hydragnn_flow.errors import InputError, StoreError

_ROLES = {"train": "to train on", "calibration": "to calibrate with", "val": "to validate with"}
_WHY = {"duplicate_of": "also in", "group_in": "of a group in"}
_SETS = {"calibration": "calibration set", "val": "validation set", "test": "test set"}


def store_summary(store: GraphStore) -> dict[str, Any]:
    """Summarise the content of a store as plain data, for the command ``store info``.

    Returns
    -------
    dict
        Summary with ``path``, ``version``, ``dtypes``, ``shards`` (number of shards), ``splits``
        (graphs, atoms, edges by name), ``targets`` (level, dim, unit, classes by name), ``keys``
        (dtype and shape by name, with words for extents that differ between graphs), ``units`` (by
        key), ``elements`` (symbols), ``branches`` (indices), ``node_features``, ``cutoff`` [unit of
        ``pos``], ``max_neighbours``, ``truncation`` (counts by name, None if not counted),
        ``truncated`` (sentences), ``avg_num_neighbors``, ``in_place`` (paths of shards in place),
        ``bytes_in_place``, ``bytes`` on disk, ``left_out`` (sentences), ``masked`` (sentences on
        missing labels), ``duplicates`` (by split), ``provenance``.
    """
    manifest = store.manifest
    as_it_is = {"version", "dtypes", "splits", "targets", "units", "branches", "node_features"}
    as_it_is |= {"cutoff", "max_neighbours", "truncation", "provenance"}
    return {
        **manifest.model_dump(include=as_it_is),
        "path": str(store.path),
        "shards": len(manifest.shards),
        "keys": {
            name: {"dtype": key.dtype, "shape": _shape(key)} for name, key in manifest.keys.items()
        },
        "elements": [chemical_symbols[number] for number in manifest.elements],
        "truncated": truncated(store),
        "avg_num_neighbors": manifest.statistics.avg_num_neighbors,
        "in_place": manifest.in_place,
        "bytes_in_place": manifest.bytes if manifest.in_place else 0,
        "bytes": sum(file.stat().st_size for file in store.path.rglob("*") if file.is_file()),
        "left_out": left_out(store),
        "masked": masked_labels(manifest.lacking),
        "duplicates": manifest.provenance.get("division", {}).get("duplicates", {}),
    }


def left_out(store: GraphStore) -> list[str]:
    """Return one sentence for each reason why input structures are not in the store."""
    reasons = store.manifest.provenance.get("division", {}).get("left_out", {})
    sentences = []
    for reason, n in reasons.items():
        role, rest = reason.split("_", 1)
        why, other = rest.rsplit("_", 1)
        sentences.append(
            f"structures {_ROLES[role]} left out, as they are {_WHY[why]} the {_SETS[other]}: {n}"
        )
    return sentences


def masked_labels(lacking: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a sentence for each split and target with masked labels, from their numbers."""
    return [
        f"{split}: structures with no label of {name}, or one far off, which is masked: {n}"
        for split, numbers in lacking.items()
        for name, n in numbers.items()
    ]


def truncated(store: GraphStore) -> list[str]:
    """Return a list of at most one sentence: which neighbours a store's edges leave out.

    The list is empty if they leave out none, or if these were not counted.
    """
    manifest = store.manifest
    truncation = manifest.truncation
    if truncation is None or not truncation.atoms or manifest.cutoff is None:
        return []
    own = manifest.provenance.get("own_edges", False)
    return [truncation.sentence(manifest.cutoff, None if own else manifest.max_neighbours)]


def unseen(store: GraphStore) -> list[str]:
    """Return a list of at most one sentence: which elements are in no training structure.

    Other structures of the store have these elements.
    """
    names = ", ".join(chemical_symbols[number] for number in sorted(store.manifest.unseen))
    if not names:
        return []
    return [
        f"no structure to train on has {names}, but others have: their errors are of elements "
        f"never seen, which the ensemble refuses in new structures"
    ]


def check_store(
    path: Path | str, progress: Callable[[str, int, int], None] | None = None
) -> dict[str, Any]:
    """Verify every checksum of a store, then read and count all its graphs, atoms and edges.

    Parameters
    ----------
    path
        Directory of the store, or a HydraGNN ``.bp``; a ``.bp`` has no checksums, and is read and
        checked for consistency when it is opened.
    progress
        Callback with the kind of work, the amount done and the total (MB verified, graphs read).

    Returns
    -------
    dict
        Result with ``path``, ``files`` (verified names within the store, absolute for data in
        place; none for a HydraGNN file), ``unverified`` (files in place without a checksum),
        ``bytes`` verified, ``graphs`` read.

    Raises
    ------
    StoreError
        If a file is damaged; the message names that file.
    """
    show = progress or (lambda what, done, total: None)
    with open_foreign(path) as store:
        files = {
            f"{shard.path}/{name}": (record, shard.is_in_place)
            for shard in store.manifest.shards
            for name, record in shard.files.items()
            if record.crc32 is not None
        }
        total = sum(record.size for record, _ in files.values())
        verified = 0
        for name, (record, in_place) in files.items():
            verify_checksum(store.path / name, record, in_place=in_place)
            verified += record.size
            show("MB verified", verified // 10**6, total // 10**6)
        if files:
            _read_all(store, show)
        return {
            "path": str(store.path),
            "files": sorted(files),
            "unverified": [
                f"{shard.path}/{name}"
                for shard in store.manifest.shards
                for name, record in shard.files.items()
                if record.crc32 is None
            ],
            "bytes": total,
            "graphs": sum(size.graphs for size in store.manifest.splits.values()),
        }


def _read_all(store: GraphStore, show: Callable[[str, int, int], None]) -> None:
    total = sum(size.graphs for size in store.manifest.splits.values())
    read = 0
    for name, size in store.manifest.splits.items():
        try:
            split, counted = store[name], SplitSize()
            split.origins_of(np.arange(0))  # raises an error if they are damaged
            for first, last in itertools.pairwise(split.block_bounds.tolist()):
                batch = split.batch(np.arange(first, last))
                counted += SplitSize(
                    graphs=last - first, atoms=len(batch.x), edges=batch.edge_index.shape[1]
                )
                read += last - first
                show("graphs read", read, total)
        except InputError:
            raise
        except (ValueError, TypeError, LookupError, RuntimeError, MemoryError) as error:
            raise StoreError(
                f"{store.path}: {name} is not what its manifest says "
                f"({' '.join(str(error).split())}); prepare the store again or restore a copy"
            ) from error
        if counted != size:
            raise StoreError(
                f"{store.path}: {name} has {counted.graphs} graphs, {counted.atoms} atoms and "
                f"{counted.edges} edges, which its manifest contradicts; prepare the store again "
                "or restore a copy"
            )


def _shape(key: Key) -> list[int | str]:
    rows: int | str = "any" if key.rows is None else key.rows
    if key.node:
        rows = "nodes"
    elif key.edge:
        rows = "edges"
    return [*key.shape[: key.dim], rows, *key.shape[key.dim :]]
