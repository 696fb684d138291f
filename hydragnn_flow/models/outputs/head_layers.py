"""Layers of heads: one class for each kind of HydraGNN's `output_heads`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
from torch import Tensor, nn

from hydragnn_flow.config.network import GraphHead, NodeHead
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.activation import activation, hidden_layers
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn import MessagePassing


@dataclass(frozen=True)
class HeadContext:
    """Properties of the network that heads depend on.

    Attributes
    ----------
    width
        Width of the input features.
    activation
        HydraGNN's name of the activation.
    places
        Number of atoms in every graph; None if graphs differ.
    convolutions
        Function that makes message-passing layers of the network's type, from width and depth.
    """

    width: int
    activation: str
    places: int | None
    convolutions: Callable[[int, int], MessagePassing]


class BranchHeads(nn.Module):
    """Heads of one branch at one level; they share the computation in :meth:`prepare`.

    Attributes
    ----------
    heads
        Head of each output, which ends in a linear layer.
    """

    heads: nn.ModuleList

    def prepare(self, features: Tensor, geometry: Geometry) -> Tensor:
        """Compute the common input of all heads."""
        return features

    def forward(self, features: Tensor, geometry: Geometry) -> list[Tensor]:
        """Compute each output [n, d] from features [n, width]."""
        prepared = self.prepare(features, geometry)
        return [head(prepared) for head in self.heads]


class GraphHeads(BranchHeads):
    """Perceptrons of graph outputs, after layers that they share."""

    def __init__(self, head: GraphHead, dims: Sequence[int], context: HeadContext) -> None:
        super().__init__()
        widths = [context.width] + [head.dim_sharedlayers] * head.num_sharedlayers
        self.shared = hidden_layers(widths, context.activation)
        self.heads = _perceptrons(head, widths[-1], dims, context.activation)

    def prepare(self, features: Tensor, geometry: Geometry) -> Tensor:
        """Compute features after the shared layers."""
        shared: Tensor = self.shared(features)
        return shared


class NodeHeads(BranchHeads):
    """Perceptrons of node outputs, the same for every atom."""

    def __init__(self, head: NodeHead, dims: Sequence[int], context: HeadContext) -> None:
        super().__init__()
        self.heads = _perceptrons(head, context.width, dims, context.activation)


class ConvolutionHeads(BranchHeads):
    """Message-passing layers of the network's type, then a linear map for each output.

    HydraGNN ends in a message-passing layer as wide as the output, so one to three numbers are a
    bottleneck for messages. Here the layers keep their width.
    """

    def __init__(self, head: NodeHead, dims: Sequence[int], context: HeadContext) -> None:
        super().__init__()
        width = context.width
        steps: list[nn.Module] = []
        for wide, group in groupby(_hidden(head)):
            steps.append(nn.Identity() if wide == width else nn.Linear(width, wide))
            # Consecutive layers of one width form a stack, which reads the edges once.
            steps.append(context.convolutions(wide, len(list(group))))
            width = wide
        self.steps = nn.ModuleList(steps)
        self.heads = nn.ModuleList(nn.Sequential(nn.Linear(width, dim)) for dim in dims)

    def prepare(self, features: Tensor, geometry: Geometry) -> Tensor:
        """Compute node features after the message-passing layers."""
        for step in self.steps:
            features = (
                step(features, geometry) if isinstance(step, MessagePassing) else step(features)
            )
        return features


class PlaceHeads(BranchHeads):
    """Perceptrons for each position in graphs of equal size with a meaningful order of atoms."""

    def __init__(self, head: NodeHead, dims: Sequence[int], context: HeadContext) -> None:
        super().__init__()
        assert context.places is not None  # checked by head_context
        self.places = context.places
        widths = [context.width, *_hidden(head)]
        self.heads = nn.ModuleList()
        for dim in dims:
            layers: list[nn.Module] = []
            for wide, narrow in pairwise(widths):
                layers += [PlaceLinear(self.places, wide, narrow), activation(context.activation)]
            self.heads.append(nn.Sequential(*layers, PlaceLinear(self.places, widths[-1], dim)))

    def prepare(self, features: Tensor, geometry: Geometry) -> Tensor:
        """Return features by position, [places, n_graphs, width].

        Raises
        ------
        InputError
            If a graph has another number of atoms. On an accelerator only the total is checked,
            because the host would have to wait for more.
        """
        if geometry.graph.device.type != "meta":
            self._check(geometry)
        # The batch of average size whose cost is counted may not consist of whole graphs.
        elif missing := -geometry.n_atoms % self.places:
            features = torch.cat([features, features.new_empty((missing, features.shape[1]))])
        return features.view(-1, self.places, features.shape[1]).transpose(0, 1)

    def forward(self, features: Tensor, geometry: Geometry) -> list[Tensor]:
        """Compute each output [n, d] from features [n, width]."""
        by_place = super().forward(features, geometry)
        return [output.transpose(0, 1).flatten(0, 1)[: geometry.n_atoms] for output in by_place]

    def _check(self, geometry: Geometry) -> None:
        fits = geometry.n_atoms == geometry.n_graphs * self.places
        if fits and geometry.graph.device.type == "cpu":
            expected = torch.arange(geometry.n_graphs).repeat_interleave(self.places)
            fits = torch.equal(geometry.graph, expected)
        if not fits:
            raise InputError(
                f"the node heads of type 'mlp_per_node' were trained on graphs of {self.places} "
                f"atoms and take no others; leave them out"
            )


class PlaceLinear(nn.Module):
    """Linear layers for all positions in one product.

    Weights are drawn like those of :func:`~hydragnn_flow.models.build_model`'s linear layers.
    """

    def __init__(self, places: int, wide: int, narrow: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(places, wide, narrow) * wide**-0.5)
        self.bias = nn.Parameter(torch.zeros(places, 1, narrow))

    def forward(self, features: Tensor) -> Tensor:
        """Map [places, n_graphs, wide] to [places, n_graphs, narrow]."""
        return torch.baddbmm(self.bias, features, self.weight)


_NODE_HEADS: dict[str, Callable[[NodeHead, Sequence[int], HeadContext], BranchHeads]] = {
    "mlp": NodeHeads,
    "mlp_per_node": PlaceHeads,
    "conv": ConvolutionHeads,
}


def make_heads(
    head: GraphHead | NodeHead, dims: Sequence[int], context: HeadContext
) -> BranchHeads:
    """Return the heads of one branch, for outputs with ``dims`` components."""
    if isinstance(head, GraphHead):
        return GraphHeads(head, dims, context)
    return _NODE_HEADS[head.type](head, dims, context)


def _hidden(head: GraphHead | NodeHead) -> tuple[int, ...]:
    return tuple(head.dim_headlayers[: head.num_headlayers])


def _perceptrons(
    head: GraphHead | NodeHead, width: int, dims: Sequence[int], name: str
) -> nn.ModuleList:
    widths = [width, *_hidden(head)]
    return nn.ModuleList(
        nn.Sequential(*hidden_layers(widths, name), nn.Linear(widths[-1], dim)) for dim in dims
    )
