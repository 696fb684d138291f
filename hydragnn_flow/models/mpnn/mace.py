"""MACE: messages of many-body order. Batatia et al., arXiv:2206.07697."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import NamedTuple, cast

import ase.data
import numpy as np
import torch
from torch import Tensor, nn

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.couplings import (
    Array,
    Monomial,
    SphericalHarmonics,
    Table,
    clebsch_gordan,
    components,
    couple_to,
    symmetric_basis,
)
from hydragnn_flow.models.embedding import N_ELEMENTS
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.layers import (
    BesselBasis,
    GaussianBasis,
    polynomial_envelope,
    smooth_silu,
)
from hydragnn_flow.models.mpnn.base import DatasetStatistics, MessagePassing, NodeState


class SymmetricContraction(nn.Module):
    """Weighted sums of products of up to ``order`` factors, the features of one atom.

    The products are many-body features. Weights depend on the element of the atom. Batatia et al.,
    arXiv:2206.07697, equations 10 and 11. All monomials of the components are computed first; one
    matrix turns them into the products. Components are the first dimension, so this is a single
    matrix product for all atoms and channels.

    Parameters
    ----------
    highest
        Highest degree of the factors.
    outputs
        Degrees of the products.
    order
        Largest number of factors.
    elements
        Number of elements with weights of their own.
    width
        Number of channels; they do not mix.
    """

    def __init__(
        self, highest: int, outputs: Sequence[int], order: int, elements: int, width: int
    ) -> None:
        super().__init__()
        bases = [
            [symmetric_basis(highest, power, degree) for power in range(1, order + 1)]
            for degree in outputs
        ]
        needed = {m for powers in bases for monomials, _ in powers for m in monomials}
        by_power = _computable(needed, (highest + 1) ** 2, order)
        self.powers = nn.ModuleList(_Power(lower, here) for lower, here in pairwise(by_power))
        column = {m: number for number, m in enumerate(m for power in by_power for m in power)}
        rows: list[Array] = []
        self.shapes: list[tuple[int, int]] = []
        self.weights = nn.ParameterList()
        for degree, powers in zip(outputs, bases, strict=True):
            for monomials, coefficients in powers:
                block = np.zeros((*coefficients.shape[:2], len(column)))
                block[:, :, [column[monomial] for monomial in monomials]] = coefficients
                rows.append(block.reshape(-1, len(column)))
            features = sum(len(coefficients) for _, coefficients in powers)
            self.shapes.append((features, 2 * degree + 1))
            scale = max(features, 1) ** -0.5
            self.weights.append(nn.Parameter(torch.randn(features, elements, width) * scale))
        self.products = Table(np.concatenate(rows))

    def forward(self, factors: Tensor, elements: Tensor) -> list[Tensor]:
        """Compute the weighted sums of products, [2 degree + 1, n_atoms, width] for each degree.

        Parameters
        ----------
        factors
            Components of the factors [(highest + 1)², n_atoms, width].
        elements
            Row of each atom's element in the table of weights, int64 [n_atoms]; the number of
            elements, one more than the last row, stands for the mean of all rows.
        """
        monomials = [factors]
        for power in self.powers:
            monomials.append(power(monomials[-1], factors))
        every = torch.cat(monomials).flatten(1)
        products = torch.split(
            self.products(every) @ every, [features * size for features, size in self.shapes]
        )
        sums: list[Tensor] = []
        for (features, size), product, weight in zip(
            self.shapes, products, self.weights, strict=True
        ):
            table = torch.cat([weight, weight.mean(dim=1, keepdim=True)], dim=1)
            of_atom = table.index_select(1, elements)[:, None]
            by_feature = product.view(features, size, *factors.shape[1:])
            sums.append((by_feature * of_atom).sum(dim=0))
        return sums


class _Power(nn.Module):
    """Computation of ``monomials``, each as one of the ``lower`` monomials times one component."""

    rest: Tensor
    last: Tensor

    def __init__(self, lower: list[Monomial], monomials: list[Monomial]) -> None:
        super().__init__()
        place = {monomial: number for number, monomial in enumerate(lower)}
        rest = torch.tensor([place[monomial[:-1]] for monomial in monomials], dtype=torch.int64)
        last = torch.tensor([monomial[-1] for monomial in monomials], dtype=torch.int64)
        self.register_buffer("rest", rest, persistent=False)
        self.register_buffer("last", last, persistent=False)

    def forward(self, lower: Tensor, factors: Tensor) -> Tensor:
        """Return the longer monomials [n_monomials, n_atoms, width]."""
        return lower.index_select(0, self.rest) * factors.index_select(0, self.last)


def _computable(needed: set[Monomial], n_components: int, order: int) -> list[list[Monomial]]:
    """Return the needed monomials and the shorter ones that these are computed from.

    The result has a list for each number of factors, from 1 to ``order``.
    """
    by_power = [sorted(m for m in needed if len(m) == power) for power in range(1, order + 1)]
    for power in range(order - 1, 0, -1):
        smaller = {monomial[:-1] for monomial in by_power[power]}
        by_power[power - 1] = sorted(smaller.union(by_power[power - 1]))
    by_power[0] = [(component,) for component in range(n_components)]
    return by_power


class ChebyshevBasis(nn.Module):
    """Basis of Chebyshev polynomials of degrees 1 … size in the edge length.

    Parameters
    ----------
    size
        Number of polynomials in the basis.
    cutoff
        Length at which the polynomials' argument is 1 [Å].
    """

    def __init__(self, size: int, cutoff: float) -> None:
        super().__init__()
        self.size = size
        self.cutoff = cutoff

    def forward(self, lengths: Tensor) -> Tensor:
        """Compute the polynomials [n_edges, size] of edge lengths [n_edges, 1] in Å."""
        # Outside ±1 they grow without bound, so lengths are mapped to that interval. HydraGNN uses
        # lengths in Å as they are.
        x = lengths * (2.0 / self.cutoff) - 1.0
        polynomials = [torch.ones_like(x), x]
        while len(polynomials) <= self.size:
            polynomials.append(2.0 * x * polynomials[-1] - polynomials[-2])
        return torch.cat(polynomials[1:], dim=1)


class AgnesiTransform(nn.Module):
    """Transform of edge lengths [Å] that is steepest at about bond lengths.

    It falls from the cutoff, for a length of zero, to 0 for large lengths. Witt et al.,
    doi:10.1063/5.0158783, with the constants of MACE. MACE's transform falls from 1 to 0, a range
    in which a basis for lengths up to the cutoff hardly changes.

    Parameters
    ----------
    cutoff
        Cutoff of the basis [Å].
    """

    q, p, a = 0.9183, 4.5791, 1.0805

    def __init__(self, cutoff: float) -> None:
        super().__init__()
        self.cutoff = cutoff

    def forward(self, lengths: Tensor, radii: Tensor) -> Tensor:
        """Transform edge lengths, given sums of covalent radii, [n_edges, 1] in Å each."""
        x = lengths / (0.5 * radii)
        # x^q / (1 + x^(q - p)) without negative powers, which overflow at short lengths.
        return self.cutoff / (1.0 + self.a * x.pow(self.p) / (1.0 + x.pow(self.p - self.q)))


class SoftTransform(nn.Module):
    """Transform of edge lengths [Å] that varies less below bond lengths, as in MACE.

    Parameters
    ----------
    cutoff
        Cutoff of the basis [Å]; not used.
    """

    a, b = 0.2, 3.0

    def __init__(self, cutoff: float) -> None:
        super().__init__()

    def forward(self, lengths: Tensor, radii: Tensor) -> Tensor:
        """Transform edge lengths, given sums of covalent radii, [n_edges, 1] in Å each."""
        x = lengths / (0.25 * radii)
        return lengths + 0.5 * torch.tanh(-x - self.a * x.pow(self.b)) + 0.5


class RadialFeatures(nn.Module):
    """Features of edges in MACE other than directions: functions of the length, and attributes.

    Parameters
    ----------
    architecture
        Section `Architecture` with `radial_type`, `num_radial` and `distance_transform`.
    statistics
        Statistics of the training split.
    """

    radii: Tensor

    def __init__(self, architecture: Architecture, statistics: DatasetStatistics) -> None:
        super().__init__()
        size, kind = architecture.num_radial, architecture.radial_type
        if kind == "gaussian" and size < 2:
            raise InputError(
                "network: Architecture.num_radial must be at least 2 for radial_type 'gaussian'"
            )
        self.transform: nn.Module | None = None
        if architecture.distance_transform is not None:
            if not statistics.elements:
                raise InputError(
                    f"network: Architecture.distance_transform = "
                    f"{architecture.distance_transform!r} needs the node feature 'atomic_number' "
                    f"in the store; remove it or prepare the store with it"
                )
            radii = torch.tensor(ase.data.covalent_radii.tolist())[:, None]
            self.register_buffer("radii", radii, persistent=False)
            transforms = {"Agnesi": AgnesiTransform, "Soft": SoftTransform}
            self.transform = transforms[architecture.distance_transform](statistics.cutoff)
        bases = {"bessel": BesselBasis, "gaussian": GaussianBasis, "chebyshev": ChebyshevBasis}
        self.basis = bases[kind](size, statistics.cutoff)
        # Scale of Bessel functions that makes their mean square within the cutoff one.
        self.factor = (statistics.cutoff**3 / 3) ** 0.5 if kind == "bessel" else 1.0
        self.size = size + statistics.n_attributes

    def forward(self, geometry: Geometry) -> Tensor:
        """Compute the edges' features [n_edges, size]: functions of the length, then attributes."""
        lengths = geometry.lengths
        if self.transform is not None:
            assert geometry.elements is not None  # the constructor has checked the store
            radii = self.radii.index_select(0, geometry.elements)
            radii = geometry.of_sender(radii) + geometry.of_receiver(radii)
            lengths = self.transform(lengths, radii)
        features: Tensor = self.basis(lengths) * self.factor
        if geometry.attributes is None:
            return features
        return torch.cat([features, geometry.attributes], dim=1)


