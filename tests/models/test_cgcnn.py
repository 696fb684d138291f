"""CGCNN beside PyG's."""

import pytest
import torch
from geometry_cases import clusters
from torch_geometric.nn import CGConv

from hydragnn_flow.models.edge_functions import EdgeFunctions
from hydragnn_flow.models.mpnn.cgcnn import CGConvolution


@pytest.mark.parametrize("features", [0, 3])
def test_as_pygs(features):
    geometry = clusters()
    torch.manual_seed(0)
    ours = CGConvolution(6, features, 1.0, fades=False).double()
    theirs = CGConv(6, dim=features).double()
    parts = [ours.receiver.weight, ours.sender.weight]
    parts += [] if ours.edge is None else [ours.edge.weight]
    with torch.no_grad():
        gate, passing = torch.cat(parts, dim=1).chunk(2)
        theirs.lin_f.weight.copy_(gate)
        theirs.lin_s.weight.copy_(passing)
        theirs.lin_f.bias.copy_(ours.receiver.bias[:6])
        theirs.lin_s.bias.copy_(ours.receiver.bias[6:])
    nodes = torch.randn(geometry.n_atoms, 6).double()
    of_edges = torch.randn(len(geometry.sender), features).double()
    edges = torch.stack([geometry.sender, geometry.receiver])
    expected = theirs(nodes, edges, of_edges if features else None)
    functions = EdgeFunctions(of_edges, None, None) if features else None
    torch.testing.assert_close(ours(nodes, functions, geometry), expected)


def test_is_as_wide_as_asked(make):
    """HydraGNN makes it as wide as its input, here one column."""
    layer = make("CGCNN", potential=False, hidden_dim=20).encoder.layers.layers[0].convolution
    assert layer.sender.in_features == 20
