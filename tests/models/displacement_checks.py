"""What EGNN and SchNet must hold where their layers move the atoms."""

from __future__ import annotations

from collections.abc import Callable

import ase
import numpy as np
import torch
from model_cases import CUTOFF, alloy, as_batch, energy_and_forces

from hydragnn_flow.models import HydraModel

Make = Callable[..., HydraModel]
STORED = {"rtol": 5e-6, "atol": 2e-5}


def moving_potential(make: Make, mpnn_type: str) -> HydraModel:
    """In float64, with weights large enough for displacements to show."""
    model = make(mpnn_type, equivariance=True, num_conv_layers=3).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 2.0
    return model


def check_it_matters_and_is_invariant(make: Make, mpnn_type: str) -> None:
    """Rotation, reflection, images, supercells, and forces as a gradient."""
    model = moving_potential(make, mpnn_type)
    atoms, turned, wrapped = alloy(), alloy(), alloy()
    energy, forces = energy_and_forces(model, atoms)

    frame, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
    turned.set_cell(atoms.cell.array @ frame.T)
    turned.positions = atoms.positions @ frame.T
    found = energy_and_forces(model, turned)
    np.testing.assert_allclose(found[0], energy, **STORED)
    atol = 2e-6 * np.abs(forces).max()  # a turned cell is wrapped, and rounded, in another way
    np.testing.assert_allclose(found[1], forces @ frame.T, rtol=0, atol=atol)

    images = np.random.default_rng(2).integers(-2, 3, (len(atoms), 3))
    wrapped.positions += images @ atoms.cell.array
    np.testing.assert_allclose(energy_and_forces(model, wrapped)[0], energy, **STORED)
    supercell, _ = energy_and_forces(model, atoms.repeat(2))
    np.testing.assert_allclose(supercell, 8 * energy, rtol=1e-12)
    np.testing.assert_allclose(forces.sum(axis=0), 0.0, atol=1e-12)

    batch = as_batch(atoms)
    batch.pos = batch.pos.double()
    forces_here = model(batch)["forces"]
    up, down = batch.clone(), batch.clone()
    up.pos[1, 2] += 1e-5
    down.pos[1, 2] -= 1e-5
    numeric = -(model(up)["energy"] - model(down)["energy"]).item() / 2e-5
    np.testing.assert_allclose(forces_here[1, 2].item(), numeric, rtol=1e-6, atol=1e-8)

    # A large reach against none: the layers do move the atoms.
    for layer in model.encoder.layers.layers[:-1]:
        layer.displacement.reach = 0.0
    assert abs(energy_and_forces(model, atoms)[0] - energy)[0] > 1e-5


def check_it_is_continuous_at_the_cutoff(make: Make, mpnn_type: str) -> None:
    """Also where the layers have pulled a pair that was apart into the cutoff."""
    model = moving_potential(make, mpnn_type)

    def pair(distance: float) -> ase.Atoms:
        return ase.Atoms("CuAuCu", [[0, 0, 0], [distance, 0, 0], [0, 2.5, 0]])

    jumps = []
    for gap in (1e-3, 1e-4):
        energies, _ = energy_and_forces(model, pair(CUTOFF - gap), pair(CUTOFF + gap))
        jumps.append(abs(energies[0] - energies[1]))
    assert jumps[1] < 1e-4
    assert jumps[1] < 0.2 * jumps[0]


def check_every_parameter_learns(make: Make, mpnn_type: str) -> None:
    """The last layer moves nothing, so it has no parameters for it."""
    for potential_mode in (True, False):
        model = make(mpnn_type, potential=potential_mode, equivariance=True, num_conv_layers=3)
        outputs = model(as_batch(alloy(0), alloy(1)))
        sum(value.float().square().sum() for value in outputs.values()).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
        movers = [name for name, _ in model.named_modules() if name.endswith(".displacement")]
        assert len(movers) == 2