SILU_GAIN = 1.6765
"""Factor that makes the mean square of SiLU one: it is 0.3558 for a standard normal variable."""


class EdgeFeatures(NamedTuple):
    """Edge features that all MACE layers of a batch read, and the element of each atom.

    Attributes
    ----------
    radial
        Radial features [n_edges, size].
    harmonics
        Spherical harmonics of the directions, times the envelope and the scale of a sum [n_edges,
        (max_ell + 1)²].
    elements
        Row of each atom's element in tables with a row per element [n_atoms].
    """

    radial: Tensor
    harmonics: Tensor
    elements: Tensor


class Degrees(NamedTuple):
    """Highest degrees of the equivariant features in the steps of one MACE layer.

    The degree is 0 for scalars and 1 for vectors.

    Attributes
    ----------
    nodes
        Highest degree of the input node features.
    edges
        Highest degree of the spherical harmonics.
    sums
        Highest degree of the sums over neighbours.
    products
        Highest degree of the products of these sums.
    outputs
        Highest degree of the output node features.
    """

    nodes: int
    edges: int
    sums: int
    products: int
    outputs: int


def plan(max_ell: int, node_max_ell: int, orders: list[int]) -> list[Degrees]:
    """Return the highest degrees of features that each MACE layer has to compute.

    The degree is 0 for scalars and 1 for vectors. Higher degrees than the result cannot arise, or
    do not influence the last layer's scalars.

    Parameters
    ----------
    max_ell, node_max_ell
        Keys `max_ell` (harmonics) and `node_max_ell` (node features) of the configuration.
    orders
        Correlation order of each layer.
    """
    reached = [0]
    for order in orders:
        reached.append(max(reached[-1], min(node_max_ell, order * max_ell)))
    layers: list[Degrees] = []
    outputs = 0
    for order, possible in zip(reversed(orders), reversed(reached[:-1]), strict=True):
        products = min(outputs, order * max_ell)
        # The square of any sum has a scalar part. Without products, only sums of the needed degrees
        # matter.
        sums = max_ell if order > 1 else products
        nodes = min(possible, max(sums + max_ell, outputs))
        layers.insert(0, Degrees(nodes, max_ell, sums, products, outputs))
        outputs = nodes
    return layers


