"""Layers as HydraGNN has them, to go on with weights that HydraGNN has trained.

They are types like a user's own: ``mpnn_type: hydragnn_flow.models.hydragnn_layers:EGNN``, which
`start_from` writes where it reads a checkpoint of HydraGNN's. A layer replaces the features of the
atoms; the first one reads the input columns, as numbers. HydraGNN's normalisation over the batch is
what it is when HydraGNN predicts, a scale and a shift of each feature, and stays that in training.
Modules have the names of HydraGNN's, so that its weights have the same.

Lengths respect the cell. A search that begins with random weights is better served by the types of
``hydragnn_flow/models/mpnn``; docs/models.md says in what these differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn.aggr import DegreeScalerAggregation
from torch_geometric.nn.models.dimenet import BesselBasisLayer
from torch_geometric.nn.models.schnet import GaussianSmearing, ShiftedSoftplus

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.network import Architecture
from hydragnn_flow.config.network.mpnn_types import Properties
from hydragnn_flow.models.activation import activation
from hydragnn_flow.models.geometry import Geometry, cosine_envelope, sum_by
from hydragnn_flow.models.kernels.neighbour_sums import neighbour_sums
from hydragnn_flow.models.mpnn.base import DatasetStatistics, MessagePassing, NodeState
from hydragnn_flow.models.mpnn.gat import HEADS, NEGATIVE_SLOPE
from hydragnn_flow.models.mpnn.mfc import MFCEdges, MFConvolution, degree_classes


class Options(Section):
    """`Architecture.mpnn_options` of these types."""

    inputs: int = Field(default=1, ge=1)
    """Number of input columns, `input_node_features`."""


class Affine(nn.Module):
    """A scale and a shift of each feature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, nodes: Tensor) -> Tensor:
        """[n_atoms, width] to the same."""
        return nodes * self.weight + self.bias


class Layer(nn.Module):
    """A convolution that replaces the features, and an activation.

    Parameters
    ----------
    convolution
        Called as ``convolution(state, features, geometry)``; gives a new state.
    width
        Of the features that come out.
    name
        HydraGNN's name of the activation.
    inputs
        Columns that the convolution reads, the first of those that come in.
    normalised
        Whether features are scaled and shifted before the activation.
    """

    def __init__(
        self, convolution: nn.Module, width: int, name: str, inputs: int, *, normalised: bool
    ) -> None:
        super().__init__()
        self.convolution = convolution
        self.norm = Affine(width) if normalised else nn.Identity()
        self.activation = activation(name)
        self.inputs = inputs

    def forward(self, state: NodeState, features: Any, geometry: Geometry) -> NodeState:
        """The state after this layer."""
        read = state._replace(scalars=state.scalars[:, : self.inputs])
        new: NodeState = self.convolution(read, features, geometry)
        return new._replace(scalars=self.activation(self.norm(new.scalars)))


class HydraGNNStack(MessagePassing):
    """Base of the types here: layers, the first of which reads the input columns."""

    normalised: ClassVar[bool] = True

    def __init__(
        self, architecture: Architecture, statistics: DatasetStatistics, width: int, depth: int
    ) -> None:
        super().__init__(architecture, statistics, width, depth)
        inputs = min(Options.model_validate(architecture.mpnn_options).inputs, width)
        self.layers = nn.ModuleList(self.build(architecture, statistics, inputs, depth))

    def build(
        self, architecture: Architecture, statistics: DatasetStatistics, inputs: int, depth: int
    ) -> Iterator[Layer]:
        """Makes the layers; the first reads some columns of the input."""
        width, name = architecture.hidden_dim, architecture.activation_function
        make = self.maker(architecture, statistics)
        for layer in range(depth):
            read = width if layer else inputs
            convolution = make(read, width, layer == depth - 1)
            yield Layer(convolution, width, name, read, normalised=self.normalised)

    def maker(
        self, architecture: Architecture, statistics: DatasetStatistics
    ) -> Callable[[int, int, bool], nn.Module]:
        """Makes a convolution from the columns it reads and gives, and whether it is the last."""
        raise NotImplementedError

    def edge_features(self, geometry: Geometry) -> Any:
        """Nothing that all layers read."""
        return None


