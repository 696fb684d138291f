"""HydraGNN's layers of scalars and of vectors that turn with the frame: PaiNN's blocks."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.config.network.mpnn_types import Properties
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.hydragnn.pna import SCALERS, PNAMaps
from hydragnn_flow.models.hydragnn.stack import HydraGNNStack, Maker, Options
from hydragnn_flow.models.mpnn.base import DatasetStatistics, NodeState


class PainnMessage(nn.Module):
    """PaiNN's message block on sines of the length; vectors are divided by it once more."""

    def __init__(self, inputs: int, radial: int) -> None:
        super().__init__()
        self.scalar_message_mlp = nn.Sequential(
            nn.Linear(inputs, inputs), nn.SiLU(), nn.Linear(inputs, 3 * inputs)
        )
        self.filter_layer = nn.Linear(radial, 3 * inputs)

    def forward(
        self, scalars: Tensor, vectors: Tensor, sines: Tensor, geometry: Geometry
    ) -> NodeState:
        """Scalars [n_atoms, inputs] and vectors [n_atoms, 3, inputs] with what is received."""
        filters = self.filter_layer(sines) * geometry.envelope
        sent = filters * geometry.of_receiver(self.scalar_message_mlp(scalars))
        turned, straight, plain = sent.chunk(3, dim=1)
        direction = (geometry.directions / geometry.lengths)[:, :, None]
        pushes = geometry.of_receiver(vectors) * turned[:, None] + straight[:, None] * direction
        new = scalars + geometry.sum_at_sender(plain)
        return NodeState(new, vectors + geometry.sum_at_sender(pushes))


class PNAEqMessage(PNAMaps):
    """A message block whose scalars are aggregated as PNA does, at the sender of an edge."""

    def __init__(self, inputs: int, radial: int) -> None:
        super().__init__(inputs, inputs, parts=3, scalers=(*SCALERS, "inverse_linear"))
        self.rbf_emb = nn.Sequential(nn.Linear(radial, inputs), nn.Tanh())
        self.rbf_lin = nn.Linear(radial, 3 * inputs, bias=False)
        self.scalar_message_mlp = nn.Sequential(
            *(nn.Linear(inputs, inputs), nn.Tanh()),
            *(nn.Linear(inputs, inputs), nn.SiLU(), nn.Linear(inputs, 3 * inputs)),
        )

    def forward(
        self, scalars: Tensor, vectors: Tensor, sines: Tensor, geometry: Geometry
    ) -> NodeState:
        """Scalars [n_atoms, inputs] and vectors [n_atoms, 3, inputs] with what is received."""
        radial = sines * geometry.envelope
        read = [geometry.of_sender(scalars), geometry.of_receiver(scalars), self.rbf_emb(radial)]
        sent = self.scalar_message_mlp(self.messages(read)) * self.rbf_lin(radial)
        turned, straight, plain = sent.chunk(3, dim=1)
        direction = geometry.directions[:, :, None]
        pushes = geometry.of_receiver(vectors) * turned[:, None] + straight[:, None] * direction
        new = scalars + self.aggregated(scalars, plain, geometry.sender)
        return NodeState(new, vectors + geometry.sum_at_sender(pushes))


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

    def forward(self, state: NodeState, features: Tensor, geometry: Geometry) -> NodeState:
        """The state after this convolution; its tensors are vectors [n_atoms, 3, width]."""
        scalars, vectors = state
        if vectors is None:
            vectors = scalars.new_zeros((len(scalars), 3, scalars.shape[1]))
        scalars, vectors = self.update(self.message(scalars, vectors, features, geometry))
        new = None if self.vectors is None else self.vectors(vectors)
        return NodeState(self.scalars(scalars), new)


class VectorStack(HydraGNNStack):
    """Base of the types with vectors, which differ in their message blocks."""

    properties = Properties(
        lengths="always", vectors="always", keys=("num_radial",), options=Options
    )
    normalised = False
    message: ClassVar[type[PainnMessage | PNAEqMessage]]

    def maker(self, architecture: Architecture, statistics: DatasetStatistics) -> Maker:
        """What makes the convolutions of the layers."""
        self.radial = architecture.num_radial
        return lambda inputs, width, last: VectorConvolution(
            self.message(inputs, self.radial), inputs, width, last=last
        )

    def edge_features(self, geometry: Geometry) -> Tensor:
        """Sines of the lengths divided by them [n_edges, num_radial], in 1/Å."""
        lengths = geometry.lengths
        waves = torch.arange(1, self.radial + 1, device=lengths.device, dtype=lengths.dtype)
        return torch.sin(lengths * waves * (torch.pi / geometry.cutoff)) / lengths


class PAINN(VectorStack):
    """PaiNN's blocks."""

    message = PainnMessage


class PNAEq(VectorStack):
    """PaiNN's blocks with PNA's aggregation."""

    message = PNAEqMessage
