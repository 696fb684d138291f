"""DimeNet++: messages between edges, weighted by lengths and angles.

Gasteiger et al., arXiv:2003.03123 and arXiv:2011.14115.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import spherical_jn
from torch import Tensor, nn

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.couplings import SphericalHarmonics, Table
from hydragnn_flow.models.geometry import Geometry, sum_by
from hydragnn_flow.models.kernels.multilinear import on_host
from hydragnn_flow.models.kernels.spline import Interpolation, Knots
from hydragnn_flow.models.layers import BesselBasis, polynomial_envelope, smooth_silu
from hydragnn_flow.models.mpnn.base import DatasetStatistics, MessagePassing, NodeState

_ROW = 12
"""Number of edges in a row of :class:`EdgeTable`: more edges waste places, fewer make more rows."""


def spherical_bessel(
    lengths: Sequence[float], cutoff: float, degrees: int, size: int
) -> NDArray[np.float64]:
    """Compute spherical Bessel functions j_l(z_ln d / c) that are zero at the cutoff c.

    Their mean square is one in the sphere of radius c. Gasteiger et al., DimeNet, arXiv:2003.03123,
    equation 6.

    Parameters
    ----------
    lengths
        Lengths d [n] in Å; negative ones continue the function.
    cutoff
        Cutoff c of the neighbour list [Å].
    degrees
        Number of degrees: l = 0 … degrees - 1.
    size
        Number of functions of each degree.

    Returns
    -------
    NDArray[np.float64]
        Values [degrees, n, size].
    """
    zeros = _zeros(degrees, size)
    values = np.empty((degrees, len(lengths), size))
    for degree in range(degrees):
        arguments = np.abs(np.array(lengths))[:, None] / cutoff * zeros[degree]
        norm = math.sqrt(1.5) * np.abs(spherical_jn(degree + 1, zeros[degree]))
        parity = np.sign(np.array(lengths))[:, None] ** degree
        values[degree] = parity * spherical_jn(degree, arguments) / norm
    return values


def _zeros(degrees: int, size: int) -> NDArray[np.float64]:
    """Return the first positive zeros of the spherical Bessel functions [degrees, size]."""
    found = np.arange(1, size + degrees) * math.pi
    zeros = [found[:size]]
    for degree in range(1, degrees):
        function = partial(spherical_jn, degree)
        found = np.array([brentq(function, low, high) for low, high in pairwise(found)])
        zeros.append(found[:size])
    return np.array(zeros)


class EdgeTable(NamedTuple):
    """Arrangement of edges in a table, in which each atom has one or more rows, padded with zeros.

    All rows have the same length. Matrix products can then run over the edges of an atom.

    Attributes
    ----------
    places
        Flat index of each edge in the table, int64 [n_edges].
    owners
        Index of the atom of each row, int64 [n_rows]; None if each atom has one row.
    shape
        Number of rows, and number of places in each row.
    n_atoms
        Number of atoms in the batch.
    """

    places: Tensor
    owners: Tensor | None
    shape: tuple[int, int]
    n_atoms: int

    def fill(self, edges: Tensor) -> Tensor:
        """Arrange features of edges [n_edges, d] as a table [n_rows, n_places, d]."""
        n_rows, n_places = self.shape
        places = edges.new_zeros((n_rows * n_places, edges.shape[1]))
        return places.index_copy(0, self.places, edges).view(n_rows, n_places, edges.shape[1])

    def read(self, rows: Tensor) -> Tensor:
        """Return the features of edges [n_edges, d] from a table [n_rows, n_places, d]."""
        return rows.flatten(0, 1).index_select(0, self.places)

    def of_owner(self, atoms: Tensor) -> Tensor:
        """Return for each row of the table its atom's features, [n_atoms, …] to [n_rows, …]."""
        return atoms if self.owners is None else atoms.index_select(0, self.owners)

    def sum(self, rows: Tensor) -> Tensor:
        """Sum the table's rows of each atom, [n_rows, …] to [n_atoms, …]."""
        return rows if self.owners is None else sum_by(rows, self.owners, self.n_atoms)