def _blind(*keys: str) -> Properties:
    return Properties(lengths="never", keys=keys, options=Options)


class SAGEConvolution(nn.Module):
    """The sum of a map of the neighbours' mean and one of the atom's features."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.lin_l = nn.Linear(inputs, width)
        self.lin_r = nn.Linear(inputs, width, bias=False)

    def forward(self, state: NodeState, features: None, geometry: Geometry) -> NodeState:
        """The state after this convolution."""
        nodes = state.scalars
        degree = geometry.degree.clamp(min=1.0).to(nodes.dtype)
        mean = geometry.sum_at_receiver(geometry.of_sender(nodes)) / degree
        return NodeState(self.lin_l(mean) + self.lin_r(nodes))


class SAGE(HydraGNNStack):
    """Means over connections."""

    properties = _blind()

    def maker(
        self, architecture: Architecture, statistics: DatasetStatistics
    ) -> Callable[[int, int, bool], nn.Module]:
        """Makes a convolution."""
        return lambda inputs, width, last: SAGEConvolution(inputs, width)


class GINConvolution(nn.Module):
    """A perceptron of (1 + ε) times the atom's features plus the sum of its neighbours'."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.full((1,), 100.0))
        self.nn = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, state: NodeState, features: None, geometry: Geometry) -> NodeState:
        """The state after this convolution."""
        total = geometry.sum_at_receiver(geometry.of_sender(state.scalars))
        return NodeState(self.nn((1.0 + self.eps) * state.scalars + total))


class GIN(HydraGNNStack):
    """Sums over connections."""

    properties = _blind()

    def maker(
        self, architecture: Architecture, statistics: DatasetStatistics
    ) -> Callable[[int, int, bool], nn.Module]:
        """Makes a convolution."""
        return lambda inputs, width, last: GINConvolution(inputs, width)


class MFCLayer(nn.Module):
    """A map of the atom's features and of its neighbours' sum, for each number of neighbours.

    It reads features as wide as those it gives; in the first layer those beyond the input columns
    are zero.
    """

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.width = width
        self.maps = MFConvolution(width, classes, 1.0)

    def forward(self, state: NodeState, features: MFCEdges, geometry: Geometry) -> NodeState:
        """The state after this convolution."""
        nodes = functional.pad(state.scalars, (0, self.width - state.scalars.shape[1]))
        return NodeState(self.maps(nodes, features, geometry))


class MFC(HydraGNNStack):
    """A map for each number of neighbours, from 0 to `max_neighbours`."""

    properties = _blind()

    def maker(
        self, architecture: Architecture, statistics: DatasetStatistics
    ) -> Callable[[int, int, bool], nn.Module]:
        """Makes a convolution."""
        self.largest = architecture.max_neighbours or len(statistics.degree_histogram) - 1
        return lambda inputs, width, last: MFCLayer(width, self.largest + 1)

    def edge_features(self, geometry: Geometry) -> MFCEdges:
        """Sums over the neighbours, and the classes of the atoms."""
        edges = neighbour_sums(geometry)
        return MFCEdges(edges, degree_classes(edges.degrees, 0, self.largest))


