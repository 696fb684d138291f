"""PNA, PNAEq and PNAPlus: their extremes, scalers and radial functions."""

import ase
import numpy as np
import pytest
import torch

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels.neighbour_sums import EXTREMES, extreme
from hydragnn_flow.models.mpnn.pnaeq import N_SCALERS, Aggregation
from hydragnn_flow.testing.networks import CUTOFF, alloy, as_batch, energy_and_forces


@pytest.fixture
def star():
    """Four edges to atom 0, one to atom 1, none to atom 2."""
    return Geometry(
        sender=torch.tensor([1, 2, 1, 2, 0]),
        receiver=torch.tensor([0, 0, 0, 0, 1]),
        vectors=torch.zeros(5, 3),
        cutoff=CUTOFF,
        graph=torch.zeros(3, dtype=torch.int64),
        n_graphs=1,
    )


def test_extremes_and_their_gradients(star):
    """Those that tie share the gradient; the atom's own zero has none."""
    messages = torch.tensor([[2.0], [3.0], [3.0], [1.0], [-5.0]], requires_grad=True)
    found = {}
    for own_zero in (False, True):
        for which in EXTREMES:
            values = extreme(messages, star, which, own_zero=own_zero)
            (gradient,) = torch.autograd.grad(values.sum(), messages)
            found[which, own_zero] = values[:, 0].tolist(), gradient[:, 0].tolist()
    assert found == {
        ("amin", False): ([1.0, -5.0, 0.0], [0.0, 0.0, 0.0, 1.0, 1.0]),
        ("amax", False): ([3.0, -5.0, 0.0], [0.0, 0.5, 0.5, 0.0, 1.0]),
        ("amin", True): ([0.0, -5.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]),
        ("amax", True): ([3.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0, 0.0]),
    }


def test_extremes_have_a_second_derivative(star):
    torch.manual_seed(0)
    messages = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)

    def squared(messages):
        return extreme(messages.square(), star, "amax", own_zero=True).square()

    assert torch.autograd.gradgradcheck(squared, messages)


def test_aggregates_are_scaled_five_ways():
    """One atom with two messages; an atom counts as one neighbour that says zero."""
    receiver = torch.tensor([0, 0])
    geometry = Geometry(receiver, receiver, torch.zeros(2, 3), 4.0, torch.tensor([0]), 1)
    aggregation = Aggregation(1, 2.0, 5.0)
    with torch.no_grad():
        aggregation.aggregate.weight.zero_()
        # Each scaler gets the largest message and a number of its own.
        aggregation.aggregate.weight[:, 2] = torch.tensor([1.0, 10.0, 100.0, 1e3, 1e4])
    degree = torch.tensor([[3.0]])
    found = aggregation(torch.tensor([[0.5], [-1.0]]), degree, geometry)
    log = torch.log(degree + 1.0) / 2.0
    expected = 1.0 + 10.0 * log + 100.0 / log + 1e3 * degree / 5.0 + 1e4 * 5.0 / degree
    torch.testing.assert_close(found, 0.5 * expected * N_SCALERS**-0.5)


def test_a_faded_message_changes_nothing():
    messages = torch.tensor([[0.5], [-1.0], [0.0]])
    receiver = torch.zeros(3, dtype=torch.int64)
    both = Geometry(receiver, receiver, torch.zeros(3, 3), 4.0, torch.tensor([0]), 1)
    one_less = Geometry(receiver[:2], receiver[:2], torch.zeros(2, 3), 4.0, torch.tensor([0]), 1)
    aggregation, degree = Aggregation(1, 2.0, 5.0), torch.tensor([[3.0]])
    with_it = aggregation(messages, degree, both)
    assert torch.equal(with_it, aggregation(messages[:2], degree, one_less))
    assert with_it.abs().max() > 0


@pytest.mark.parametrize("mpnn_type", ["PNAPlus", "DimeNet"])
@pytest.mark.parametrize("option", [{"num_radial": 12}, {"envelope_exponent": 9}])
def test_radial_options_are_read(make, mpnn_type, option):
    batch = as_batch(alloy())
    usual, other = make(mpnn_type).eval()(batch), make(mpnn_type, **option).eval()(batch)
    assert abs(usual["energy"] - other["energy"]).item() > 1e-6


def test_ties_keep_symmetric_forces_symmetric(make):
    """The atoms around a centre send it equal messages; each is the largest.

    In a second layer they would differ in the last digit.
    """
    model = make("PNAPlus", num_conv_layers=1).double().eval()
    corners = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) * 1.5
    atoms = ase.Atoms("AuCu4", np.concatenate([np.zeros((1, 3)), corners]))
    _, forces = energy_and_forces(model, atoms)
    np.testing.assert_allclose(forces[0], 0.0, atol=1e-12)
    lengths = np.linalg.norm(forces[1:], axis=1)
    assert lengths[0] > 1e-3
    np.testing.assert_allclose(lengths, lengths[0], rtol=1e-10)
