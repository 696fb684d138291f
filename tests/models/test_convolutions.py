"""Convolutions beside PyG's, and the sums over neighbours that they are made of."""

from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch_geometric.nn import CGConv, GATv2Conv, GINConv, MFConv, SAGEConv

from hydragnn_flow.models.kernels import multilinear
from hydragnn_flow.models.kernels.neighbour_sums import filtered_sum, neighbour_sums, outer_sum
from hydragnn_flow.models.layers import EdgeFunctions
from hydragnn_flow.models.mpnn.cgcnn import CGConvolution
from hydragnn_flow.models.mpnn.gat import HEADS, NEGATIVE_SLOPE, GATConvolution, GATEdges
from hydragnn_flow.models.mpnn.gin import GINConvolution
from hydragnn_flow.models.mpnn.mfc import BLOCK, MFCEdges, MFConvolution, degree_classes


@pytest.fixture
def edges(clusters):
    """As PyG writes them."""
    return torch.stack([clusters.sender, clusters.receiver])


@pytest.mark.parametrize("features", [0, 3])
def test_cgcnn_is_as_pygs(features, clusters, edges):
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
    nodes = torch.randn(clusters.n_atoms, 6).double()
    of_edges = torch.randn(len(clusters.sender), features).double()
    expected = theirs(nodes, edges, of_edges if features else None)
    functions = EdgeFunctions(of_edges, None, None) if features else None
    torch.testing.assert_close(ours(nodes, functions, clusters), expected)


def test_cgcnn_is_as_wide_as_asked(make):
    """HydraGNN makes it as wide as its input, here one column."""
    layer = make("CGCNN", potential=False, hidden_dim=20).encoder.layers.layers[0].convolution
    assert layer.sender.in_features == 20


def test_gin_is_as_pygs(clusters, edges):
    ours = GINConvolution(6, "relu", 1.0).double()
    with torch.no_grad():
        ours.epsilon.fill_(0.3)
    theirs = GINConv(ours.perceptron, eps=0.3)
    nodes = torch.randn(clusters.n_atoms, 6).double()
    torch.testing.assert_close(
        ours(nodes, neighbour_sums(clusters), clusters), theirs(nodes, edges)
    )


def test_sums_are_scaled_to_the_usual_number_of_neighbours(clusters):
    """Those of a dense crystal would otherwise drown the atom's own features."""
    layer = GINConvolution(6, "relu", 16.0)
    layer.perceptron = torch.nn.Sequential()
    nodes = torch.ones(clusters.n_atoms, 6)
    expected = 1.0 + clusters.degree / 4.0
    found = layer(nodes, neighbour_sums(clusters), clusters)
    torch.testing.assert_close(found, expected.float().expand(-1, 6))


def test_sage_is_as_pygs(make, clusters, edges):
    stack = make("SAGE", potential=False).double().encoder.layers
    ours = stack.layers[0].convolution
    theirs = SAGEConv(12, 12).double()
    with torch.no_grad():
        theirs.lin_l.weight.copy_(ours.mix.weight[:, :12])
        theirs.lin_r.weight.copy_(ours.mix.weight[:, 12:])
        theirs.lin_l.bias.copy_(ours.mix.bias)
    nodes = torch.randn(clusters.n_atoms, 12).double()
    found = ours(nodes, stack.edge_features(clusters), clusters)
    torch.testing.assert_close(found, theirs(nodes, edges))


def test_mfc_is_as_pygs(clusters, edges):
    degrees = neighbour_sums(clusters).degrees
    largest = int(degrees.max()) - 2  # so that some atoms share the last class
    assert len(set(degrees.clamp(max=largest).tolist())) > 2
    ours = MFConvolution(6, largest + 1, 1.0).double()
    theirs = MFConv(6, 6, max_degree=largest).double()
    with torch.no_grad():
        ours.bias.normal_()
        for degree in range(largest + 1):
            theirs.lins_l[degree].weight.copy_(ours.weight[degree, :6].t())
            theirs.lins_r[degree].weight.copy_(ours.weight[degree, 6:].t())
            theirs.lins_l[degree].bias.copy_(ours.bias[degree])
    nodes = torch.randn(clusters.n_atoms, 6).double()
    features = MFCEdges(neighbour_sums(clusters), degree_classes(degrees, 0, largest))
    torch.testing.assert_close(ours(nodes, features, clusters), theirs(nodes, edges))


