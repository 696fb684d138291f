"""Functions of the length: read from splines, Bessel's, and their envelope."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.models.kernels import spline
from hydragnn_flow.models.kernels.spline import KnotRows, Knots
from hydragnn_flow.models.layers import BesselBasis, polynomial_envelope

CUTOFF = 5.0


@pytest.fixture
def lengths():
    """Of edges in no order; several in one interval, none in many, none at a knot."""
    return torch.tensor([[0.01], [0.3], [4.99], [2.26], [2.31], [2.27], [0.02]]).double()


def test_lines_are_exact_and_values_are_multiplied(lengths):
    knots = Knots(20, CUTOFF).double()
    ends = torch.cat([lengths, torch.tensor([[0.0], [CUTOFF]])])
    lines = torch.cat([torch.ones_like(knots.lengths), 2.0 * knots.lengths - 1.0], dim=1)
    expected = torch.cat([torch.ones_like(ends), 2.0 * ends - 1.0], dim=1)
    torch.testing.assert_close(knots(ends)(lines), expected)
    torch.testing.assert_close(knots(ends, ends)(lines), expected * ends)


def test_follows_a_curve(lengths):
    knots = Knots(200, CUTOFF).double()
    error = knots(lengths)(torch.sin(2.0 * knots.lengths)) - torch.sin(2.0 * lengths)
    assert error.abs().max() < 1e-3


def test_a_length_that_is_no_number_spoils_no_other():
    values = Knots(20, 4.0)(torch.tensor([[1.0], [torch.nan], [2.0]]))(torch.randn(23, 3))
    assert values.isnan().all(dim=1).tolist() == [False, True, False]


@pytest.mark.parametrize("longest", [None, 1, 2])
def test_two_derivatives(lengths, longest, monkeypatch):
    """With bags as a CPU has them, and cut as for an accelerator."""
    monkeypatch.setattr(spline, "longest_bag", lambda device: longest)
    knots = Knots(20, CUTOFF).double()
    torch.manual_seed(0)
    coefficients = torch.randn(23, 3).double().requires_grad_()

    def read(lengths, coefficients):
        values: torch.Tensor = knots(lengths, torch.cos(lengths))(coefficients)
        return values

    operands = (lengths.requires_grad_(), coefficients)
    assert torch.autograd.gradcheck(read, operands)
    assert torch.autograd.gradgradcheck(read, operands)


@settings(deadline=None, max_examples=50)
@given(
    starts=st.lists(st.integers(0, 6), max_size=60), longest=st.sampled_from([None, 1, 3, 7, 100])
)
def test_every_edge_adds_to_the_coefficients_it_reads(starts, longest):
    """However many lie in one interval; all at the last, or none at all."""
    edges, intervals = len(starts), 7
    rows = KnotRows(torch.tensor(starts, dtype=torch.int64), intervals)
    torch.manual_seed(0)
    values, weights = torch.randn(edges, 3).double(), torch.randn(edges, 4).double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spline, "longest_bag", lambda device: longest)
        found = rows.spread(values, weights)
        begins = rows.bags.begins.tolist()
    expected = torch.zeros(intervals + 3, 3).double()
    for edge, start in enumerate(starts):
        for which in range(4):
            expected[start + which] += weights[edge, which] * values[edge]
    torch.testing.assert_close(found, expected)
    if longest is not None:
        lengths = [end - begin for begin, end in zip(begins, [*begins[1:], 4 * edges], strict=True)]
        assert all(0 <= length <= longest for length in lengths)


def test_forces_compute_no_gradient_of_the_coefficients(lengths, monkeypatch):
    """The pass that makes the forces asks for that of the lengths alone."""

    def spread(*operands):
        raise AssertionError("nobody has asked for this gradient")

    knots = Knots(20, CUTOFF).double()
    coefficients = torch.cos(knots.lengths.clone().requires_grad_())
    values = knots(lengths.requires_grad_())(coefficients)
    monkeypatch.setattr(KnotRows, "spread", spread)
    (slopes,) = torch.autograd.grad(values.sum(), lengths, retain_graph=True)
    assert slopes.abs().min() > 1e-3
    with pytest.raises(AssertionError):
        values.sum().backward()


def test_derivatives_are_continuous_at_knots():
    knots = Knots(20, CUTOFF).double()
    knot = knots.lengths[9].item()
    both = torch.tensor([[knot - 1e-9], [knot + 1e-9]]).double().requires_grad_()
    values = knots(both)(torch.cos(7.0 * knots.lengths))
    (slopes,) = torch.autograd.grad(values.sum(), both, create_graph=True)
    (curvatures,) = torch.autograd.grad(slopes.sum(), both)
    for left, right in (values, slopes, curvatures):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-6)
    assert curvatures.abs().min() > 1e-3


def test_stays_constant_beyond_the_cutoff():
    knots = Knots(20, CUTOFF).double()
    at_and_beyond = torch.tensor([[CUTOFF], [CUTOFF + 3.0]]).double()
    at, beyond = knots(at_and_beyond)(torch.cos(knots.lengths))
    torch.testing.assert_close(at, beyond)


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
