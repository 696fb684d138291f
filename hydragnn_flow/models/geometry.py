"""Geometry of a batch: edges, their vectors and lengths, envelopes, padding; stress of a batch.

Vectors are computed from the positions and the stored shifts of periodic images. So a gradient
reaches the positions, and every message-passing type respects the cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from hydragnn_flow.data.reading.split import GraphSplit


class Space(NamedTuple):
    """Positions of a batch's atoms [Å], and a mask of the graphs that are not periodic.

    Attributes
    ----------
    positions
        Positions [n_atoms, 3] in Å. They are a copy, so a gradient by this tensor does not include
        the dependence of edge vectors on positions.
    finite
        Mask of graphs without a periodic direction, bool [n_graphs].
    any_finite
        True if at least one graph of the batch is not periodic.
    """

    positions: Tensor
    finite: Tensor
    any_finite: bool


def space_of(batch: Any, positions: Tensor) -> Space:
    """Return a copy of a batch's positions [n_atoms, 3] in Å, and which graphs are not periodic."""
    finite = finite_graphs(batch)
    known: bool | None = getattr(batch, "any_finite", None)
    # On an accelerator the host would have to wait; code that collates a batch knows and may set
    # it.
    return Space(positions.clone(), finite, bool(finite.any()) if known is None else known)


