"""Conversion of one structure to one graph, in HydraGNN's layout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ase
import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg, sparse
from torch_geometric.data import Batch, Data

from hydragnn_flow.data.neighbours import (
    INEXACT,
    Neighbours,
    Truncation,
    are_resolved,
    count_truncation,
    near_origin,
    neighbour_list,
    whole,
)
from hydragnn_flow.errors import InputError


def atoms_to_graph(
    atoms: ase.Atoms,
    cutoff: float,
    max_neighbours: int | None,
    graph_id: int = 0,
    targets: Mapping[str, NDArray[np.float64]] | None = None,
    x: NDArray[np.float64] | None = None,
) -> Data:
    """Build the graph of a structure: nodes are atoms, edges join atoms within ``cutoff``.

    Parameters
    ----------
    atoms
        Structure with positions and cell in Å.
    cutoff
        Maximum length of an edge [Å].
    max_neighbours
        Number of nearest neighbours kept per atom, together with others as near as the last of
        them; None keeps all.
    graph_id
        Index of the structure in its input.
    targets
        Labels by name of the target: shape [d] for the whole graph, [n_atoms, d] for atoms. Without
        labels (prediction) the graph has no target keys and no ``y``.
    x
        Node features, [n, n_features], for which the elements of ``atoms`` are ignored; None for
        the atomic numbers.

    Returns
    -------
    Data
        ``x`` [n, 1] atomic numbers, ``pos`` [n, 3] Å (of the atoms inside the cell, as
        :func:`~hydragnn_flow.data.neighbours.near_origin` moves them), ``cell`` [3, 3] Å,
        ``pbc`` [3], ``edge_index`` [2, e] (sender, receiver), ``edge_shifts`` [e, 3] Å,
        ``edge_attr`` [e, 1] Å, ``graph_id`` [1]; then each target under its name. ``y`` [sum, 1]
        has all targets one after another, as HydraGNN reads them; ``y_loc`` [1, n_targets + 1] has
        the offset in ``y`` at which each target begins, then the length of ``y``.

    Raises
    ------
    InputError
        If the structure cannot be a graph: no atoms, an unknown element, two atoms at one
        place, a position or cell that is not finite, a periodic direction without a lattice vector,
        a cell so small that an atom would have a hundred thousand neighbours, a structure so large
        that single precision does not resolve lengths.
    """
    positions, cell, pbc = _geometry(atoms, graph_id)
    _check_density(len(positions), cell, pbc, cutoff, graph_id)
    # Before the search, which takes minutes for atoms that are thousands of cells away.
    positions, _ = near_origin(positions, cell, pbc)
    if not are_resolved(positions, cutoff):
        raise _not_resolved(graph_id, positions, cutoff)
    edges = neighbour_list(positions, cell, pbc, cutoff, max_neighbours)
    if x is None:
        x = _atomic_numbers(atoms, graph_id)
        _check_distances(edges, graph_id)
    return assemble_graph(x, positions, cell, edges, graph_id=graph_id, targets=targets)


def check_lengths(graph: Data, cutoff: float, origin: str) -> None:
    """Raise InputError if a graph has an edge longer than ``cutoff``.

    The message begins with ``origin``, the name of the graph.
    """
    longest = longest_edge(graph)
    if longest > cutoff * (1 + INEXACT):
        raise InputError(
            f"{origin} has an edge of length {longest:.6g}, but networks see none beyond "
            f"Architecture.radius = {cutoff:g}; set Architecture.radius to the longest edge "
            f"of all graphs ({longest:.6g} or more), or remove such edges"
        )


def longest_edge(graph: Data) -> float:
    """Return the length of a graph's longest edge, in the unit of ``pos``; 0 without edges."""
    return float(_lengths(graph).max(initial=0.0))


