"""What ``store info`` and ``store check`` say, as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols

from hydragnn_flow.data.reading.graph_store import GraphStore, verify_payload
from hydragnn_flow.errors import InputError


def store_summary(store: GraphStore) -> dict[str, Any]:
    """What a store holds.

    Returns
    -------
    dict
        ``path``, ``version``, ``splits`` (graphs, atoms, edges by name), ``targets`` (level, dim,
        unit by name), ``elements`` (symbols), ``node_features``, ``cutoff`` [Å],
        ``max_neighbours``, ``avg_num_neighbors``, ``bytes`` on disk, ``provenance``.
    """
    manifest = store.manifest
    return {
        "path": str(store.path),
        "version": manifest.version,
        "splits": {name: size.model_dump() for name, size in manifest.splits.items()},
        "targets": {name: target.model_dump() for name, target in manifest.targets.items()},
        "elements": [chemical_symbols[number] for number in manifest.elements],
        "node_features": list(manifest.node_features),
        "cutoff": manifest.cutoff,
        "max_neighbours": manifest.max_neighbours,
        "avg_num_neighbors": manifest.statistics.avg_num_neighbors,
        "bytes": sum(file.stat().st_size for file in store.path.rglob("*") if file.is_file()),
        "provenance": dict(manifest.provenance),
    }


def check_store(path: Path | str) -> dict[str, Any]:
    """Verify every checksum of a store, then read all of it and count.

    Returns
    -------
    dict
        ``path``, ``files`` (names within the store that were verified; none for a HydraGNN file,
        which has no checksums), ``bytes`` verified, ``graphs`` read.

    Raises
    ------
    InputError
        Naming what is damaged.
    """
    store = GraphStore.open(path, mode="random")
    verify_payload(store)
    for name, size in store.manifest.splits.items():
        split = store[name]
        counted = (len(split.n_atoms), int(np.sum(split.n_atoms)), int(np.sum(split.n_edges)))
        if counted != (size.graphs, size.atoms, size.edges):
            raise InputError(
                f"{store.path}: {name} has {counted[0]} graphs, {counted[1]} atoms and "
                f"{counted[2]} edges, which its manifest contradicts; prepare the store again"
            )
    files = {
        f"{shard.path}/{name}": record.size
        for shard in store.manifest.shards
        for name, record in shard.files.items()
    }
    return {
        "path": str(store.path),
        "files": sorted(files),
        "bytes": sum(files.values()),
        "graphs": sum(size.graphs for size in store.manifest.splits.values()),
    }
