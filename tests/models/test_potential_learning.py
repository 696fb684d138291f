"""Each type can learn energies and forces."""

from __future__ import annotations

import ase.build
import numpy as np
import torch
from ase.calculators.emt import EMT
from model_cases import CUTOFF, network

from hydragnn_flow.data import Manifest, atoms_to_graph, batch_graphs
from hydragnn_flow.models import build_model


def _rattled(seed: int) -> ase.Atoms:
    rng = np.random.default_rng(seed)
    atoms = ase.build.bulk("Cu", "fcc", a=3.75 + 0.1 * rng.random(), cubic=True).repeat((2, 1, 1))
    atoms.numbers[rng.permutation(8)[: seed % 8]] = 79
    atoms.positions += rng.normal(0, 0.12, (8, 3))
    atoms.calc = EMT()
    return atoms


def test_overfits_eight_structures(potential_type: str, manifest: Manifest) -> None:
    structures = [_rattled(number) for number in range(8)]
    graphs = [atoms_to_graph(atoms, CUTOFF, None) for atoms in structures]
    batch = batch_graphs(graphs)
    energies = torch.tensor([atoms.get_potential_energy() for atoms in structures]).double()
    forces = torch.tensor(np.concatenate([atoms.get_forces() for atoms in structures])).float()
    batch.x = torch.cat([batch.x, torch.zeros_like(batch.x)], dim=1)

    torch.manual_seed(0)
    model = build_model(network(potential_type, hidden_dim=24), manifest)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(150):
        outputs = model(batch)
        per_atom = (outputs["energy"][:, 0] - energies).float() / 8
        loss = per_atom.square().mean() + (outputs["forces"] - forces).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert min(losses[-10:]) < losses[0] / 10
    # Zero forces and perfect energies would leave the forces' mean square.
    assert min(losses[-10:]) < float(forces.square().mean()) / 10
