"""Conditioning of node features on graph features, such as a temperature or a charge.

The modes are HydraGNN's. There the layers are created with the first batch, too late for the
optimiser to know their parameters; here they are part of the model from the beginning.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hydragnn_flow.models.activation import activation
from hydragnn_flow.models.edge_functions import without_autocast
from hydragnn_flow.models.geometry import Geometry


class Join(nn.Module):
    """Linear map of features and those of their graph: modes concat_node and fuse_pool.

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
        """Compute new node features [n_atoms, width]."""
        # Nothing else reaches the next layer: bfloat16 would round the sums of earlier ones.
        with without_autocast(nodes.device.type):
            joined: Tensor = self.own(nodes) + _of_atoms(self.of_graph, geometry)
        return joined

    def pooled(self, features: Tensor, geometry: Geometry) -> Tensor:
        """Compute new features by graph, [n_graphs, width]."""
        with without_autocast(features.device.type):
            joined: Tensor = self.own(features) + self.of_graph(geometry.graph_attr)
        return joined


class FiLM(nn.Module):
    """Scale and shift of node features by those of their graph. Perez et al., arXiv:1709.07871.

    Parameters
    ----------
    width, size
        The same as for :class:`Join`.
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
        """Compute new node features [n_atoms, width]."""
        scale, shift = _of_atoms(self.modulation, geometry).chunk(2, dim=1)
        # A scale in (0, 2) neither flips the sign of features nor lets them grow with depth.
        return nodes * (1.0 + torch.tanh(scale)) + shift


def _of_atoms(layer: nn.Module, geometry: Geometry) -> Tensor:
    """Return the output of a layer on the graphs' features, for each atom."""
    of_graph: Tensor = layer(geometry.graph_attr)
    return of_graph.index_select(0, geometry.graph)
