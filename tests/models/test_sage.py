"""SAGE beside PyG's."""

import torch
from geometry_cases import clusters
from torch_geometric.nn import SAGEConv


def test_as_pygs(make):
    geometry = clusters()
    stack = make("SAGE", potential=False).double().encoder.layers
    ours = stack.layers[0].convolution
    theirs = SAGEConv(12, 12).double()
    with torch.no_grad():
        theirs.lin_l.weight.copy_(ours.mix.weight[:, :12])
        theirs.lin_r.weight.copy_(ours.mix.weight[:, 12:])
        theirs.lin_l.bias.copy_(ours.mix.bias)
    nodes = torch.randn(geometry.n_atoms, 12).double()
    edges = torch.stack([geometry.sender, geometry.receiver])
    found = ours(nodes, stack.edge_features(geometry), geometry)
    torch.testing.assert_close(found, theirs(nodes, edges))