class RadialWeights(nn.Module):
    """Weights of an edge's messages, one per path and channel, computed from its radial features.

    A path combines degrees of sender, harmonics and message. This follows the paper. HydraGNN also
    uses the scalars of both atoms, which makes messages quadratic in them, so that the output of a
    few layers grows without bound with the weights.

    Parameters
    ----------
    features
        Number of radial features of an edge.
    width
        Number of channels of each path.
    paths
        Number of paths in the layer.
    """

    def __init__(self, features: int, width: int, paths: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.second = nn.Linear(width, width)
        self.last = nn.Linear(width, paths * width)
        self.shape = (paths, width)

    def forward(self, radial: Tensor) -> Tensor:
        """Compute the weights of all edges' messages, [n_edges, n_paths, width]."""
        hidden = smooth_silu(self.first(radial)) * SILU_GAIN
        hidden = smooth_silu(self.second(hidden)) * SILU_GAIN
        weights: Tensor = self.last(hidden)
        return weights.view(-1, *self.shape)


class LinearByDegree(nn.Module):
    """Linear map of the ``width`` channels of features, separate for each degree up to ``highest``.

    Only scalars (degree 0) get a bias.
    """

    def __init__(self, highest: int, width: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(
            nn.Linear(width, width, bias=degree == 0) for degree in range(highest + 1)
        )

    def forward(self, degrees: list[Tensor]) -> list[Tensor]:
        """Return new features of each degree; input and output are [n, 2 degree + 1, width]."""
        return [linear(one) for linear, one in zip(self.maps, degrees, strict=True)]


class TensorProduct(nn.Module):
    """Messages of MACE: weighted products of the sender's features and the edge's harmonics.

    Each path, a combination of three degrees, has weights of its own. Batatia et al.,
    arXiv:2206.07697, equation 8, without the sum. Channels do not mix.

    Parameters
    ----------
    degrees
        Highest degrees of the features in the layer.
    """

    def __init__(self, degrees: Degrees) -> None:
        super().__init__()
        self.paths = [
            (node, edge, result)
            for result in range(degrees.sums + 1)
            for node in range(degrees.nodes + 1)
            for edge in range(degrees.edges + 1)
            if couple_to(node, edge, result)
        ]
        counts = Counter(result for _, _, result in self.paths)
        # Scaled for sums over paths of variance one: [2 edge + 1, 2 result + 1, 2 node + 1].
        tables = [
            clebsch_gordan(*path).transpose(1, 2, 0) * counts[path[2]] ** -0.5
            for path in self.paths
        ]
        self.tables = nn.ModuleList(
            Table(table) for path, table in zip(self.paths, tables, strict=True) if 0 not in path
        )
        self.numbers = [float(table[0, 0, 0]) for table in tables]
        self.edge_sizes = [2 * edge + 1 for edge in range(degrees.edges + 1)]

    def forward(self, senders: list[Tensor], weights: Tensor, harmonics: Tensor) -> list[Tensor]:
        """Compute messages of each degree [n_edges, 2 degree + 1, width].

        Parameters
        ----------
        senders
            Features of the senders by degree [n_edges, 2 degree + 1, width].
        weights
            Weights of the paths [n_edges, n_paths, width].
        harmonics
            Spherical harmonics of the edges [n_edges, (edges + 1)²].
        """
        by_degree = torch.split(harmonics, self.edge_sizes, dim=1)
        tables = iter(self.tables)
        messages: dict[int, Tensor] = {}
        for path, number, weight in zip(
            self.paths, self.numbers, torch.split(weights, 1, dim=1), strict=True
        ):
            node, edge, result = path
            sender = senders[node]
            if 0 in path:
                # The table is a multiple of the unit matrix, so slow products of many small
                # matrices can be avoided.
                numbers = (by_degree[edge] * number)[:, :, None]
                if edge == 0:
                    message = sender * (weight * numbers)
                elif node == 0:
                    message = numbers * (sender * weight)
                else:
                    message = (numbers * sender).sum(dim=1, keepdim=True) * weight
            else:
                table: Tensor = next(tables)(harmonics)
                operators = (by_degree[edge] @ table.flatten(1)).view(-1, *table.shape[1:])
                message = torch.bmm(operators, sender) * weight
            messages[result] = messages[result] + message if result in messages else message
        return [messages[result] for result in sorted(messages)]


class MACELayer(nn.Module):
    """Layer of MACE: sums over neighbours (interaction), and products of these sums.

    The products are added to the layer's input.

    Parameters
    ----------
    degrees
        Highest degrees of the features in the layer.
    order
        Largest number of factors in a product (correlation order).
    features
        Number of radial features of an edge.
    elements
        Number of elements with weights of their own.
    width
        Number of channels of each degree.
    """

    def __init__(
        self, degrees: Degrees, order: int, features: int, elements: int, width: int
    ) -> None:
        super().__init__()
        self.degrees = degrees
        self.before = LinearByDegree(degrees.nodes, width)
        self.product = TensorProduct(degrees)
        self.radial = RadialWeights(features, width, len(self.product.paths))
        self.mix = LinearByDegree(degrees.sums, width)
        self.contraction = SymmetricContraction(
            degrees.sums, range(degrees.products + 1), order, elements, width
        )
        self.after = LinearByDegree(degrees.products, width)

    def forward(self, state: NodeState, features: EdgeFeatures, geometry: Geometry) -> NodeState:
        """Return the atoms' features after this layer; their scalars are [n_atoms, width]."""
        old = [state.scalars[:, None]]
        if state.tensors is not None:
            for degree in range(1, self.degrees.nodes + 1):
                here = components(degree)
                old.append(state.tensors[:, here.start - 1 : here.stop - 1])
        senders = [geometry.of_sender(one) for one in self.before(old)]
        weights = self.radial(features.radial)
        messages = self.product(senders, weights, features.harmonics)
        sums = self.mix([geometry.sum_at_receiver(message) for message in messages])
        factors = torch.cat(sums, dim=1).transpose(0, 1)
        products = self.contraction(factors, features.elements)
        new = self.after([product.transpose(0, 1) for product in products])
        # Under autocast the result is bfloat16, and sums over layers would stay so.
        new = [one.to(state.scalars.dtype) for one in new]
        # A degree that only one of the two has is unchanged.
        both = zip_longest(old[: self.degrees.outputs + 1], new)
        scalars, *tensors = [_sum(first, second) for first, second in both]
        return NodeState(scalars[:, 0], torch.cat(tensors, dim=1) if tensors else None)


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor:
    if first is None or second is None:
        return cast(Tensor, second if first is None else first)
    return first + second


class MACE(MessagePassing):
    """Stack of MACE layers, each of which adds products of neighbour sums to the atoms' features.

    The last layer outputs scalars only, as in the paper.
    """

    first_energies = 0.1
    element_rows: Tensor

    def __init__(
        self, architecture: Architecture, statistics: DatasetStatistics, width: int, depth: int
    ) -> None:
        super().__init__(architecture, statistics, width, depth)
        self.cutoff = statistics.cutoff
        self.exponent = architecture.envelope_exponent
        self.scale = statistics.average_neighbours**-0.5
        self.radial = RadialFeatures(architecture, statistics)
        self.harmonics = SphericalHarmonics(architecture.max_ell)
        # Elements outside the training split get the mean of the others' weights, row n_elements.
        n_elements = max(len(statistics.elements), 1)
        rows = [n_elements] * N_ELEMENTS
        for row, element in enumerate(statistics.elements):
            rows[element] = row
        self.register_buffer("element_rows", torch.tensor(rows), persistent=False)
        orders = _orders(architecture, depth)
        plans = plan(architecture.max_ell, architecture.node_max_ell, orders)
        self.layers = nn.ModuleList(
            MACELayer(degrees, order, self.radial.size, n_elements, width)
            for degrees, order in zip(plans, orders, strict=True)
        )
        self.degrees = [layer.nodes for layer in plans] + [plans[-1].outputs]

    def edge_features(self, geometry: Geometry) -> EdgeFeatures:
        """Return the edges' radial features and harmonics, and the element row of each atom."""
        strength = polynomial_envelope(geometry.lengths, self.cutoff, self.exponent) * self.scale
        elements = geometry.elements
        return EdgeFeatures(
            self.radial(geometry),
            self.harmonics(geometry.directions) * strength,
            torch.zeros_like(geometry.graph)
            if elements is None
            else self.element_rows.index_select(0, elements),
        )


def _orders(architecture: Architecture, depth: int) -> list[int]:
    """Return the correlation order of each of ``depth`` layers."""
    given = architecture.correlation
    # Layers of a head are like the last ones of the network.
    return [given] * depth if isinstance(given, int) else list(given[-depth:])