class CGConvolution(nn.Module):
    """The atom's features plus a sum of gated messages."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.lin_f = nn.Linear(2 * inputs, inputs)
        self.lin_s = nn.Linear(2 * inputs, inputs)

    def forward(self, state: NodeState, features: None, geometry: Geometry) -> NodeState:
        """The state after this convolution."""
        nodes = state.scalars
        both = torch.cat([geometry.of_receiver(nodes), geometry.of_sender(nodes)], dim=1)
        messages = torch.sigmoid(self.lin_f(both)) * functional.softplus(self.lin_s(both))
        return NodeState(nodes + geometry.sum_at_receiver(messages))


class CGCNN(HydraGNNStack):
    """Gated messages over connections; as wide as its input."""

    properties = _blind()

    def maker(
        self, architecture: Architecture, statistics: DatasetStatistics
    ) -> Callable[[int, int, bool], nn.Module]:
        """Makes a convolution."""
        return lambda inputs, width, last: CGConvolution(width)


_AGGREGATORS = ["mean", "min", "max", "std"]
_SCALERS = ["identity", "amplification", "attenuation", "linear"]


class PNAConvolution(nn.Module):
    """Four aggregates of messages, scaled in four ways by the number of neighbours.

    Parameters
    ----------
    inputs, width
        Of the features that come in and go out.
    radial
        Functions of the length that messages also read and are multiplied by a map of; none if 0.
    """

    def __init__(self, inputs: int, width: int, radial: int = 0) -> None:
        super().__init__()
        # Means over its data's numbers of neighbours, which are buffers and come with the weights.
        self.aggr_module = DegreeScalerAggregation(_AGGREGATORS, _SCALERS, torch.tensor([0, 1]))
        messages = (3 if radial else 2) * inputs
        self.pre_nns = nn.ModuleList([nn.Sequential(nn.Linear(messages, inputs))])
        aggregates = (len(_AGGREGATORS) * len(_SCALERS) + 1) * inputs
        self.post_nns = nn.ModuleList([nn.Sequential(nn.Linear(aggregates, width))])
        self.lin = nn.Linear(width, width)
        self.rbf_lin = nn.Linear(radial, inputs, bias=False) if radial else None
        self.rbf_emb = nn.Sequential(nn.Linear(radial, inputs), nn.ReLU()) if radial else None

    def forward(self, state: NodeState, features: Tensor | None, geometry: Geometry) -> NodeState:
        """The state after this convolution."""
        nodes = state.scalars
        read = [geometry.of_receiver(nodes), geometry.of_sender(nodes)]
        if self.rbf_emb is not None:
            read.append(self.rbf_emb(features))
        messages = self.pre_nns[0](torch.cat(read, dim=1))
        if self.rbf_lin is not None:
            messages = messages * self.rbf_lin(features)
        aggregates = self.aggr_module(messages, geometry.receiver, dim_size=geometry.n_atoms, dim=0)
        return NodeState(self.lin(self.post_nns[0](torch.cat([nodes, aggregates], dim=1))))


class PNA(HydraGNNStack):
    """PNA over connections."""

    properties = _blind()

    def maker(
        self, architecture: Architecture, statistics: DatasetStatistics
    ) -> Callable[[int, int, bool], nn.Module]:
        """Makes a convolution."""
        return lambda inputs, width, last: PNAConvolution(inputs, width)


def _with_lengths(
    *keys: str, vectors: Literal["always", "request", "never"] = "never"
) -> Properties:
    return Properties(lengths="always", vectors=vectors, keys=keys, options=Options)


class PNAPlus(HydraGNNStack):
    """PNA whose messages read Bessel functions of the length and are multiplied by them."""

    properties = _with_lengths("num_radial", "envelope_exponent")

    def maker(
        self, architecture: Architecture, statistics: DatasetStatistics
    ) -> Callable[[int, int, bool], nn.Module]:
        """Makes a convolution."""
        radial = architecture.num_radial
        self.rbf = BesselBasisLayer(radial, statistics.cutoff, architecture.envelope_exponent)
        return lambda inputs, width, last: PNAConvolution(inputs, width, radial)

    def edge_features(self, geometry: Geometry) -> Tensor:
        """Bessel functions of the lengths [n_edges, num_radial]."""
        radial: Tensor = self.rbf(geometry.lengths.squeeze(1))
        return radial


class CFConvolution(nn.Module):
    """Neighbours' features times filters, functions of the length, summed."""

    def __init__(self, inputs: int, width: int, gaussians: int, filters: int) -> None:
        super().__init__()
        self.lin1 = nn.Linear(inputs, filters, bias=False)
        self.lin2 = nn.Linear(filters, width)
        self.nn = nn.Sequential(
            nn.Linear(gaussians, filters), ShiftedSoftplus(), nn.Linear(filters, filters)
        )

    def forward(self, state: NodeState, features: Tensor, geometry: Geometry) -> NodeState:
        """The state after this convolution."""
        filters = self.nn(features) * geometry.envelope
        sent = geometry.of_sender(self.lin1(state.scalars))
        return NodeState(self.lin2(geometry.sum_at_receiver(sent * filters)))


