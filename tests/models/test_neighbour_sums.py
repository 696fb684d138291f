"""Sums over neighbours: whatever the order of the edges, and nothing computed for no one."""

from dataclasses import replace

import pytest
import torch
from geometry_cases import clusters

from hydragnn_flow.models.kernels.neighbour_sums import neighbour_sums


@pytest.mark.parametrize("heads", [1, 2])
def test_the_order_of_the_edges_is_nothing_to_the_sums(heads):
    geometry = clusters()
    generator = torch.Generator().manual_seed(0)
    n = len(geometry.sender)
    values = torch.randn(geometry.n_atoms, heads, 3, generator=generator).double()
    weights = torch.randn(n, heads, generator=generator).double()
    found = []
    # Sorted by receiver, as neighbour lists are stored, and not.
    for order in (torch.argsort(geometry.receiver), torch.randperm(n, generator=generator)):
        some = replace(geometry, sender=geometry.sender[order], receiver=geometry.receiver[order])
        values.requires_grad_()
        total = neighbour_sums(some, heads).weighted_sum(values, weights[order])
        (gradient,) = torch.autograd.grad(total.square().sum(), values)
        found.append((total, gradient))
    torch.testing.assert_close(*found)


def test_a_prediction_makes_nothing_that_only_gradients_read():
    """Finding the receivers of each atom is a third of the time of a small network."""
    geometry = clusters()
    nodes = torch.randn(geometry.n_atoms, 3, requires_grad=True)
    bags = neighbour_sums(geometry)
    total = bags.sum(nodes)
    assert set(vars(bags)) & {"outgoing", "to_outgoing", "_by_sender"} == set()
    total.sum().backward()
    assert "outgoing" in vars(bags)
