"""GAT beside PyG's, and the sums over neighbours it is made of."""

import pytest
import torch
from geometry_cases import clusters
from torch_geometric.nn import GATv2Conv

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels.neighbour_sums import neighbour_sums
from hydragnn_flow.models.mpnn.gat import HEADS, NEGATIVE_SLOPE, GATConvolution, GATEdges
from hydragnn_flow.testing.networks import alloy, as_batch


def test_as_pygs():
    geometry = clusters()
    torch.manual_seed(0)
    ours = GATConvolution(5, 0, 0.0, fades=False).double()
    theirs = GATv2Conv(5, 5, heads=HEADS, negative_slope=NEGATIVE_SLOPE).double()
    with torch.no_grad():
        ours.sender.bias.normal_()
        theirs.lin_l.load_state_dict(ours.sender.state_dict())
        theirs.lin_r.weight.copy_(ours.receiver.weight)
        theirs.lin_r.bias.zero_()
        theirs.bias.zero_()
        theirs.att.copy_(ours.attention)
    nodes = torch.randn(geometry.n_atoms, 5).double()
    features = GATEdges(None, neighbour_sums(geometry, HEADS))
    edges = torch.stack([geometry.sender, geometry.receiver])
    torch.testing.assert_close(ours(nodes, features, geometry), ours.join(theirs(nodes, edges)))


def test_large_attentions_do_not_overflow():
    geometry = clusters()
    torch.manual_seed(0)
    layer = GATConvolution(5, 0, 0.0, fades=True).double()
    with torch.no_grad():
        layer.attention *= 1e4
    nodes = torch.randn(geometry.n_atoms, 5).double()
    features = GATEdges(None, neighbour_sums(geometry, HEADS))
    assert layer(nodes, features, geometry).isfinite().all()


def test_dropout_is_of_training_alone(make):
    model, batch = make("GAT", potential=False, dropout=0.5), as_batch(alloy())
    assert not torch.equal(model(batch)["gap"], model(batch)["gap"])
    model.eval()
    assert torch.equal(model(batch)["gap"], model(batch)["gap"])


@pytest.mark.parametrize("heads", [1, 3])
def test_sums_over_neighbours_and_their_derivatives(heads):
    geometry = clusters()
    generator = torch.Generator().manual_seed(0)
    shuffled = torch.randperm(len(geometry.sender), generator=generator)[:40]
    some = Geometry(
        geometry.sender[shuffled],
        geometry.receiver[shuffled],
        geometry.vectors[shuffled],
        geometry.cutoff,
        geometry.graph,
        geometry.n_graphs,
    )
    bags = neighbour_sums(some, heads)
    values = torch.randn(some.n_atoms, heads, 2, generator=generator).double().requires_grad_()
    weights = torch.randn(40, heads, generator=generator).double().requires_grad_()

    def plain(values, weights):
        return some.sum_at_receiver(some.of_sender(values) * weights[:, :, None])

    torch.testing.assert_close(bags.weighted_sum(values, weights), plain(values, weights))
    assert torch.autograd.gradcheck(bags.weighted_sum, (values, weights))
    assert torch.autograd.gradgradcheck(bags.weighted_sum, (values, weights))
    if heads == 1:
        ones = torch.ones(40, 1).double()
        torch.testing.assert_close(bags.sum(values[:, 0]), plain(values, ones)[:, 0])
        assert torch.autograd.gradcheck(bags.sum, (values[:, 0],))
