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
    """The k eigenvectors of the normalised Laplacian with the smallest eigenvalues but the first.

    They are those of torch_geometric's AddLaplacianEigenvectorPE, which HydraGNN uses, but for
    their signs: there each is drawn at random, here the sum of the third powers of a vector's
    entries is not negative. Where a symmetry of the graph turns a vector into its negative that sum
    is zero, and either sign is as good. Of an eigenvalue that occurs several times, which symmetric
    graphs have, the vectors are one basis of many and depend on the order of the atoms; what does
    not is the sum of their squares at each atom, if all of them are among the k.

    Parameters
    ----------
    edge_index
        Senders and receivers, [2, n_edges]. Several edges between the same two atoms, through
        different cell faces, count as often; edges of an atom to its own images do not count. An
        edge that has no counterpart, as cut neighbour lists leave some, counts half.
    n
        Number of atoms.
    k
        Number of vectors.

    Returns
    -------
    NDArray
        [n, k]. Columns beyond the n - 1 that a graph has are zero.
    """
    senders, receivers = edge_index
    other = senders != receivers
    senders, receivers = senders[other], receivers[other]
    one_way: Any = sparse.coo_array((np.ones(len(senders)), (senders, receivers)), shape=(n, n))
    adjacency = ((one_way + one_way.T) / 2).tocsr()
    degrees: NDArray[np.float64] = adjacency.sum(axis=1)
    scale = np.divide(1.0, np.sqrt(degrees), out=np.zeros(n), where=degrees > 0)
    # Largest eigenvalues of this are the smallest of the Laplacian, which is one minus it.
    normalised = sparse.diags_array(scale) @ adjacency @ sparse.diags_array(scale)
    found = min(k, n - 1)
    vectors = np.zeros((n, k))
    if found:
        vectors[:, :found] = _leading(normalised, found + 1)[:, 1:]
    # A sum that is zero but for rounding is no reason to turn a vector.
    signs = np.where((vectors**3).sum(axis=0) < -(n**-0.5) * 1e-6, -1.0, 1.0)
    return np.asarray(vectors * signs, dtype=np.float32)


def _leading(matrix: Any, number: int) -> NDArray[np.float64]:
    """Eigenvectors of a sparse matrix's largest eigenvalues, these descending, as columns."""
    n = matrix.shape[0]
    if n <= _DENSE or number > n // 4:
        chosen = (n - number, n - 1)
        vectors = linalg.eigh(matrix.toarray(), subset_by_index=chosen)[1]
        return np.asarray(vectors[:, ::-1])
    # A start of its own, so that the same graph has the same vectors.
    start = np.random.default_rng(0).normal(size=n)
    values, vectors = sparse.linalg.eigsh(matrix, k=number, which="LA", v0=start)
    return np.asarray(vectors[:, np.argsort(-values, kind="stable")])


def add_encodings(graph: Data, k: int) -> bool:
    """Give a graph the encodings that it does not bring.

    Parameters
    ----------
    graph
        Gets ``pe`` [n, k], unless it has it, and ``rel_pe`` [n_edges, columns of ``pe``], unless it
        has it: the absolute differences between both ends of each edge, as HydraGNN makes them.
    k
        Number of columns.

    Returns
    -------
    bool
        Whether ``pe`` was computed.
    """
    computed = "pe" not in graph
    if computed:
        edges = graph.edge_index.numpy()
        graph.pe = torch.from_numpy(laplacian_encodings(edges, len(graph.pos), k))
    if "rel_pe" not in graph:
        senders, receivers = graph.edge_index
        graph.rel_pe = (graph.pe[senders] - graph.pe[receivers]).abs()
    return computed
