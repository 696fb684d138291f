"""Radial functions and their envelope."""

import math

import pytest
import torch

from hydragnn_flow.models.layers import BesselBasis, polynomial_envelope

CUTOFF = 5.0


def test_bessel_functions():
    lengths = torch.linspace(0.1, CUTOFF, 50).double()[:, None]
    values = BesselBasis(4, CUTOFF)(lengths)
    third = math.sqrt(2 / CUTOFF) * torch.sin(3 * math.pi * lengths / CUTOFF) / lengths
    torch.testing.assert_close(values[:, 2:3], third, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(values[-1], torch.zeros(4).double(), rtol=0, atol=1e-6)


def test_bessel_functions_are_finite_at_zero():
    length = torch.zeros(1, 1, requires_grad=True)
    values = BesselBasis(4, CUTOFF)(length)
    (slope,) = torch.autograd.grad(values.sum(), length, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), length)
    orders = torch.arange(1, 5)
    expected = math.sqrt(2 / CUTOFF) * orders * math.pi / CUTOFF
    torch.testing.assert_close(values[0], expected, rtol=1e-4, atol=0)
    assert slope.isfinite().all() and curvature.isfinite().all()


@pytest.mark.parametrize("exponent", [2, 5, 6])
def test_envelope(exponent):
    lengths = torch.tensor([0.0, 2.5, CUTOFF - 1e-9, 6.0], dtype=torch.float64, requires_grad=True)
    values = polynomial_envelope(lengths, CUTOFF, exponent)
    (slopes,) = torch.autograd.grad(values.sum(), lengths, create_graph=True)
    (curvatures,) = torch.autograd.grad(slopes.sum(), lengths)
    assert values[0] == 1.0 and slopes[0] == 0.0
    assert 0.0 < values[1] < 1.0 and slopes[1] < 0.0
    assert values[1] < polynomial_envelope(lengths, CUTOFF, exponent + 1)[1]
    for at_the_end in (values[2:], slopes[2:], curvatures[2:]):
        torch.testing.assert_close(at_the_end, torch.zeros_like(at_the_end), rtol=0, atol=1e-7)