def edge_table(atoms: Tensor, n_atoms: int, *, countable: bool) -> EdgeTable:
    """Return a table of edges in which the edges of each atom fill one or more rows.

    Parameters
    ----------
    atoms
        Index of the atom that each edge belongs to, int64 [n_edges].
    n_atoms
        Number of atoms in the batch.
    countable
        If true, the host may read counts from the device, and each atom gets a single row, as long
        as the longest, if this adds little padding. If false, rows have twelve places, and there
        are as many rows as any batch of this size may need: some stay empty, but the host does not
        wait for the device.
    """
    n_edges, device = atoms.shape[0], atoms.device
    degrees = sum_by(torch.ones_like(atoms), atoms, n_atoms)
    rows_per_atom = (degrees + (_ROW - 1)) // _ROW
    n_rows, n_places, single = (n_edges + n_atoms * (_ROW - 1)) // _ROW, _ROW, False
    if countable and n_edges:
        n_rows, longest = int(rows_per_atom.sum()), int(degrees.max())
        # Largest ratio of places with one long row per atom to places in rows of twelve.
        single = n_atoms * longest <= 1.25 * n_rows * _ROW
        if single:
            rows_per_atom, n_rows, n_places = torch.ones_like(degrees), n_atoms, longest
    ends = rows_per_atom.cumsum(0)

    belonging, order = torch.sort(atoms, stable=True)
    rank = torch.arange(n_edges, device=device)
    rank = rank - (degrees.cumsum(0) - degrees).index_select(0, belonging)
    sorted_places = (ends - rows_per_atom).index_select(0, belonging) * n_places + rank
    places = torch.empty_like(order).index_copy(0, order, sorted_places)
    if single:
        return EdgeTable(places, None, (n_rows, n_places), n_atoms)
    owners = torch.searchsorted(ends, torch.arange(n_rows, device=device), right=True)
    # Surplus rows contain only zeros, so their owner does not matter.
    return EdgeTable(places, owners.clamp(max=max(n_atoms - 1, 0)), (n_rows, n_places), n_atoms)


class AngularEdges(NamedTuple):
    """Edge features that all DimeNet++ layers read: functions of lengths and directions.

    Attributes
    ----------
    radial
        Radial functions at the knots [n_knots, num_radial].
    at_edges
        Interpolation at the length of each edge, times the envelope.
    by_degree
        Radial functions of each degree at the knots [num_spherical, n_knots, num_radial].
    at_places
        Interpolation at the places of ``incoming``; zero where a place has no edge.
    incoming, outgoing
        Tables of the edges by receiver and by sender.
    harmonics_in
        Spherical harmonics of the incoming edges, by degree [n_rows, n_places, 2 l + 1].
    harmonics_out
        Spherical harmonics of the outgoing edges, all degrees [n_rows, n_places, (l_max + 1)²].
    attributes
        Other edge features [n_edges, k]; None if there are none.
    """

    radial: Tensor
    at_edges: Interpolation
    by_degree: Tensor
    at_places: Interpolation
    incoming: EdgeTable
    outgoing: EdgeTable
    harmonics_in: tuple[Tensor, ...]
    harmonics_out: Tensor
    attributes: Tensor | None

    def of_length(self, network: nn.Module) -> Tensor:
        """Return a network's output for the length of each edge, times the envelope.

        The network reads the radial functions at the spline's knots; the result is [n_edges,
        width].
        """
        # Under autocast a product is less precise than its operands.
        return self.at_edges(network(self.radial).to(self.radial.dtype))


