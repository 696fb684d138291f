"""Positional encodings of atoms and edges: eigenvectors of a graph's Laplacian."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg, sparse
from torch_geometric.data import Data

# Larger graphs are solved by Lanczos iterations, which take less time and memory there.
_DENSE = 400


def laplacian_encodings(edge_index: NDArray[np.int64], n: int, k: int) -> NDArray[np.float32]:
    """Compute positional encodings: eigenvectors of a graph's normalised Laplacian.

    They belong to the k smallest eigenvalues after the very smallest one. They are those of
    torch_geometric's AddLaplacianEigenvectorPE, which HydraGNN uses, except for signs: there each
    sign is drawn at random, here the sum of the third powers of a vector's entries is not negative.
    If a symmetry of the graph turns a vector into its negative, that sum is zero, and either sign
    is as good. For a repeated eigenvalue, as in symmetric graphs, the vectors are one basis of many
    and depend on the order of the atoms. The sum of their squares at each atom does not depend on
    it, if all vectors of the eigenvalue are among the k.

    Parameters
    ----------
    edge_index
        Senders and receivers, [2, n_edges]. Each of several edges between the same two atoms,
        through different cell faces, counts; edges of an atom to its own images do not. An edge
        without its reverse, as in truncated neighbour lists, counts half.
    n
        Number of atoms of the graph.
    k
        Number of eigenvectors to compute.

    Returns
    -------
    NDArray
        Eigenvectors in columns, [n, k]. Columns beyond the n - 1 that a graph has are zero.
    """
    senders, receivers = edge_index
    other = senders != receivers
    senders, receivers = senders[other], receivers[other]
    one_way: Any = sparse.coo_array((np.ones(len(senders)), (senders, receivers)), shape=(n, n))
    adjacency = ((one_way + one_way.T) / 2).tocsr()
    degrees: NDArray[np.float64] = adjacency.sum(axis=1)
    scale = np.divide(1.0, np.sqrt(degrees), out=np.zeros(n), where=degrees > 0)
    # The Laplacian is one minus this matrix: its smallest eigenvalues are the largest here.
    normalised = sparse.diags_array(scale) @ adjacency @ sparse.diags_array(scale)
    found = min(k, n - 1)
    vectors = np.zeros((n, k))
    if found:
        vectors[:, :found] = _leading(normalised, found + 1)[:, 1:]
    # A sum that is zero up to rounding must not flip a vector.
    signs = np.where((vectors**3).sum(axis=0) < -(n**-0.5) * 1e-6, -1.0, 1.0)
    return np.asarray(vectors * signs, dtype=np.float32)


def _leading(matrix: Any, number: int) -> NDArray[np.float64]:
    """Return eigenvectors of a sparse matrix's largest eigenvalues, descending, as columns."""
    n = matrix.shape[0]
    if n <= _DENSE or number > n // 4:
        chosen = (n - number, n - 1)
        vectors = linalg.eigh(matrix.toarray(), subset_by_index=chosen)[1]
        return np.asarray(vectors[:, ::-1])
    # A fixed start vector, so that the same graph has the same eigenvectors.
    start = np.random.default_rng(0).normal(size=n)
    values, vectors = sparse.linalg.eigsh(matrix, k=number, which="LA", v0=start)
    return np.asarray(vectors[:, np.argsort(-values, kind="stable")])


def add_encodings(graph: Data, k: int) -> bool:
    """Add positional encodings to a graph that has none of its own.

    Parameters
    ----------
    graph
        Graph, changed in place. It gets ``pe`` [n, k] and ``rel_pe`` [n_edges, columns of ``pe``]
        unless it has them; ``rel_pe`` is the absolute difference between both ends of each edge.
    k
        Number of columns of ``pe``.

    Returns
    -------
    bool
        True if ``pe`` was computed.
    """
    computed = "pe" not in graph
    if computed:
        edges = graph.edge_index.numpy()
        graph.pe = torch.from_numpy(laplacian_encodings(edges, len(graph.pos), k))
    if "rel_pe" not in graph:
        senders, receivers = graph.edge_index
        graph.rel_pe = (graph.pe[senders] - graph.pe[receivers]).abs()
    return computed
