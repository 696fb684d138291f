"""Sums of filtered messages: against torch's own operations, and their derivatives."""

import pytest
import torch
from torch.nn import functional

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels import multilinear, spline
from hydragnn_flow.models.kernels.filtered_messages import filtered_message_sum, slices_of
from hydragnn_flow.models.kernels.spline import Knots

ATOMS, WIDTH, CUTOFF = 4, 2, 5.0


@pytest.fixture
def geometry():
    """Edges in no order; atom 3 receives none."""
    torch.manual_seed(0)
    return Geometry(
        sender=torch.tensor([1, 2, 0, 3, 0, 1, 3]),
        receiver=torch.tensor([0, 0, 2, 1, 1, 2, 0]),
        vectors=torch.randn(7, 3).double(),
        cutoff=CUTOFF,
        graph=torch.zeros(ATOMS, dtype=torch.int64),
        n_graphs=1,
    )


@pytest.fixture
def operands(geometry):
    """Of receivers, senders, two functions at knots, and the lengths."""
    shapes = [(ATOMS, WIDTH), (ATOMS, WIDTH), (9, WIDTH), (9, WIDTH)]
    values = [*(torch.randn(shape).double() for shape in shapes), geometry.lengths]
    return [value.requires_grad_() for value in values]


def fused(geometry, *operands):
    receiver, sender, shift, filters, lengths = operands
    read = Knots(6, CUTOFF).double()(lengths, torch.cos(lengths))
    slices = slices_of(geometry, read)
    return filtered_message_sum(receiver, sender, shift, filters, read.weights, slices)


def plain(geometry, *operands):
    receiver, sender, shift, filters, lengths = operands
    read = Knots(6, CUTOFF).double()(lengths, torch.cos(lengths))
    x = geometry.of_receiver(receiver) + geometry.of_sender(sender) + read(shift)
    return geometry.sum_at_receiver(functional.silu(x) * read(filters))


@pytest.mark.parametrize(("at_a_time", "longest"), [(3, None), (100, None), (100, 2)])
def test_equals_the_plain_sum_with_two_derivatives(
    geometry, operands, monkeypatch, at_a_time, longest
):
    monkeypatch.setattr(multilinear, "EDGES_AT_A_TIME", at_a_time)
    monkeypatch.setattr(spline, "longest_bag", lambda device: longest)
    torch.testing.assert_close(fused(geometry, *operands), plain(geometry, *operands))
    assert torch.autograd.gradcheck(lambda *x: fused(geometry, *x), operands)
    assert torch.autograd.gradgradcheck(lambda *x: fused(geometry, *x), operands)


def test_forces_train_what_they_depend_on(geometry, operands):
    """Where some gradients are asked for, as in a potential, and not all as in the check above."""
    gradients = []
    for total in (fused, plain):
        shifted = [operand * 1.0 for operand in operands]  # no leaves
        energy = total(geometry, *shifted).square().sum()
        (slope,) = torch.autograd.grad(energy, shifted[4], create_graph=True)
        gradients.append(torch.autograd.grad(energy + slope.square().sum(), operands))
    torch.testing.assert_close(gradients[0], gradients[1])