class AngularMessages(nn.Module):
    """Messages between edges that meet at an atom, which depend on lengths and the angle α.

    The message to edge j → i is the sum over edges k → j of x_kj * Σ_ln W_ln j_l(d_kj) P_l(cos α).
    By the addition theorem P_l is a sum of products of the two edges' harmonics. So the sum over k
    is computed once per atom j, not once per pair of edges, and no triplets are listed. The sum
    includes k = i, which the paper omits; that term is a function of the edge alone.

    Parameters
    ----------
    width
        Width of the messages.
    degrees, radial
        Numbers of angular and of radial functions.
    bottleneck
        Width of the intermediate basis.
    """

    def __init__(self, width: int, degrees: int, radial: int, bottleneck: int) -> None:
        super().__init__()
        self.degrees, self.radial, self.width = degrees, radial, width
        self.narrow = nn.Linear(degrees * radial, bottleneck, bias=False)
        self.wide = nn.Linear(bottleneck, width, bias=False)

    def forward(self, messages: Tensor, edges: AngularEdges) -> Tensor:
        """Compute messages along j → i from those along k → j, [n_edges, width] each."""
        weight = (self.wide.weight @ self.narrow.weight).view(self.width, self.degrees, -1)
        at_knots = torch.bmm(edges.by_degree, weight.permute(1, 2, 0)).to(edges.radial.dtype)
        filled = edges.incoming.fill(messages)
        rows = []
        for values, arriving in zip(at_knots.unbind(), edges.harmonics_in, strict=True):
            filters = edges.at_places(values).view(filled.shape)
            rows.append(torch.bmm(arriving.transpose(1, 2), filled * filters))
        atoms = edges.incoming.sum(torch.cat(rows, dim=1))
        return edges.outgoing.read(torch.bmm(edges.harmonics_out, edges.outgoing.of_owner(atoms)))


class Residual(nn.Module):
    """Residual block: two linear layers with SiLU, whose output is added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input [n, width] plus the output of both layers."""
        return x + smooth_silu(self.second(smooth_silu(self.first(x))))


class DimeNetLayer(nn.Module):
    """Layer of DimeNet++ in three blocks: embedding, interaction and output.

    They lead from atoms to edges, among edges, and back to atoms. A residual connection spans all
    three, as in HydraGNN. Activations are smooth (SiLU, as in the paper) whatever the activation of
    the heads.

    Parameters
    ----------
    architecture
        Section with `num_radial`, `num_spherical`, `basis_emb_size`, `int_emb_size`,
        `out_emb_size`, `num_before_skip` and `num_after_skip`.
    width
        Width of the node features.
    attributes
        Number of edge features other than lengths.
    scale
        Factor of the sums of messages.
    """

    def __init__(
        self, architecture: Architecture, width: int, attributes: int, scale: float
    ) -> None:
        super().__init__()
        radial, inner = architecture.num_radial, architecture.int_emb_size
        self.scale = scale
        # Map of [x_i | x_j | lengths | attributes], split by operand. Functions of the length alone
        # are computed at the knots.
        self.receiver = nn.Linear(width, width)
        self.sender = nn.Linear(width, width, bias=False)
        self.length = nn.Sequential(
            nn.Linear(radial, width), nn.SiLU(), nn.Linear(width, width, bias=False)
        )
        self.attributes = nn.Linear(attributes, width, bias=False) if attributes else None

        self.own = nn.Linear(width, width)
        self.other = nn.Linear(width, width)
        self.filter = nn.Sequential(
            nn.Linear(radial, architecture.basis_emb_size, bias=False),
            nn.Linear(architecture.basis_emb_size, width, bias=False),
        )
        self.down = nn.Linear(width, inner, bias=False)
        self.angles = AngularMessages(
            inner, architecture.num_spherical, radial, architecture.basis_emb_size
        )
        self.up = nn.Linear(inner, width, bias=False)
        self.before = nn.Sequential(*(Residual(width) for _ in range(architecture.num_before_skip)))
        self.skip = nn.Linear(width, width)
        self.after = nn.Sequential(*(Residual(width) for _ in range(architecture.num_after_skip)))

        self.fade = nn.Linear(radial, width, bias=False)
        self.output = nn.Sequential(
            nn.Linear(width, architecture.out_emb_size, bias=False),
            nn.Linear(architecture.out_emb_size, architecture.out_emb_size),
            nn.SiLU(),
            nn.Linear(architecture.out_emb_size, width, bias=False),
        )

    def forward(self, state: NodeState, features: AngularEdges, geometry: Geometry) -> NodeState:
        """Return the atoms' features after this layer; their scalars are [n_atoms, width]."""
        x = self._embed(state.scalars, features, geometry)
        filters = features.of_length(self.filter)
        messages = smooth_silu(self.down(smooth_silu(self.other(x)) * filters))
        sums = self.angles(messages, features) * self.scale
        new = smooth_silu(self.own(x)) + smooth_silu(self.up(sums))
        new = x + smooth_silu(self.skip(self.before(new)))
        faded = self.after(new) * features.of_length(self.fade)
        update: Tensor = self.output(geometry.sum_at_receiver(faded) * self.scale)
        return NodeState(state.scalars + update)

    def _embed(self, nodes: Tensor, features: AngularEdges, geometry: Geometry) -> Tensor:
        x = geometry.of_receiver(self.receiver(nodes)) + geometry.of_sender(self.sender(nodes))
        x = x + features.of_length(self.length)
        if self.attributes is not None:
            x = x + self.attributes(features.attributes)
        return smooth_silu(x)


