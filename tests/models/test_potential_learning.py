"""Each type can learn energies and forces."""

import ase.build
import numpy as np
import pytest
import torch
from ase.calculators.emt import EMT

from hydragnn_flow.data import atoms_to_graph, batch_graphs
from hydragnn_flow.models import build_model
from hydragnn_flow.testing.networks import CUTOFF, network


def _rattled(seed):
    rng = np.random.default_rng(seed)
    atoms = ase.build.bulk("Cu", "fcc", a=3.75 + 0.1 * rng.random(), cubic=True).repeat((2, 1, 1))
    atoms.numbers[rng.permutation(8)[: seed % 8]] = 79
    atoms.positions += rng.normal(0, 0.12, (8, 3))
    atoms.calc = EMT()
    return atoms


def test_overfits_four_structures(potential_type, manifest):
    structures = [_rattled(number) for number in range(1, 5)]
    graphs = [atoms_to_graph(atoms, CUTOFF, None) for atoms in structures]
    batch = batch_graphs(graphs)
    energies = torch.tensor([atoms.get_potential_energy() for atoms in structures]).double()
    forces = torch.tensor(np.concatenate([atoms.get_forces() for atoms in structures])).float()
    batch.x = torch.cat([batch.x, torch.zeros_like(batch.x)], dim=1)

    torch.manual_seed(0)
    sizes = {"hidden_dim": 24, "int_emb_size": 16, "out_emb_size": 32}
    model = build_model(network(potential_type, **sizes), manifest)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    goal = 0.0
    for step in range(150):
        outputs = model(batch)
        per_atom = (outputs["energy"][:, 0] - energies).float() / 8
        loss = per_atom.square().mean() + (outputs["forces"] - forces).square().mean()
        if step == 0:
            # Zero forces and perfect energies would leave the forces' mean square.
            goal = min(loss.item(), forces.square().mean().item()) / 10
        if loss.item() < goal:
            return
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pytest.fail(f"after 150 steps the loss is {loss.item():.3g}, not below {goal:.3g}")
