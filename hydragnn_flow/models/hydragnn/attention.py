"""HydraGNN's graph attention."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.config.network.mpnn_types import Properties
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.hydragnn.stack import HydraGNNStack, Layer, Options
from hydragnn_flow.models.mpnn.base import DatasetStatistics, NodeState
from hydragnn_flow.models.mpnn.gat import HEADS, NEGATIVE_SLOPE


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

    properties = Properties(lengths="never", keys=("dropout",), options=Options)

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
