"""Keys that only some networks read: branch, features of the whole graph, encodings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.targets import BRANCH
from hydragnn_flow.data.sources.features import named, named_rows
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    from torch_geometric.data import Data


def network_keys(
    arrays: Mapping[str, NDArray[Any]],
    targets: Collection[str],
    n_nodes: int,
    n_edges: int | None,
    origin: str,
) -> dict[str, NDArray[Any]]:
    """Collect the keys of a graph that only some networks read.

    Parameters
    ----------
    arrays
        Arrays of the graph by key.
    targets
        Keys of the file, and of the graph, that are only labels.
    n_nodes
        Number of nodes of the graph.
    n_edges
        Number of edges; None if the edges are not known yet.
    origin
        Origin of the graph, for messages.

    Returns
    -------
    dict
        Keys that exist: ``dataset_name`` int64 [1, 1], the number of the graph's branch;
        ``graph_attr`` [1, k], features of the whole graph; ``pe`` [n_nodes, k] and ``rel_pe``
        [n_edges, k], positional encodings; all but the first in float32.

    Raises
    ------
    InputError
        If a key has another shape, holds NaN or infinity, or is not a branch number; the message
        begins with ``origin``.
    """
    found: dict[str, NDArray[Any]] = {}
    if BRANCH in arrays and BRANCH not in targets:
        found[BRANCH] = branch_number(named(arrays, BRANCH, origin), origin)
    if "graph_attr" in arrays and "graph_attr" not in targets:
        values = named(arrays, "graph_attr", origin)
        if values.size == 0 or (values.ndim > 1 and values.shape[0] != 1):
            raise InputError(
                f"{origin}: graph_attr has the shape {list(values.shape)}, not [k] or [1, k] with "
                "k features of the whole graph; correct it or leave it out"
            )
        found["graph_attr"] = values.reshape(1, -1).astype(np.float32)
    if "pe" in arrays and "pe" not in targets:
        found["pe"] = named_rows(arrays, "pe", n_nodes, origin).astype(np.float32)
    if "rel_pe" in arrays and "rel_pe" not in targets:
        if n_edges is None:
            raise InputError(
                f"{origin} has encodings of edges, rel_pe, but no edge_index to say of which; "
                "add the edges or leave rel_pe out"
            )
        found["rel_pe"] = named_rows(arrays, "rel_pe", n_edges, origin).astype(np.float32)
    return found


def branch_number(values: NDArray[np.float64], origin: str) -> NDArray[np.int64]:
    """Return the number of a graph's branch as int64 [1, 1], HydraGNN's shape.

    Raises
    ------
    InputError
        If it is not one whole number from 0 on; the message begins with ``origin``.
    """
    if values.size != 1 or values.item() < 0 or values.item() != np.floor(values.item()):
        raise InputError(
            f"{origin}: {BRANCH} is {values.tolist()}, not the number of the graph's branch, "
            "counted from 0; correct it or leave it out"
        )
    return values.reshape(1, 1).astype(np.int64)


def add_keys(graph: Data, keys: Mapping[str, NDArray[Any]]) -> Data:
    """Add further keys to a graph."""
    import torch

    for key, values in keys.items():
        graph[key] = torch.from_numpy(values)
    return graph
