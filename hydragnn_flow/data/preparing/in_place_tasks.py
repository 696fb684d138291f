"""Tasks of a preparation in place: inspect a file, and check a range of its graphs.

Checks that a copy makes while it writes are made here while statistics are computed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch_geometric.data import Data

from hydragnn_flow.config.data import DataConfig
from hydragnn_flow.data.columns import pack
from hydragnn_flow.data.positions import are_resolved
from hydragnn_flow.data.reading.graph_store import GraphStore
from hydragnn_flow.data.sources import Chunk, ReadyGraph
from hydragnn_flow.data.sources.arrays import check_size
from hydragnn_flow.data.sources.hydragnn import HydragnnSource
from hydragnn_flow.data.sources.pyg_keys import box
from hydragnn_flow.data.splits import SPLIT_OF_ROLE, TRAIN
from hydragnn_flow.data.store.manifest import Manifest
from hydragnn_flow.data.store.statistics import Accumulator
from hydragnn_flow.data.truncation import Truncation
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import write_json

_PARTS = "parts.json"


def save_parts(tasks: Path, parts: Sequence[Manifest]) -> None:
    """Write the manifests of all data sets for the tasks."""
    write_json(tasks / _PARTS, [part.model_dump(mode="json") for part in parts])


def refuse_cut_lists(request: Mapping[str, Any], truncation: Truncation, own_edges: bool) -> None:
    """Raise InputError if a potential would learn from truncated lists, after some have been read.

    The task is the first to know, long before all structures have been read.
    """
    if request["whole_lists"] and truncation.atoms:
        kept = None if own_edges else request["max_neighbours"]
        raise InputError(truncation.refusal(request["cutoff"], kept, so_far=True))


@lru_cache(maxsize=2)
def _part(tasks: Path, number: int) -> GraphStore:
    """Open a data set, cached for later tasks of this process, as an index may take a minute."""
    values = json.loads((tasks / _PARTS).read_text(encoding="utf-8"))[number]
    return GraphStore(tasks / str(number), Manifest(**values), "random")


def look(request: Mapping[str, Any], directory: Path) -> Manifest:
    """Read a whole file, as it has no checksums, and describe it as it will be used."""
    config = DataConfig(**request["config"])
    number = request["data_set"]
    source = cast(HydragnnSource, config.data_sets[number].source)
    reader = source.open(config.folder, request["seed"])
    return reader.in_place(None if config.sources is None else number)


def measure(request: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Check a range of graphs for networks to read, and compute their statistics."""
    chunk, within = Chunk(**request["chunk"]), (request["cutoff"], request["max_neighbours"])
    store, split = _part(directory.parent, chunk.data_set), SPLIT_OF_ROLE[chunk.role]
    manifest = store.manifest
    statistics = Accumulator(manifest.targets, manifest.node_features)
    own_edges, truncation = False, Truncation()
    with closing(store):  # closes its files, but keeps the index of their rows
        for first in range(chunk.start, chunk.stop, 64):
            last = min(first + 64, chunk.stop)
            graphs = list(store[split].between(first, last))
            where = [f"{chunk.file}: {split}: graph {i}" for i in range(first, last)]
            columns = pack(graphs, where, manifest.keys)
            statistics.update(columns, train=split == TRAIN)
            for index, graph, origin in zip(range(first, last), graphs, where, strict=True):
                ready = _ready(graph, manifest, index, origin, within[0])
                ready.graph(*within)
                own_edges = own_edges or ready.has_own_edges(*within)
                truncation += ready.truncation(graph, *within)
            refuse_cut_lists(request, truncation, own_edges)
    return {"statistics": statistics, "own_edges": own_edges, "truncation": truncation}


def _ready(graph: Data, manifest: Manifest, index: int, origin: str, cutoff: float) -> ReadyGraph:
    """Return a graph after the checks of labels and geometry that a copy would make."""
    arrays = {key: graph[key].numpy() for key in ("cell", "pbc")}
    cell, _ = box(arrays, origin)
    if not np.array_equal(cell, arrays["cell"]):
        raise InputError(
            f"{origin} has a cell along directions that are not periodic, which would count in "
            f"its volume; leave in_place out to have it copied without"
        )
    if not are_resolved(graph.pos.numpy(), cutoff):
        raise InputError(
            f"{origin} is so far from the origin that single precision does not resolve its "
            f"edges; leave in_place out to have it copied to the origin"
        )
    for name in manifest.targets:
        check_size(name, graph[name].numpy(), origin)
    return ReadyGraph(graph, origin, index)
