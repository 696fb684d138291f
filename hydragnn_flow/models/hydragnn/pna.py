"""HydraGNN's PNA: several aggregates of messages, scaled by the number of neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch_geometric.nn.aggr import DegreeScalerAggregation
from torch_geometric.nn.models.dimenet import BesselBasisLayer

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.config.network.mpnn_types import Properties
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.hydragnn.stack import HydraGNNStack, Maker, Options
from hydragnn_flow.models.mpnn.base import DatasetStatistics, NodeState

_AGGREGATORS = ["mean", "min", "max", "std"]
SCALERS = ("identity", "amplification", "attenuation", "linear")
"""What aggregates are scaled by, functions of the number of neighbours."""


class PNAMaps(nn.Module):
    """A map to messages, their scaled aggregates, and a map of these and the atom's features.

    Parameters
    ----------
    inputs, width
        Of the features that come in and go out.
    parts
        Number of those that a message is a map of, each as wide as the features that come in.
    scalers
        What aggregates are scaled by.
    """

    def __init__(
        self, inputs: int, width: int, parts: int, scalers: Sequence[str] = SCALERS
    ) -> None:
        super().__init__()
        # Means over its data's numbers of neighbours, which are buffers and come with the weights.
        self.aggr_module = DegreeScalerAggregation(
            _AGGREGATORS, list(scalers), torch.tensor([0, 1])
        )
        aggregates = len(_AGGREGATORS) * len(scalers)
        # Lists of one, as HydraGNN has them.
        self.pre_nns = nn.ModuleList([nn.Sequential(nn.Linear(parts * inputs, inputs))])
        self.post_nns = nn.ModuleList([nn.Sequential(nn.Linear((aggregates + 1) * inputs, width))])

    def messages(self, parts: list[Tensor]) -> Tensor:
        """Messages [n_edges, inputs] from the parts, each [n_edges, inputs]."""
        messages: Tensor = self.pre_nns[0](torch.cat(parts, dim=1))
        return messages

    def aggregated(self, nodes: Tensor, messages: Tensor, index: Tensor) -> Tensor:
        """New features [n_atoms, width] where each atom aggregates the messages of its index."""
        aggregates = self.aggr_module(messages, index, dim_size=len(nodes), dim=0)
        new: Tensor = self.post_nns[0](torch.cat([nodes, aggregates], dim=1))
        return new


class PNAConvolution(PNAMaps):
    """Four aggregates of messages, scaled in four ways by the number of neighbours.

    Parameters
    ----------
    inputs, width
        Of the features that come in and go out.
    radial
        Functions of the length that messages also read and are multiplied by a map of; none if 0.
    """

    def __init__(self, inputs: int, width: int, radial: int = 0) -> None:
        super().__init__(inputs, width, parts=3 if radial else 2)
        self.lin = nn.Linear(width, width)
        self.rbf_lin = nn.Linear(radial, inputs, bias=False) if radial else None
        self.rbf_emb = nn.Sequential(nn.Linear(radial, inputs), nn.ReLU()) if radial else None

    def forward(self, state: NodeState, features: Tensor | None, geometry: Geometry) -> NodeState:
        """The state after this convolution."""
        nodes = state.scalars
        read = [geometry.of_receiver(nodes), geometry.of_sender(nodes)]
        if self.rbf_emb is not None:
            read.append(self.rbf_emb(features))
        messages = self.messages(read)
        if self.rbf_lin is not None:
            messages = messages * self.rbf_lin(features)
        return NodeState(self.lin(self.aggregated(nodes, messages, geometry.receiver)))


class PNA(HydraGNNStack):
    """PNA over connections."""

    properties = Properties(lengths="never", options=Options)

    def maker(self, architecture: Architecture, statistics: DatasetStatistics) -> Maker:
        """What makes the convolutions of the layers."""
        return lambda inputs, width, last: PNAConvolution(inputs, width)


class PNAPlus(HydraGNNStack):
    """PNA whose messages read Bessel functions of the length and are multiplied by them."""

    properties = Properties(
        lengths="always", keys=("num_radial", "envelope_exponent"), options=Options
    )

    def maker(self, architecture: Architecture, statistics: DatasetStatistics) -> Maker:
        """What makes the convolutions of the layers."""
        radial = architecture.num_radial
        self.rbf = BesselBasisLayer(radial, statistics.cutoff, architecture.envelope_exponent)
        return lambda inputs, width, last: PNAConvolution(inputs, width, radial)

    def edge_features(self, geometry: Geometry) -> Tensor:
        """Bessel functions of the lengths [n_edges, num_radial]."""
        radial: Tensor = self.rbf(geometry.lengths.squeeze(1))
        return radial