def has_own_edges(graph: Data, cutoff: float, max_neighbours: int | None) -> bool:
    """Return True if a graph's edges are not those of a neighbour list with these settings.

    ``cutoff`` is the maximum length of an edge [Å], ``max_neighbours`` the number of nearest
    neighbours kept per atom, None for all. The result is also True if the graph extends too far for
    a neighbour list.
    """
    found = _neighbours(graph, cutoff, max_neighbours)
    if found is None:
        return True
    ours = _in_order(found.senders, found.receivers, found.distances)
    senders, receivers = graph.edge_index.numpy()
    brought = _in_order(senders, receivers, _lengths(graph))
    return ours.shape != brought.shape or not np.allclose(ours, brought, rtol=INEXACT)


def truncation_of(graph: Data, cutoff: float, atoms: ase.Atoms | None = None) -> Truncation:
    """Count the neighbours within the cutoff [Å] that a graph's edges leave out.

    Neighbours are searched for in ``atoms``, the structure that the graph was made from. Without
    ``atoms`` they are searched for in the graph itself, and edges as long as the cutoff do not
    count, as rounding decides which of these exist.
    """
    kept, lengths = graph.edge_index[1].numpy(), _lengths(graph)
    if atoms is None:
        cutoff *= 1 - INEXACT
        kept, lengths = kept[lengths <= cutoff], lengths[lengths <= cutoff]
        found = _neighbours(graph, cutoff, None)
    else:
        positions, cell, pbc = _geometry(atoms, 0)
        found = neighbour_list(near_origin(positions, cell, pbc)[0], cell, pbc, cutoff)
    if found is None:
        return whole(np.bincount(kept, minlength=len(graph.pos)))
    return count_truncation(kept, lengths, found.receivers, found.distances, len(graph.pos))


def _neighbours(graph: Data, cutoff: float, max_neighbours: int | None) -> Neighbours | None:
    """Return the neighbour list of a graph; None if its extent makes the search unsafe."""
    positions, cell = graph.pos.double().numpy(), graph.cell.double().numpy()
    if not are_resolved(positions, cutoff):
        return None
    return neighbour_list(positions, cell, graph.pbc.bool().numpy(), cutoff, max_neighbours)


def _lengths(graph: Data) -> NDArray[np.float32]:
    senders, receivers = graph.edge_index
    vectors = graph.pos[receivers] - graph.pos[senders] + graph.edge_shifts
    lengths: NDArray[np.float32] = torch.linalg.norm(vectors, dim=1).numpy()
    return lengths


def _in_order(
    senders: NDArray[np.int64], receivers: NDArray[np.int64], lengths: NDArray[np.floating[Any]]
) -> NDArray[np.float64]:
    """Return edges as sorted rows of sender, receiver and length, [n_edges, 3].

    Such rows are enough to compare neighbour lists, which have all equally long edges of an atom,
    or none of them.
    """
    order = np.lexsort((lengths, receivers, senders))
    return np.column_stack([senders, receivers, lengths])[order]


def assemble_graph(
    x: NDArray[Any],
    positions: NDArray[np.float64],
    cell: NDArray[np.float64],
    edges: Neighbours,
    *,
    graph_id: int,
    targets: Mapping[str, NDArray[np.float64]] | None = None,
    edge_attr: NDArray[Any] | None = None,
) -> Data:
    """Build a graph from node features, positions and edges that are known already.

    Positions are moved near the origin before they become float32, so that a network in single
    precision sees the lengths of the edges whatever the origin and the choice of periodic images.

    Parameters
    ----------
    x
        Node features, [n, n_features].
    positions
        Positions of the nodes, [n, 3].
    cell
        Lattice vectors in rows, [3, 3]; zero in directions that are not periodic.
    edges
        Directed edges with their lengths, however they were found.
    graph_id, targets
        Index of the structure and labels by name, as in :func:`atoms_to_graph`.
    edge_attr
        Edge features, [e, n_edge_features]; by default the lengths.

    Returns
    -------
    Data
        Graph with the keys and data types of :func:`atoms_to_graph`.

    Raises
    ------
    InputError
        If the structure is so large that single precision does not resolve its edges.
    """
    features = edges.distances[:, None] if edge_attr is None else edge_attr
    pbc = np.asarray(cell.any(axis=1))
    positions, wrapped = near_origin(positions, cell, pbc)
    moved = wrapped[edges.receivers] - wrapped[edges.senders]
    pos, shifts = positions.astype(np.float32), (edges.shifts + moved).astype(np.float32)
    _check_precision(pos, shifts, edges, graph_id)
    graph = Data()
    graph.x = torch.from_numpy(x.astype(np.float32))
    graph.pos = torch.from_numpy(pos)
    graph.cell = torch.from_numpy(cell.astype(np.float32))
    graph.pbc = torch.from_numpy(pbc.astype(np.int32))
    graph.edge_index = torch.from_numpy(np.stack([edges.senders, edges.receivers]))
    graph.edge_shifts = torch.from_numpy(shifts)
    graph.edge_attr = torch.from_numpy(features.astype(np.float32))
    graph.graph_id = torch.tensor([graph_id])
    if targets:
        _add_targets(graph, targets)
    return graph


