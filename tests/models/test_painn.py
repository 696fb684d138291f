"""The sums PaiNN is made of, and its training in reduced precision."""

from collections.abc import Callable

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from hydragnn_flow.models import HydraModel
from hydragnn_flow.models.geometry import Geometry, edge_vectors
from hydragnn_flow.models.kernels import multilinear
from hydragnn_flow.models.kernels.neighbour_sums import filtered_sum, outer_sum
from hydragnn_flow.testing.networks import alloy, as_batch

Make = Callable[..., HydraModel]
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

    def function(nodes, filters):
        return filtered_sum(nodes, filters, geometry)

    assert gradcheck(function, (nodes, filters))
    assert gradgradcheck(function, (nodes, filters))


def test_outer_sum(geometry):
    features = _random(len(geometry.sender), WIDTH)
    vectors = geometry.vectors.clone().requires_grad_()
    direct = geometry.sum_at_receiver(vectors[:, :, None] * features[:, None])
    torch.testing.assert_close(outer_sum(vectors, features, geometry), direct)

    def function(vectors, features):
        return outer_sum(vectors, features, geometry)

    assert gradcheck(function, (vectors, features))
    assert gradgradcheck(function, (vectors, features))


def test_sums_of_no_edges():
    none = torch.zeros(0, dtype=torch.int64)
    empty = Geometry(none, none, torch.zeros(0, 3), 4.0, torch.zeros(2, dtype=torch.int64), 1)
    zeros = torch.zeros(2, 3, WIDTH)
    found = filtered_sum(torch.ones(2, 3, WIDTH), torch.zeros(0, WIDTH), empty)
    assert torch.equal(found, zeros)
    assert torch.equal(outer_sum(empty.vectors, torch.zeros(0, WIDTH), empty), zeros)


@pytest.mark.parametrize("mpnn_type", ["PAINN", "PNAEq", "DimeNet", "MACE"])
def test_bf16_autocast_trains(make, mpnn_type):
    """Operands of a sum then differ in precision."""
    model, batch = make(mpnn_type), as_batch(alloy(0), alloy(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(batch)
    exact = model(batch)["forces"].detach()
    (rough["energy"].square().sum() + rough["forces"].double().square().sum()).backward()
    tolerance = 0.1 * float(exact.abs().max())
    torch.testing.assert_close(rough["forces"], exact, rtol=0, atol=tolerance)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
