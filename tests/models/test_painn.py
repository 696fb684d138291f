"""The sums PaiNN is made of."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from hydragnn_flow.models.geometry import Geometry, edge_vectors
from hydragnn_flow.models.kernels import multilinear
from hydragnn_flow.models.kernels.neighbour_sums import filtered_sum, outer_sum
from hydragnn_flow.testing.networks import alloy, as_batch

WIDTH = 3


@pytest.fixture
def geometry(monkeypatch):
    """Of four atoms, whose edges are taken in several slices, the last a small one."""
    batch = as_batch(alloy())
    # As many as a test of second derivatives has time for.
    chosen = torch.arange(0, batch.num_edges, 5)
    batch.edge_index, batch.edge_shifts = batch.edge_index[:, chosen], batch.edge_shifts[chosen]
    monkeypatch.setattr(multilinear, "EDGES_AT_A_TIME", 4)
    n_edges = batch.edge_index.shape[1]
    assert n_edges > 8 and n_edges % 4
    vectors = edge_vectors(batch, batch.pos.double())
    sender, receiver = batch.edge_index
    return Geometry(sender, receiver, vectors, 4.0, batch.batch, 1)


def _random(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


@pytest.mark.parametrize("k", [1, 3])
def test_filtered_sum(geometry, k):
    nodes, filters = _random(geometry.n_atoms, k, WIDTH), _random(len(geometry.sender), WIDTH)
    direct = geometry.sum_at_receiver(geometry.of_sender(nodes) * filters[:, None])
    torch.testing.assert_close(filtered_sum(nodes, filters, geometry), direct)
    for check in (gradcheck, gradgradcheck):
        assert check(lambda *operands: filtered_sum(*operands, geometry), (nodes, filters))


def test_outer_sum(geometry):
    features = _random(len(geometry.sender), WIDTH)
    vectors = geometry.vectors.clone().requires_grad_()
    direct = geometry.sum_at_receiver(vectors[:, :, None] * features[:, None])
    torch.testing.assert_close(outer_sum(vectors, features, geometry), direct)
    for check in (gradcheck, gradgradcheck):
        assert check(lambda *operands: outer_sum(*operands, geometry), (vectors, features))
