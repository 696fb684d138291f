"""GIN beside PyG's."""

import torch
from geometry_cases import clusters
from torch_geometric.nn import GINConv

from hydragnn_flow.models.kernels.neighbour_sums import neighbour_sums
from hydragnn_flow.models.mpnn.gin import GINConvolution


def test_as_pygs():
    geometry = clusters()
    torch.manual_seed(0)
    ours = GINConvolution(6, "relu", 1.0).double()
    with torch.no_grad():
        ours.epsilon.fill_(0.3)
    theirs = GINConv(ours.perceptron, eps=0.3)
    nodes = torch.randn(geometry.n_atoms, 6).double()
    edges = torch.stack([geometry.sender, geometry.receiver])
    torch.testing.assert_close(
        ours(nodes, neighbour_sums(geometry), geometry), theirs(nodes, edges)
    )


def test_sums_are_scaled_to_the_usual_number_of_neighbours():
    """Those of a dense crystal would otherwise drown the atom's own features."""
    geometry = clusters()
    torch.manual_seed(0)
    layer = GINConvolution(6, "relu", 16.0)
    layer.perceptron = torch.nn.Sequential()
    nodes = torch.ones(geometry.n_atoms, 6)
    expected = 1.0 + geometry.degree / 4.0
    found = layer(nodes, neighbour_sums(geometry), geometry)
    torch.testing.assert_close(found, expected.float().expand(-1, 6))