@pytest.mark.parametrize("n_atoms", [0, BLOCK, 10 * BLOCK + 3])
def test_blocks_are_as_many_whatever_the_degrees(n_atoms):
    """Shapes that depended on the degrees would make the host wait for an accelerator."""
    various, alike = torch.randint(0, 9, (n_atoms,)), torch.full((n_atoms,), 3)
    one, other = (degree_classes(degrees, 2, 6) for degrees in (various, alike))
    assert len(set(one.places.tolist())) == n_atoms
    assert one.of_block.shape == other.of_block.shape


def test_classes_are_the_degrees_of_the_training_split(make):
    for most, largest in ((None, 16), (14, 14)):
        stack = make("MFC", potential=False, max_neighbours=most).encoder.layers
        assert (stack.smallest, stack.largest) == (12, largest)


def test_gat_is_as_pygs(clusters, edges):
    ours = GATConvolution(5, 0, 0.0, fades=False).double()
    theirs = GATv2Conv(5, 5, heads=HEADS, negative_slope=NEGATIVE_SLOPE).double()
    with torch.no_grad():
        ours.sender.bias.normal_()
        theirs.lin_l.load_state_dict(ours.sender.state_dict())
        theirs.lin_r.weight.copy_(ours.receiver.weight)
        theirs.lin_r.bias.zero_()
        theirs.bias.zero_()
        theirs.att.copy_(ours.attention)
    nodes = torch.randn(clusters.n_atoms, 5).double()
    features = GATEdges(None, neighbour_sums(clusters, HEADS))
    torch.testing.assert_close(ours(nodes, features, clusters), ours.join(theirs(nodes, edges)))


def test_large_attentions_do_not_overflow(clusters):
    layer = GATConvolution(5, 0, 0.0, fades=True).double()
    with torch.no_grad():
        layer.attention *= 1e4
    nodes = torch.randn(clusters.n_atoms, 5).double()
    features = GATEdges(None, neighbour_sums(clusters, HEADS))
    assert layer(nodes, features, clusters).isfinite().all()


@pytest.fixture
def some(clusters):
    """Forty of the edges, in no order."""
    chosen = torch.randperm(len(clusters.sender))[:40]
    sender, receiver = clusters.sender[chosen], clusters.receiver[chosen]
    return replace(clusters, sender=sender, receiver=receiver, vectors=clusters.vectors[chosen])


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def assert_alike(total, plain, *operands):
    """A sum is that of torch's own operations, with two derivatives."""
    torch.testing.assert_close(total(*operands), plain(*operands))
    assert gradcheck(total, operands) and gradgradcheck(total, operands)


@pytest.mark.parametrize("heads", [1, 3])
def test_sums_over_neighbours_and_their_derivatives(heads, some):
    def plain(values, weights):
        return some.sum_at_receiver(some.of_sender(values) * weights[:, :, None])

    bags, values = neighbour_sums(some, heads), random(some.n_atoms, heads, 2)
    assert_alike(bags.weighted_sum, plain, values, random(40, heads))
    if heads == 1:
        ones = torch.ones(40, 1).double()
        assert_alike(bags.sum, lambda x: plain(x[:, None], ones)[:, 0], random(some.n_atoms, 2))


@pytest.mark.parametrize("k", [1, 3])
def test_sums_of_painn_and_their_derivatives(k, some, monkeypatch):
    """Edges are taken in several slices, the last a small one."""
    monkeypatch.setattr(multilinear, "EDGES_AT_A_TIME", 7)
    assert_alike(
        lambda nodes, filters: filtered_sum(nodes, filters, some),
        lambda nodes, filters: some.sum_at_receiver(some.of_sender(nodes) * filters[:, None]),
        *(random(some.n_atoms, k, 2), random(40, 2)),
    )
    assert_alike(
        lambda vectors, features: outer_sum(vectors, features, some),
        lambda vectors, features: some.sum_at_receiver(vectors[:, :, None] * features[:, None]),
        *(random(40, 3), random(40, k)),
    )


def test_a_prediction_makes_nothing_that_only_gradients_read(clusters):
    """Finding the receivers of each atom is a third of the time of a small network."""
    nodes = torch.randn(clusters.n_atoms, 3, requires_grad=True)
    bags = neighbour_sums(clusters)
    total = bags.sum(nodes)
    assert set(vars(bags)) & {"outgoing", "to_outgoing", "_by_sender"} == set()
    total.sum().backward()
    assert "outgoing" in vars(bags)
