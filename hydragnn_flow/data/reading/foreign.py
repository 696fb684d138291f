"""The manifest of a ``.bp`` that HydraGNN wrote, worked out from its arrays."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from hydragnn_flow.data.columns import check_graphs, concatenation_dim
from hydragnn_flow.data.reading.disk import DiskReader
from hydragnn_flow.data.reading.index import SplitIndex
from hydragnn_flow.data.reading.shard import ShardFile
from hydragnn_flow.data.splits import TRAIN
from hydragnn_flow.data.store.bp5 import Bp5File
from hydragnn_flow.data.store.describe import Content, Description, find_targets, make_manifest
from hydragnn_flow.data.store.foreign import survey
from hydragnn_flow.data.store.layout import lies_in_rows
from hydragnn_flow.data.store.manifest import Key, Manifest, Shard, SplitSize
from hydragnn_flow.data.store.statistics import Accumulator
from hydragnn_flow.errors import StoreError


def foreign_manifest(path: Path) -> Manifest:
    """Try a file out, then read all of it once, block by block.

    Raises
    ------
    StoreError
        Where it is damaged or not in HydraGNN's layout.
    """
    surveyed = survey(path).splits
    lengths = {split: found.graphs for split, found in surveyed.items()}
    if not lengths.get(TRAIN):
        raise StoreError(f"{path} has no {TRAIN}; it is not in HydraGNN's layout")
    with Bp5File(path) as file:
        keys = {
            split: {
                key: _describe(file, split, key)
                for key, stored in found.keys.items()
                if stored is not None  # no graph of the split has any
            }
            for split, found in surveyed.items()
            if found.graphs
        }
    sizes = {split: SplitSize(graphs=graphs) for split, graphs in lengths.items()}
    shard = Shard(path=".", files={}, splits=sizes)
    reading = ShardFile(path, shard)
    joined: dict[str, Key] = {}
    for split, described in keys.items():
        for key, found in described.items():
            found = _counted(reading, split, key, found)
            if key in joined and not joined[key].fits(found):
                raise StoreError(
                    f"{path}: {split}/{key} has another type or shape than in {TRAIN}; "
                    "write the file again"
                )
            joined[key] = joined[key] & found if key in joined else found
    targets = find_targets(joined, Description())
    statistics = Accumulator(targets)
    for split in keys:
        index = SplitIndex(split, joined, [reading], [lengths[split]])
        sizes[split] = _see(index, statistics, f"{path}: {split}")
    reading.close()
    shard = Shard(path=".", files={}, splits=sizes)
    return make_manifest(Content([shard], joined, statistics), Description(), "hydragnn")


def _describe(file: Bp5File, split: str, key: str) -> Key:
    name = f"{split}/{key}"
    variable = file.variable(name)
    shape = variable.shape
    dim = 1 if lies_in_rows(file, split, key) else concatenation_dim(key, len(shape))
    rest = (2,) if key == "edge_index" else shape[:dim] + shape[dim + 1 :]
    return Key(dtype=variable.dtype.name, dim=dim, shape=rest, node=False, edge=False, rows=None)


def _counted(shard: ShardFile, split: str, key: str, described: Key) -> Key:
    counts = shard.counts(split, key)
    return described.model_copy(
        update={
            "node": bool(np.array_equal(counts, shard.counts(split, "x"))),
            "edge": bool(np.array_equal(counts, shard.counts(split, "edge_index"))),
            "rows": int(counts[0]) if (counts == counts[0]).all() else None,
        }
    )


def _see(index: SplitIndex, statistics: Accumulator, where: str) -> SplitSize:
    """Check a split's graphs and add them to the statistics."""
    disk = DiskReader(index)
    bounds = index.block_bounds.tolist()
    for first, last in itertools.pairwise(bounds):
        graphs = np.arange(first, last)
        columns = disk.columns(graphs)
        names = [f"{where}: graph {graph}" for graph in graphs.tolist()]
        check_graphs(columns, names)
        statistics.see(columns, train=index.split == TRAIN)
    n = len(index)
    return SplitSize(graphs=n, atoms=index.atoms.start(n), edges=index.edges.start(n))