def any_finite(split: GraphSplit) -> bool:
    """Return whether any of about a hundred graphs, sampled from a split, is not periodic."""
    step = max(len(split) // 64, 1)
    return bool(finite_graphs(split.batch(range(0, len(split), step))).any())


def finite_graphs(batch: Any) -> Tensor:
    """Return a mask of graphs without a periodic direction, bool [n_graphs].

    The batch's key ``pbc`` decides. Without this key, a graph is periodic if an edge leads to
    another periodic image.
    """
    pbc: Tensor | None = getattr(batch, "pbc", None)
    if pbc is not None:
        return ~(pbc.view(batch.num_graphs, -1) != 0).any(dim=1)
    leaves = (batch.edge_shifts != 0).any(dim=1)
    graph = batch.batch.index_select(0, batch.edge_index[1])
    counts = torch.zeros(batch.num_graphs, dtype=torch.int64, device=graph.device)
    return counts.index_add_(0, graph, leaves.long()) == 0


class Padding(NamedTuple):
    """Arrangement of the atoms' rows in one matrix per graph, padded to the largest graph.

    Attributes
    ----------
    places
        Index of each atom's row in the concatenated matrices, int64 [n_atoms].
    present
        Mask of the rows that hold an atom, bool [n_graphs, largest].
    """

    places: Tensor
    present: Tensor

    def pad(self, rows: Tensor) -> Tensor:
        """Arrange the atoms' rows [n_atoms, d] as one matrix per graph, [n_graphs, largest, d].

        Rows without an atom are zero.
        """
        padded = rows.new_zeros((self.present.numel(), rows.shape[1]))
        return padded.index_copy_(0, self.places, rows).view(*self.present.shape, rows.shape[1])

    def unpad(self, padded: Tensor) -> Tensor:
        """Return the atoms' rows [n_atoms, d] from padded matrices [n_graphs, largest, d]."""
        return padded.flatten(0, 1).index_select(0, self.places)


def padding(graph: Tensor, n_graphs: int, largest: int) -> Padding:
    """Return the places of a batch's atoms in one padded matrix per graph.

    Parameters
    ----------
    graph
        Index of each atom's graph, ascending, int64 [n_atoms].
    n_graphs
        Number of graphs in the batch.
    largest
        Number of atoms in the largest graph.
    """
    numbers = torch.arange(n_graphs + 1, device=graph.device)
    starts = torch.searchsorted(graph, numbers)
    atoms = torch.arange(graph.shape[0], device=graph.device)
    places = atoms - starts.index_select(0, graph) + largest * graph
    rows = torch.arange(largest, device=graph.device)
    return Padding(places, rows[None, :] < starts.diff()[:, None])


def largest_graph(batch: Any) -> int:
    """Return the number of atoms in the batch's largest graph.

    This is ``batch.largest_graph`` if the code that collated the batch has set it. Otherwise atoms
    are counted, and the host waits for an accelerator.
    """
    known: int | None = getattr(batch, "largest_graph", None)
    if known is not None:
        return known
    return int(torch.bincount(batch.batch, minlength=1).max())


class GraphBatch(Protocol):
    """Keys of a PyTorch Geometric batch of graphs that every model reads.

    Some networks also read ``edge_attr`` [n_edges, k], ``graph_attr``, ``pe`` and ``rel_pe``,
    ``cell``, ``pbc`` or ``dataset_name``.
    """

    x: Tensor
    """Node features [n_atoms, n_columns]."""
    pos: Tensor
    """Positions [n_atoms, 3] in Å."""
    edge_index: Tensor
    """Sender (row 0) and receiver (row 1) of each edge, int64 [2, n_edges]."""
    edge_shifts: Tensor
    """Cartesian shift of the periodic image [n_edges, 3] in Å."""
    batch: Tensor
    """Index of the graph that each atom belongs to, int64 [n_atoms]."""

    @property
    def num_graphs(self) -> int:
        """Number of graphs in the batch."""
        ...


@dataclass(frozen=True)
class Geometry:
    """Edges of a batch of graphs, their vectors [Å], and the other inputs of the layers.

    Attributes
    ----------
    sender, receiver
        Indices of the atoms that each edge leads from and to, int64 [n_edges].
    vectors
        Vectors from the sender to the receiver's image [n_edges, 3] in Å.
    cutoff
        Edge length at which envelopes reach zero [Å].
    graph
        Index of the graph that each atom belongs to, int64 [n_atoms].
    n_graphs
        Number of graphs in the batch.
    elements
        Atomic number of each atom, int64 [n_atoms]; None if the graphs do not say it.
    attributes
        Edge features other than lengths [n_edges, k]; None if the network reads none.
    graph_attr
        Features of the graphs [n_graphs, k]; None if the network reads none.
    padding
        Padding of the atoms to one matrix per graph; None if no layer needs it.
    space
        Positions and periodicity of the graphs; None if no layer needs them.
    """

    sender: Tensor
    receiver: Tensor
    vectors: Tensor
    cutoff: float
    graph: Tensor
    n_graphs: int
    elements: Tensor | None = None
    attributes: Tensor | None = None
    graph_attr: Tensor | None = None
    padding: Padding | None = None
    space: Space | None = None

    @property
    def n_atoms(self) -> int:
        """Number of atoms in the batch."""
        return self.graph.shape[0]

    @cached_property
    def lengths(self) -> Tensor:
        """Edge lengths [n_edges, 1] in Å."""
        # The small constant keeps second derivatives of the root finite for edges of zero length.
        return (self.vectors.square().sum(dim=1, keepdim=True) + 1e-12).sqrt()

    @cached_property
    def directions(self) -> Tensor:
        """Unit vectors of the edges [n_edges, 3]; zero for an edge of zero length."""
        return self.vectors / self.lengths

    @cached_property
    def envelope(self) -> Tensor:
        """Cosine envelope of each edge's length [n_edges, 1]: 1 at zero, 0 at the cutoff.

        Messages fade with this factor. Its slope at the cutoff is zero.
        """
        return cosine_envelope(self.lengths, self.cutoff)

    @cached_property
    def degree(self) -> Tensor:
        """Number of incoming edges of each atom [n_atoms, 1]."""
        return self.sum_at_receiver(torch.ones_like(self.vectors[:, :1]))

    @cached_property
    def coordination(self) -> Tensor:
        """Smooth coordination number of each atom [n_atoms, 1].

        It is the sum of the envelopes of the incoming edges.
        """
        return self.sum_at_receiver(self.envelope)

    def of_sender(self, nodes: Tensor) -> Tensor:
        """Return for each edge the row of the atom it leads from, [n_atoms, …] to [n_edges, …]."""
        # index_select and index_add, here and below, and their gradients are several times faster
        # than indexing by x[index].
        return nodes.index_select(0, self.sender)

    def of_receiver(self, nodes: Tensor) -> Tensor:
        """Return for each edge the row of the atom it leads to, [n_atoms, …] to [n_edges, …]."""
        return nodes.index_select(0, self.receiver)

    def sum_at_receiver(self, messages: Tensor) -> Tensor:
        """Sum the messages of each atom's incoming edges, [n_edges, …] to [n_atoms, …]."""
        return sum_by(messages, self.receiver, self.n_atoms)

    def sum_at_sender(self, messages: Tensor) -> Tensor:
        """Sum the messages of each atom's outgoing edges, [n_edges, …] to [n_atoms, …]."""
        return sum_by(messages, self.sender, self.n_atoms)

    def moved(self, displacements: Tensor) -> Geometry:
        """Return a copy of the geometry, with the edge vectors after a displacement of the atoms.

        ``displacements`` are [n_atoms, 3] in Å.
        """
        step = self.of_receiver(displacements) - self.of_sender(displacements)
        return replace(self, vectors=self.vectors + step)


def sum_by(rows: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum the rows that have the same index, for each index from 0 to size - 1.

    ``rows`` are [n, …], and the result is [size, …]. The sum is at least in single precision. In
    the half precision of automatic mixed precision a sum stops growing once it is some hundred
    times as large as the next term.
    """
    if rows.dtype in (torch.bfloat16, torch.float16):
        rows = rows.float()
    # In place, which spares a copy of the zeros.
    return rows.new_zeros((size, *rows.shape[1:])).index_add_(0, index, rows)


def cosine_envelope(lengths: Tensor, cutoff: float) -> Tensor:
    """Return the envelope of lengths, a cosine that falls from 1 at zero to 0 at the cutoff.

    Behler and Parrinello, doi:10.1103/PhysRevLett.98.146401.

    Parameters
    ----------
    lengths
        Lengths of any shape, in Å.
    cutoff
        Length from which the function is zero [Å].
    """
    return 0.5 * (torch.cos(lengths.clamp(max=cutoff) * (math.pi / cutoff)) + 1.0)


def edge_vectors(batch: GraphBatch, positions: Tensor) -> Tensor:
    """Return the vectors of a batch's edges, from sender to receiver, [n_edges, 3] in Å.

    Parameters
    ----------
    batch
        Batch of graphs whose edges and periodic shifts are used, but not its positions.
    positions
        Positions [n_atoms, 3] in Å; they set the data type of the result, and gradients reach them.
    """
    sender, receiver = batch.edge_index[0], batch.edge_index[1]
    vectors = positions.index_select(0, receiver) - positions.index_select(0, sender)
    return vectors + batch.edge_shifts.to(positions.dtype)


STRESS = "stress"
"""Name of the stress, as an output of a model and as a target in a store."""

VOIGT = ("xx", "yy", "zz", "yz", "xz", "xy")
"""Components of a symmetric tensor in Voigt order."""
VOIGT_PLACES = (0, 4, 8, 5, 2, 1)
"""Indices of the Voigt components in a tensor of nine numbers, row by row."""
TARGET_DIMS = (len(VOIGT), 9)
"""Possible dimensions of a stress target: in Voigt order, or row by row."""


def stress_of(gradient: Tensor, geometry: Geometry, cell: Tensor) -> Tensor:
    """Compute the stress of each graph from the gradient of its energy by the edge vectors.

    The result is [n_graphs, 6] in the order of ``VOIGT``, in the gradient's unit per Å².

    A strain ε takes every edge vector v to (1 + ε) v. With the gradients g of an energy by these
    vectors, ``dE/dε = Σ g ⊗ v``. The stress is the symmetric part of this sum divided by the
    volume, with ASE's sign: positive where the cell wants to shrink. The stress is NaN for a graph
    whose cell has no volume, such as one that is not periodic in three directions.

    Parameters
    ----------
    gradient
        Gradient of an energy by the edge vectors [n_edges, 3].
    geometry
        Geometry that holds these vectors, and the graph that each edge belongs to.
    cell
        Lattice vectors of each graph in rows, zero if not periodic, [3 n_graphs, 3] in Å.
    """
    # They do not depend on weights; detached, they make the second derivative cheaper.
    vectors = geometry.vectors.detach()
    products = (gradient[:, :, None] * vectors[:, None]).flatten(1)
    graph = geometry.graph.index_select(0, geometry.receiver)
    sums = sum_by(products, graph, geometry.n_graphs).view(-1, 3, 3)
    return by_volume(in_voigt(0.5 * (sums + sums.transpose(1, 2))), cell)


def in_voigt(tensors: Tensor) -> Tensor:
    """Return the components of symmetric tensors ``[n, 3, 3]`` in Voigt order, ``[n, 6]``."""
    # Indexing with a list would copy the list to the device in every step.
    return torch.stack([tensors.reshape(-1, 9)[:, place] for place in VOIGT_PLACES], dim=1)


def by_volume(virial: Tensor, cell: Tensor) -> Tensor:
    """Divide the virial of each graph ``[n_graphs, 6]`` by the volume of its cell [Å³].

    The result is NaN for a graph whose cell has no volume. ``cell`` are the lattice vectors of all
    graphs, ``[3 * n_graphs, 3]`` in Å.
    """
    first, second, third = cell.view(-1, 3, 3).to(virial.dtype).unbind(dim=1)
    volume = (first * torch.linalg.cross(second, third)).sum(dim=1, keepdim=True).abs()
    periodic = volume > 0
    # The divisor is never zero: a quotient that is discarded would still have a NaN gradient.
    return torch.where(periodic, virial / torch.where(periodic, volume, 1.0), math.nan)


def in_components(values: NDArray[np.float64], target: str, dim: int) -> NDArray[np.float64]:
    """Convert true values ``[n, d]`` to the ``dim`` components that a model predicts, ``[n, dim]``.

    Only a stress changes: data may have nine components of it, and a potential predicts six.
    """
    if target == STRESS and (values.shape[1], dim) == (9, 6):
        return np.asarray(values[:, VOIGT_PLACES])
    return values
