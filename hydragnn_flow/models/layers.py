"""Layers that several message-passing types share: bases of the edge length, perceptrons,
normalisation, and conditioning on features of the graph.

The modes of conditioning are HydraGNN's. HydraGNN creates their layers with the first batch, too
late for the optimiser to know the parameters; here they are part of the model from the beginning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch_geometric.nn import GraphNorm

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels.multilinear import apply_function
from hydragnn_flow.models.kernels.spline import Interpolation, Knots


class GaussianBasis(nn.Module):
    """Basis of Gaussians of the edge length, with equally spaced centres from zero to the cutoff.

    Their standard deviation is the spacing of the centres. Schütt et al., SchNet, arXiv:1706.08566.

    Parameters
    ----------
    size
        Number of Gaussians, at least 2.
    cutoff
        Centre of the last Gaussian [Å].
    """

    centres: Tensor

    def __init__(self, size: int, cutoff: float) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.0, cutoff, size), persistent=False)
        spacing = cutoff / (size - 1)
        self.exponent = -0.5 / spacing**2

    def forward(self, lengths: Tensor) -> Tensor:
        """Compute the Gaussians [n_edges, size] of edge lengths [n_edges, 1] in Å."""
        return torch.exp(self.exponent * (lengths - self.centres).square())


class BesselBasis(nn.Module):
    """Basis of spherical Bessel functions of order zero in the edge length.

    Function n = 1 … size of the length d is √(2/c) sin(nπd/c) / d. Each function is zero at the
    cutoff c, but its slope is not, because no envelope is included; see
    :func:`polynomial_envelope`. Gasteiger et al., DimeNet, arXiv:2003.03123, equation 7.

    Parameters
    ----------
    size
        Number of functions in the basis.
    cutoff
        Cutoff c of the neighbour list [Å].
    """

    frequencies: Tensor

    def __init__(self, size: int, cutoff: float) -> None:
        super().__init__()
        frequencies = torch.arange(1, size + 1) * (math.pi / cutoff)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.factor = math.sqrt(2.0 / cutoff)

    def forward(self, lengths: Tensor) -> Tensor:
        """Compute the Bessel functions [n_edges, size] of edge lengths [n_edges, 1] in Å.

        They are finite at zero length.
        """
        # Constant below a thousandth of an Å, where the quotient and its derivatives would be
        # noise.
        lengths = lengths.clamp(min=1e-3)
        return torch.sin(lengths * self.frequencies) * (self.factor / lengths)


def polynomial_envelope(lengths: Tensor, cutoff: float, exponent: int) -> Tensor:
    """Return the envelope of lengths, a polynomial that falls from 1 at zero to 0 at the cutoff.

    The polynomial is 1 - (p+1)(p+2)/2 xᵖ + p(p+2) xᵖ⁺¹ - p(p+1)/2 xᵖ⁺² with x = d / c, and 0 beyond
    the cutoff. Its first two derivatives vanish at the cutoff too. Gasteiger et al., DimeNet,
    arXiv:2003.03123, equation 8.

    Parameters
    ----------
    lengths
        Lengths d of any shape, in Å.
    cutoff
        Cutoff c of the neighbour list [Å].
    exponent
        Exponent p, at least 2: the larger, the longer the envelope stays near 1.
    """
    x = (lengths / cutoff).clamp(max=1.0)
    p = exponent
    bracket = (p + 1) * (p + 2) / 2 - x * (p * (p + 2) - x * (p * (p + 1) / 2))
    return 1.0 - x.pow(p) * bracket


class Normalization(nn.Module):
    """Normalisation of node features: layer normalisation, GraphNorm or none.

    Layer normalisation is that of Ba et al., arXiv:1607.06450, and GraphNorm that of Cai et al.,
    arXiv:2009.03294. Each graph is normalised without regard to the others. HydraGNN normalises
    over the batch, so what a network learns depends on how a batch is divided among ranks
    (processes of a distributed job).

    Parameters
    ----------
    kind
        Value of `Architecture.normalization`: ``layer``, ``graph`` or ``none``.
    width
        Width of the node features.
    """

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.layer = nn.LayerNorm(width) if kind == "layer" else None
        self.graph = GraphNorm(width) if kind == "graph" else None

    def forward(self, nodes: Tensor, geometry: Geometry) -> Tensor:
        """Return normalised node features [n_atoms, width]; unchanged for the kind ``none``."""
        if self.layer is not None:
            normalised: Tensor = self.layer(nodes)
            return normalised
        if self.graph is not None:
            by_graph: Tensor = self.graph(nodes, geometry.graph, geometry.n_graphs)
            return by_graph
        return nodes


def smooth_silu(x: Tensor) -> Tensor:
    """Compute x sigmoid(x), element by element; it can be differentiated twice.

    torch's own backward pass is one kernel only if it is not differentiated again. Otherwise it is
    half a dozen kernels, each of which keeps a tensor and has a derivative of its own.
    """
    value: Tensor = apply_function(_SmoothSiLU, x)
    return value


class _SmoothSiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return functional.silu(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if torch.is_grad_enabled():  # for forces, which are differentiated again
            return apply_function(_SiLUSlope, gradient, *ctx.saved_tensors)
        return torch.ops.aten.silu_backward(gradient, *ctx.saved_tensors)


class _SiLUSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(gradient, x)
        slope: Tensor = torch.ops.aten.silu_backward(gradient, x)
        return slope

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> Any:
        gradient, x = ctx.saved_tensors
        s = torch.sigmoid(x)
        # silu'' = s (1 - s) (2 + x (1 - 2 s)), in place because memory traffic dominates.
        curvature = torch.addcmul(x, x, s, value=-2.0).add_(2.0)
        curvature.mul_(torch.addcmul(s, s, s, value=-1.0)).mul_(gradient).mul_(outer)
        return torch.ops.aten.silu_backward(outer, x), curvature


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "lrelu_01": lambda: nn.LeakyReLU(0.1),
    "lrelu_025": lambda: nn.LeakyReLU(0.25),
    "lrelu_05": lambda: nn.LeakyReLU(0.5),
    "sigmoid": nn.Sigmoid,
}


def activation(name: str) -> nn.Module:
    """Return a new module of the activation function that HydraGNN calls ``name``.

    The names are the keys of ``ACTIVATIONS``. Each `prelu` has a trainable slope of its own.
    """
    return ACTIVATIONS[name]()


def hidden_layers(widths: Sequence[int], name: str) -> nn.Sequential:
    """Return hidden layers of a perceptron: linear layers, each followed by an activation.

    For a single width the result is the identity.

    Parameters
    ----------
    widths
        Width of the input, then the width of each layer.
    name
        HydraGNN's name of the activation.
    """
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), activation(name)]
    return nn.Sequential(*layers)


class QuietLinear(nn.Linear):
    """Linear layer with small initial weights, for an output that is added to larger features.

    Parameters
    ----------
    inputs, outputs
        Numbers of input and output features.
    gain
        Factor by which :func:`~hydragnn_flow.models.build_model` multiplies the initial weights;
        below 1 for a small output.
    """

    def __init__(self, inputs: int, outputs: int, gain: float) -> None:
        super().__init__(inputs, outputs)
        self.gain = gain


if TYPE_CHECKING:
    from hydragnn_flow.models.mpnn.base import DatasetStatistics


class EdgeReader(nn.Module):
    """Reader of the features of edges: basis functions of the length, and other attributes.

    Small networks, such as filters, take these features as input. If the length is the only input,
    networks run at the knots of a spline, which is interpolated to the edges.

    Parameters
    ----------
    basis
        Module from lengths [n, 1] in Å to features [n, basis_size]; None to ignore lengths.
    basis_size
        Number of features that the basis returns.
    intervals
        Number of spline intervals between zero and the cutoff, several per feature.
    attributes
        Number of edge features other than the length.
    cutoff
        Cutoff of the neighbour list [Å].
    """

    def __init__(
        self,
        basis: nn.Module | None,
        basis_size: int,
        intervals: int,
        attributes: int,
        cutoff: float,
    ) -> None:
        super().__init__()
        self.basis = basis
        self.attributes = attributes
        self.size = attributes if basis is None else basis_size + attributes
        """Number of features of an edge; 0 if edges have none."""
        # Edges of equal length may have different attributes, so knots would not suffice.
        self.knots = Knots(intervals, cutoff) if basis is not None and not attributes else None

    def forward(self, geometry: Geometry, factor: Tensor | None = None) -> EdgeFunctions:
        """Return an object that applies small networks to the features of a batch's edges.

        It multiplies each network's output by ``factor`` [n_edges, 1], unless ``factor`` is None.
        """
        if self.knots is not None:
            assert self.basis is not None
            interpolation = self.knots(geometry.lengths, factor)
            return EdgeFunctions(self.basis(self.knots.lengths), interpolation, None)
        features: list[Tensor] = []
        if self.basis is not None:
            features.append(self.basis(geometry.lengths))
        if self.attributes:
            assert geometry.attributes is not None  # the encoder provides them
            features.append(geometry.attributes)
        return EdgeFunctions(torch.cat(features, dim=1), None, factor)


@dataclass(frozen=True)
class EdgeFunctions:
    """Evaluator of small networks on a batch's edge features, at every edge or by a spline.

    If the length is the only feature, a network runs at the spline's knots.

    Attributes
    ----------
    features
        Inputs of a network, [n_knots, k] at the knots or [n_edges, k] at the edges.
    interpolation
        Spline from the knots to the edges; None if networks run on every edge.
    factor
        Factor of a network's output at each edge [n_edges, 1]; None for no factor, or if the spline
        includes it.
    """

    features: Tensor
    interpolation: Interpolation | None
    factor: Tensor | None

    def of(self, network: nn.Module) -> Tensor:
        """Return a network's output at every edge [n_edges, width], times the factor."""
        if self.interpolation is None:
            values: Tensor = network(self.features)
            return values if self.factor is None else values * self.factor
        return self.interpolation(self.at_knots(network))

    def at_knots(self, network: nn.Module) -> Tensor:
        """Return a network's output at the spline's knots [n_knots, width], without the factor."""
        # bfloat16 would round away the differences between neighbouring knots, which make the
        # forces. There are so few knots that the precision costs no time.
        with without_autocast(self.features.device.type):
            values: Tensor = network(self.features)
            return values


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context manager in which operations keep their operands' precision.

    Autocast is switched off inside it. ``device`` is a type of device, such as ``cuda``.
    """
    available = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else nullcontext()


def gaussian_reader(
    architecture: Architecture, statistics: DatasetStatistics, *, lengths: bool = True
) -> EdgeReader:
    """Return a reader of edge features: `num_gaussians` Gaussians of the length, and attributes.

    Parameters
    ----------
    architecture, statistics
        Arguments that the message-passing type was constructed with.
    lengths
        If true, read lengths and attributes; if false, attributes alone.
    """
    gaussians = architecture.num_gaussians if lengths else 0
    basis = GaussianBasis(gaussians, statistics.cutoff) if gaussians else None
    # Number of knots per feature, with which a spline has relative errors of some thousandths.
    intervals = 4 * gaussians
    return EdgeReader(basis, gaussians, intervals, statistics.n_attributes, statistics.cutoff)


class Join(nn.Module):
    """Sum of two linear maps: of node or pooled features, and of the features of their graph.

    The conditioning modes `concat_node` and `fuse_pool` use it.

    Parameters
    ----------
    width
        Width of the input and output features.
    size
        Number of features per graph.
    """

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.of_graph = nn.Linear(size, width, bias=False)

    def forward(self, nodes: Tensor, geometry: Geometry) -> Tensor:
        """Return node features [n_atoms, width] joined with the features of each atom's graph."""
        # Nothing else reaches the next layer: bfloat16 would round the sums of earlier ones.
        with without_autocast(nodes.device.type):
            joined: Tensor = self.own(nodes) + _of_atoms(self.of_graph, geometry)
        return joined

    def pooled(self, features: Tensor, geometry: Geometry) -> Tensor:
        """Return pooled features [n_graphs, width] joined with the features of each graph."""
        with without_autocast(features.device.type):
            joined: Tensor = self.own(features) + self.of_graph(geometry.graph_attr)
        return joined


