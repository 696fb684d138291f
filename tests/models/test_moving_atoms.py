"""Layers that move the atoms: what the conformance suite does not know of them."""

import ase
import pytest
import torch

from hydragnn_flow.config.network.mpnn_types import READ_BY
from hydragnn_flow.testing.networks import CUTOFF, alloy, energy_and_forces


@pytest.fixture(params=READ_BY["equivariance"])
def moving(request, make):
    """In float64, with weights large enough for displacements to show."""
    model = make(request.param, equivariance=True, num_conv_layers=3).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 2.0
    return model


def test_all_layers_but_the_last_move_the_atoms(moving):
    """Nothing reads the positions after the last layer, so it has no parameters for it."""
    energy, _ = energy_and_forces(moving, alloy())
    movers = [module for name, module in moving.named_modules() if name.endswith(".displacement")]
    assert len(movers) == 2
    for mover in movers:
        mover.reach = 0.0
    assert abs(energy_and_forces(moving, alloy())[0] - energy)[0] > 1e-5


def test_energy_is_continuous_where_layers_have_pulled_a_pair_into_the_cutoff(moving):
    def pair(distance):
        return ase.Atoms("CuAuCu", [[0, 0, 0], [distance, 0, 0], [0, 2.5, 0]])

    jumps = []
    for gap in (1e-3, 1e-4):
        energies, _ = energy_and_forces(moving, pair(CUTOFF - gap), pair(CUTOFF + gap))
        jumps.append(abs(energies[0] - energies[1]))
    assert jumps[1] < 1e-4
    assert jumps[1] < 0.2 * jumps[0]