class SchNet(HydraGNNStack):
    """SchNet's continuous filters."""

    properties = _with_lengths("num_gaussians", "num_filters")
    normalised = False

    def maker(
        self, architecture: Architecture, statistics: DatasetStatistics
    ) -> Callable[[int, int, bool], nn.Module]:
        """Makes a convolution."""
        gaussians = architecture.num_gaussians
        filters = architecture.num_filters or architecture.hidden_dim
        self.distance_expansion = GaussianSmearing(0.0, statistics.cutoff, gaussians)
        return lambda inputs, width, last: CFConvolution(inputs, width, gaussians, filters)

    def edge_features(self, geometry: Geometry) -> Tensor:
        """Gaussians of the lengths [n_edges, num_gaussians]."""
        gaussians: Tensor = self.distance_expansion(geometry.lengths)
        return gaussians


class EGNNConvolution(nn.Module):
    """Messages from both atoms and the length, with rectifiers; it may move the atoms.

    HydraGNN sums messages at the sender of an edge.
    """

    def __init__(self, inputs: int, width: int, *, moves: bool) -> None:
        super().__init__()
        self.edge_mlp = nn.Sequential(
            nn.Linear(2 * inputs + 1, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.node_mlp = nn.Sequential(
            nn.Linear(inputs + width, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.coord_mlp = None
        if moves:
            self.coord_mlp = nn.Sequential(
                nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1, bias=False), nn.Tanh()
            )

    def forward(self, state: NodeState, features: None, geometry: Geometry) -> NodeState:
        """The state after this convolution; its tensors are how far atoms have moved [Å]."""
        nodes, moved = state
        now = geometry if moved is None else geometry.moved(moved)
        read = [geometry.of_sender(nodes), geometry.of_receiver(nodes), now.lengths]
        messages = self.edge_mlp(torch.cat(read, dim=1))
        if self.coord_mlp is not None:
            pushes = now.vectors / (now.lengths + 1.0) * self.coord_mlp(messages)
            total = sum_by(pushes, geometry.sender, geometry.n_atoms)
            number = sum_by(torch.ones_like(now.lengths), geometry.sender, geometry.n_atoms)
            step = total / number.clamp(min=1.0)
            moved = step if moved is None else moved + step
        received = sum_by(messages, geometry.sender, geometry.n_atoms)
        return NodeState(self.node_mlp(torch.cat([nodes, received], dim=1)), moved)


class EGNN(HydraGNNStack):
    """EGNN on the length as one number."""

    properties = _with_lengths("equivariance", vectors="request")
    normalised = False

    def maker(
        self, architecture: Architecture, statistics: DatasetStatistics
    ) -> Callable[[int, int, bool], nn.Module]:
        """Makes a convolution."""
        moves = architecture.equivariance
        return lambda inputs, width, last: EGNNConvolution(inputs, width, moves=moves and not last)


class PainnMessage(nn.Module):
    """PaiNN's message block on sines of the length; vectors are divided by it once more."""

    def __init__(self, inputs: int, radial: int, cutoff: float) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.radial = radial
        self.scalar_message_mlp = nn.Sequential(
            nn.Linear(inputs, inputs), nn.SiLU(), nn.Linear(inputs, 3 * inputs)
        )
        self.filter_layer = nn.Linear(radial, 3 * inputs)

    def forward(self, scalars: Tensor, vectors: Tensor, geometry: Geometry) -> NodeState:
        """Scalars [n_atoms, inputs] and vectors [n_atoms, 3, inputs] with what is received."""
        filters = self.filter_layer(_sines(geometry, self.radial, self.cutoff))
        filters = filters * cosine_envelope(geometry.lengths, self.cutoff)
        sent = filters * geometry.of_receiver(self.scalar_message_mlp(scalars))
        turned, straight, plain = sent.chunk(3, dim=1)
        direction = (geometry.directions / geometry.lengths)[:, :, None]
        messages = geometry.of_receiver(vectors) * turned[:, None] + straight[:, None] * direction
        sender, n = geometry.sender, geometry.n_atoms
        return NodeState(scalars + sum_by(plain, sender, n), vectors + sum_by(messages, sender, n))


class PainnUpdate(nn.Module):
    """PaiNN's update block; the last one leaves the vectors as they are."""

    def __init__(self, inputs: int, *, last: bool) -> None:
        super().__init__()
        self.update_U = nn.Linear(inputs, inputs, bias=False)
        self.update_V = nn.Linear(inputs, inputs, bias=False)
        self.last = last
        self.update_mlp = nn.Sequential(
            nn.Linear(2 * inputs, inputs), nn.SiLU(), nn.Linear(inputs, (2 if last else 3) * inputs)
        )

    def forward(self, state: NodeState) -> NodeState:
        """The state after this block."""
        scalars, vectors = state
        assert vectors is not None
        left, right = self.update_U(vectors), self.update_V(vectors)
        # Vectors are zero on ideal lattices, where the root alone has no slope.
        norms = (right.square().sum(dim=1) + 1e-20).sqrt()
        gates = self.update_mlp(torch.cat([norms, scalars], dim=1))
        *turning, product, plain = gates.chunk(2 if self.last else 3, dim=1)
        new = scalars + product * (left * right).sum(dim=1) + plain
        return NodeState(new, vectors + turning[0][:, None] * left if turning else vectors)


class VectorConvolution(nn.Module):
    """A message block, an update block, and maps of scalars and vectors to the next width."""

    def __init__(self, message: nn.Module, inputs: int, width: int, *, last: bool) -> None:
        super().__init__()
        self.message = message
        self.update = PainnUpdate(inputs, last=last)
        self.scalars = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width))
        self.vectors = None if last else nn.Linear(inputs, width, bias=False)

    def forward(self, state: NodeState, features: None, geometry: Geometry) -> NodeState:
        """The state after this convolution; its tensors are vectors [n_atoms, 3, width]."""
        scalars, vectors = state
        if vectors is None:
            vectors = scalars.new_zeros((len(scalars), 3, scalars.shape[1]))
        scalars, vectors = self.update(self.message(scalars, vectors, geometry))
        new = None if self.vectors is None else self.vectors(vectors)
        return NodeState(self.scalars(scalars), new)


class PAINN(HydraGNNStack):
    """PaiNN's blocks."""

    properties = _with_lengths("num_radial", vectors="always")
    normalised = False

    def maker(
        self, architecture: Architecture, statistics: DatasetStatistics
    ) -> Callable[[int, int, bool], nn.Module]:
        """Makes a convolution."""
        radial, cutoff = architecture.num_radial, statistics.cutoff
        return lambda inputs, width, last: VectorConvolution(
            PainnMessage(inputs, radial, cutoff), inputs, width, last=last
        )


class PNAEqMessage(nn.Module):
    """A message block whose scalars are aggregated as PNA does, at the sender of an edge."""

    def __init__(self, inputs: int, radial: int, cutoff: float) -> None:
        super().__init__()
        self.radial, self.cutoff = radial, cutoff
        scalers = [*_SCALERS, "inverse_linear"]
        self.aggr_module = DegreeScalerAggregation(_AGGREGATORS, scalers, torch.tensor([0, 1]))
        self.pre_nns = nn.ModuleList([nn.Sequential(nn.Linear(3 * inputs, inputs))])
        aggregates = (len(_AGGREGATORS) * len(scalers) + 1) * inputs
        self.post_nns = nn.ModuleList([nn.Sequential(nn.Linear(aggregates, inputs))])
        self.rbf_emb = nn.Sequential(nn.Linear(radial, inputs), nn.Tanh())
        self.rbf_lin = nn.Linear(radial, 3 * inputs, bias=False)
        self.scalar_message_mlp = nn.Sequential(
            *(nn.Linear(inputs, inputs), nn.Tanh()),
            *(nn.Linear(inputs, inputs), nn.SiLU(), nn.Linear(inputs, 3 * inputs)),
        )

    def forward(self, scalars: Tensor, vectors: Tensor, geometry: Geometry) -> NodeState:
        """Scalars [n_atoms, inputs] and vectors [n_atoms, 3, inputs] with what is received."""
        radial = _sines(geometry, self.radial, self.cutoff)
        radial = radial * cosine_envelope(geometry.lengths, self.cutoff)
        read = [geometry.of_sender(scalars), geometry.of_receiver(scalars), self.rbf_emb(radial)]
        messages = self.scalar_message_mlp(self.pre_nns[0](torch.cat(read, dim=1)))
        turned, straight, plain = (messages * self.rbf_lin(radial)).chunk(3, dim=1)
        pushed = geometry.of_receiver(vectors) * turned[:, None]
        pushed = pushed + straight[:, None] * geometry.directions[:, :, None]
        sender, n = geometry.sender, geometry.n_atoms
        aggregates = self.aggr_module(plain, sender, dim_size=n, dim=0)
        new = scalars + self.post_nns[0](torch.cat([scalars, aggregates], dim=1))
        return NodeState(new, vectors + sum_by(pushed, sender, n))


class PNAEq(HydraGNNStack):
    """PaiNN's blocks with PNA's aggregation."""

    properties = _with_lengths("num_radial", vectors="always")
    normalised = False

    def maker(
        self, architecture: Architecture, statistics: DatasetStatistics
    ) -> Callable[[int, int, bool], nn.Module]:
        """Makes a convolution."""
        radial, cutoff = architecture.num_radial, statistics.cutoff
        return lambda inputs, width, last: VectorConvolution(
            PNAEqMessage(inputs, radial, cutoff), inputs, width, last=last
        )


def _sines(geometry: Geometry, number: int, cutoff: float) -> Tensor:
    """Sines of the lengths divided by them [n_edges, number], in 1/Å."""
    lengths = geometry.lengths
    waves = torch.arange(1, number + 1, device=lengths.device, dtype=lengths.dtype)
    return torch.sin(lengths * waves * (torch.pi / cutoff)) / lengths


class GATConvolution(nn.Module):
    """Six heads that average the neighbours and the atom itself by attention.

    An atom's own periodic images are left out. The last layer takes the mean of its heads, the
    others have them side by side.
    """

    def __init__(self, inputs: int, width: int, dropout: float, *, last: bool) -> None:
        super().__init__()
        self.last = last
        self.lin_l = nn.Linear(inputs, HEADS * width)
        self.lin_r = nn.Linear(inputs, HEADS * width)
        self.att = nn.Parameter(torch.empty(1, HEADS, width))
        nn.init.normal_(self.att, std=width**-0.5)
        self.bias = nn.Parameter(torch.zeros(width if last else HEADS * width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, state: NodeState, features: None, geometry: Geometry) -> NodeState:
        """The state after this convolution."""
        by_head = (-1, *self.att.shape[1:])
        values = self.lin_l(state.scalars).view(by_head)
        asking = self.lin_r(state.scalars).view(by_head)
        logits = self._logits(geometry.of_sender(values) + geometry.of_receiver(asking))
        image = (geometry.sender == geometry.receiver)[:, None]
        logits = logits.masked_fill(image, -torch.inf)
        own_logits = self._logits(values + asking)
        index = geometry.receiver[:, None].expand_as(logits)
        peak = own_logits.detach().scatter_reduce(0, index, logits.detach(), "amax")
        weights, own = (logits - geometry.of_receiver(peak)).exp(), (own_logits - peak).exp()
        total = geometry.sum_at_receiver(weights) + own
        weights, own = (
            self.dropout(weights / geometry.of_receiver(total)),
            self.dropout(own / total),
        )
        new = geometry.sum_at_receiver(weights[:, :, None] * geometry.of_sender(values))
        new = new + own[:, :, None] * values
        return NodeState((new.mean(dim=1) if self.last else new.flatten(1)) + self.bias)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Attention before the softmax [n, heads], from [n, heads, width]."""
        return (functional.leaky_relu(hidden, NEGATIVE_SLOPE) * self.att).sum(dim=2)


class GAT(HydraGNNStack):
    """Attention over connections, in layers as wide as all heads; at least two of them."""

    properties = _blind("dropout")

    def build(
        self, architecture: Architecture, statistics: DatasetStatistics, inputs: int, depth: int
    ) -> Iterator[Layer]:
        """Makes the layers."""
        width, name = architecture.hidden_dim, architecture.activation_function
        depth = max(depth, 2)
        for layer in range(depth):
            last = layer == depth - 1
            read = HEADS * width if layer else inputs
            convolution = GATConvolution(read, width, architecture.dropout, last=last)
            wide = width if last else HEADS * width
            yield Layer(convolution, wide, name, read, normalised=True)
