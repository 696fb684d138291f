"""PNAPlus: its radial functions, and ties among its messages."""

from collections.abc import Callable

import ase
import numpy as np
import pytest

from hydragnn_flow.models import HydraModel
from hydragnn_flow.testing.networks import alloy, as_batch, energy_and_forces

Make = Callable[..., HydraModel]


@pytest.mark.parametrize("option", [{"num_radial": 12}, {"envelope_exponent": 9}])
def test_radial_options_are_read(make, option):
    batch = as_batch(alloy())
    usual, other = make("PNAPlus").eval()(batch), make("PNAPlus", **option).eval()(batch)
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