class DimeNet(MessagePassing):
    """Stack of DimeNet++ layers, whose messages depend on lengths and angles.

    Sums of messages are divided by the root of the average number of neighbours.
    """

    def __init__(
        self, architecture: Architecture, statistics: DatasetStatistics, width: int, depth: int
    ) -> None:
        super().__init__(architecture, statistics, width, depth)
        radial, degrees = architecture.num_radial, architecture.num_spherical
        # The exponent in the paper is one less than that of the envelope's polynomial.
        self.cutoff, self.exponent = statistics.cutoff, architecture.envelope_exponent + 1
        # Number of knots per function, for errors of about a hundredth in the fastest oscillation.
        self.knots = Knots(8 * (radial + degrees), statistics.cutoff)
        self.basis = BesselBasis(radial, statistics.cutoff)
        # Like PaiNN's gain: mean square one for neighbours of uniform density.
        self.gain = (statistics.cutoff**3 / 3.0) ** 0.5
        intervals = self.knots.intervals
        lengths = [step * statistics.cutoff / intervals for step in range(-1, intervals + 2)]
        self.by_degree = Table(spherical_bessel(lengths, statistics.cutoff, degrees, radial))
        self.harmonics = SphericalHarmonics(degrees - 1)
        self.components = [2 * degree + 1 for degree in range(degrees)]
        self.layers = nn.ModuleList(
            DimeNetLayer(
                architecture, width, statistics.n_attributes, statistics.average_neighbours**-0.5
            )
            for _ in range(depth)
        )

    def edge_features(self, geometry: Geometry) -> AngularEdges:
        """Return functions of the edges' lengths and directions, and tables of edges by atom."""
        lengths = geometry.lengths
        envelope = polynomial_envelope(lengths, self.cutoff, self.exponent)
        countable = on_host(lengths.device)
        incoming = edge_table(geometry.receiver, geometry.n_atoms, countable=countable)
        outgoing = edge_table(geometry.sender, geometry.n_atoms, countable=countable)
        harmonics = self.harmonics(geometry.directions)
        both = incoming.fill(torch.cat([lengths, envelope], dim=1)).flatten(0, 1)
        return AngularEdges(
            radial=self.basis(self.knots.lengths) * self.gain,
            at_edges=self.knots(lengths, envelope),
            by_degree=self.by_degree(lengths),
            at_places=self.knots(both[:, :1], both[:, 1:]),
            incoming=incoming,
            outgoing=outgoing,
            harmonics_in=torch.split(incoming.fill(harmonics), self.components, dim=2),
            harmonics_out=outgoing.fill(harmonics),
            attributes=geometry.attributes,
        )