def batch_graphs(graphs: Sequence[Data]) -> Batch:
    """Return one batch of graphs that are in memory, such as structures to predict.

    The batch has the same keys as one from ``Batch.from_data_list`` and takes a fifth of the time,
    but it cannot be split into graphs again.
    """
    sizes = torch.tensor([len(graph.pos) for graph in graphs])
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    batch = Batch(_base_cls=Data)
    for key in graphs[0].to_dict():  # in their order, which `keys` loses
        values = [graph[key] for graph in graphs]
        if key == "edge_index":
            edges = torch.tensor([indices.shape[1] for indices in values])
            batch[key] = torch.cat(values, dim=1) + ptr[:-1].repeat_interleave(edges)
        else:
            batch[key] = torch.cat(values)
    batch.batch = torch.arange(len(graphs)).repeat_interleave(sizes)
    batch.ptr = ptr
    return batch


def _geometry(
    atoms: ase.Atoms, graph_id: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return checked positions, cell (zero rows where not periodic) and periodic directions."""
    positions = np.asarray(atoms.positions, dtype=np.float64)
    pbc = np.asarray(atoms.pbc, dtype=np.bool_)
    cell = np.where(pbc[:, None], np.asarray(atoms.cell.array, dtype=np.float64), 0.0)
    if len(positions) == 0:
        raise InputError(f"structure {graph_id} has no atoms; remove it")
    if not (np.isfinite(positions).all() and np.isfinite(cell).all()):
        raise InputError(
            f"structure {graph_id} has a position or cell vector that is not finite; "
            "correct or remove it"
        )
    if np.linalg.matrix_rank(cell) < int(pbc.sum()):
        raise InputError(
            f"structure {graph_id} is periodic in a direction that has no cell vector of its own; "
            "give the vector or set pbc to false there"
        )
    return positions, cell, pbc


def _check_density(
    n_atoms: int,
    cell: NDArray[np.float64],
    pbc: NDArray[np.bool_],
    cutoff: float,
    graph_id: int,
) -> None:
    """Raise InputError for a crystal whose neighbour list would not fit in memory."""
    if not pbc.all():
        return
    volume = abs(float(np.linalg.det(cell)))
    neighbours = n_atoms / volume * 4 / 3 * np.pi * cutoff**3
    if neighbours > 100_000:  # more than any network handles
        raise InputError(
            f"structure {graph_id} has a cell of {volume:.3g} Å³ for {n_atoms} atoms, so that each "
            f"would have about {neighbours:.3g} neighbours within {cutoff:g} Å; give cell and "
            f"positions in Å"
        )


def _check_distances(edges: Neighbours, graph_id: int) -> None:
    nearest = int(edges.distances.argmin()) if len(edges.distances) else 0
    # Nuclei nearer than 0.1 Å are the same one, written twice, as by the symmetry operations of a
    # special position with two decimals. Those of molecules are 0.7 Å apart or more.
    if len(edges.distances) == 0 or edges.distances[nearest] >= 0.1:
        return
    one, other = sorted((int(edges.senders[nearest]), int(edges.receivers[nearest])))
    which = f"the atoms {one} and {other}" if one != other else f"atom {one} and its periodic image"
    raise InputError(
        f"structure {graph_id} has {which} at one place ({edges.distances[nearest]:.2g} Å apart); "
        f"give positions in Å, and special positions with all decimals, or remove it"
    )


def _check_precision(
    positions: NDArray[np.float32], shifts: NDArray[np.float32], edges: Neighbours, graph_id: int
) -> None:
    longest = float(edges.distances.max(initial=0.0))
    if math.isnan(longest):
        return  # from a NaN position, which is refused when it is stored
    vectors = positions[edges.receivers] - positions[edges.senders] + shifts
    errors = np.abs(np.linalg.norm(vectors, axis=1) - edges.distances)
    # Coordinates may be beyond float32 altogether, and their differences NaN.
    if not errors.max(initial=0.0) <= INEXACT * longest:
        raise _not_resolved(graph_id, positions, longest)


def _not_resolved(graph_id: int, positions: NDArray[Any], longest: float) -> InputError:
    extent = float(np.ptp(positions.astype(np.float64), axis=0).max())
    return InputError(
        f"structure {graph_id} is {extent:.3g} long, beside which single precision does not "
        f"resolve edges of up to {longest:.3g}; cut it into smaller pieces or remove it"
    )


def _atomic_numbers(atoms: ase.Atoms, graph_id: int) -> NDArray[np.float64]:
    if (atoms.numbers < 1).any():
        raise InputError(f"structure {graph_id} has an atom of unknown element; correct it")
    numbers: NDArray[np.float64] = atoms.numbers[:, None].astype(np.float64)
    return numbers


def _add_targets(graph: Data, targets: Mapping[str, NDArray[np.float64]]) -> None:
    """Add targets to a graph in place: each under its name, all packed as ``y`` and ``y_loc``."""
    packed = []
    for name, label in targets.items():
        # A total energy may be thousands of eV, where float32 resolves no better than 0.5 meV.
        per_graph = np.ndim(label) == 1
        value = torch.from_numpy(np.asarray(label, dtype=np.float64 if per_graph else np.float32))
        # A graph's only number stays [1], as HydraGNN's interatomic potentials expect `energy`;
        # a vector needs a row of its own to be stacked in batches.
        graph[name] = value[None] if per_graph and len(value) > 1 else value
        packed.append(value.reshape(-1).float())
    graph.y = torch.cat(packed)[:, None]
    ends = np.cumsum([0, *(len(label) for label in packed)])
    graph.y_loc = torch.from_numpy(ends.astype(np.int64)[None])


# Larger graphs are solved by Lanczos iterations, which take less time and memory there.
_DENSE = 400


def laplacian_encodings(edge_index: NDArray[np.int64], n: int, k: int) -> NDArray[np.float32]:
    """Compute positional encodings: eigenvectors of a graph's normalised Laplacian.

    The eigenvectors belong to the ``k`` smallest eigenvalues after the very smallest one. They are
    those of torch_geometric's AddLaplacianEigenvectorPE, which HydraGNN uses, except for signs:
    there each sign is drawn at random, here the sum of the third powers of a vector's entries is
    not negative. If a symmetry of the graph turns a vector into its negative, that sum is zero, and
    either sign is as good. For a repeated eigenvalue, as in symmetric graphs, the vectors are one
    basis of many and depend on the order of the atoms. The sum of their squares at each atom does
    not depend on that order, if all vectors of the eigenvalue are among the ``k``.

    Parameters
    ----------
    edge_index
        Senders and receivers, [2, n_edges]. Several edges between the same two atoms, through
        different cell faces, all count; edges of an atom to its own images do not. An edge without
        its reverse, as in truncated neighbour lists, counts half.
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
    """Return eigenvectors of a symmetric sparse matrix in columns, [n, number].

    They belong to the ``number`` largest eigenvalues, in descending order.
    """
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
    """Add Laplacian positional encodings to a graph, in place, unless it has its own.

    Parameters
    ----------
    graph
        Graph, changed in place. It gets ``pe`` [n, k] and ``rel_pe`` [n_edges, columns of ``pe``]
        unless it has them; ``rel_pe`` is the absolute difference of ``pe`` between both ends of
        each edge.
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