class FiLM(nn.Module):
    """Scale and shift of node features by learnt functions of the features of their graph.

    Perez et al., arXiv:1709.07871.

    Parameters
    ----------
    width, size
        Width of the node features, and number of features per graph.
    name
        HydraGNN's name of the activation.
    """

    def __init__(self, width: int, size: int, name: str) -> None:
        super().__init__()
        hidden = max(width, size)
        self.modulation = nn.Sequential(
            nn.Linear(size, hidden), activation(name), nn.Linear(hidden, 2 * width)
        )

    def forward(self, nodes: Tensor, geometry: Geometry) -> Tensor:
        """Return scaled and shifted node features [n_atoms, width]."""
        scale, shift = _of_atoms(self.modulation, geometry).chunk(2, dim=1)
        # A scale in (0, 2) neither flips the sign of features nor lets them grow with depth.
        return nodes * (1.0 + torch.tanh(scale)) + shift


def _of_atoms(layer: nn.Module, geometry: Geometry) -> Tensor:
    """Return the output of a layer on the graphs' features, repeated for each atom [n_atoms, d]."""
    of_graph: Tensor = layer(geometry.graph_attr)
    return of_graph.index_select(0, geometry.graph)


def pack_exact(values: Sequence[float] | Sequence[Sequence[float]]) -> Tensor:
    """Return the bits of float64 numbers, or of rows of numbers, as an int64 tensor.

    A module's buffer of this type stays exact, also in checkpoints and broadcasts, where
    ``module.float()`` and similar calls would round a floating-point buffer.
    """
    return torch.tensor(values, dtype=torch.float64).view(torch.int64)


def pack_by_branch(rows: Sequence[Sequence[float]]) -> Tensor:
    """Pack rows of numbers, one per branch (heads of one data set), by :func:`pack_exact`.

    The shape of the result is [n_branches, d], or [d] for a single branch.
    """
    return pack_exact(rows if len(rows) > 1 else rows[0])


def of_branch(values: Tensor, branch: Tensor | None) -> Tensor:
    """Return for each graph or atom the values of its branch (heads of one data set), [n, d].

    For a single branch the result is ``values`` [d] itself.

    Parameters
    ----------
    values
        Values by branch [n_branches, d], or [d] for a single branch.
    branch
        Index of each graph's or atom's branch, int64 [n]; None if there is only one branch.
    """
    return values if branch is None else values.index_select(0, branch)


def unpack_exact(buffer: Tensor) -> Tensor:
    """Return the float64 numbers in a buffer made by :func:`pack_exact`."""
    return buffer.view(torch.float64)
