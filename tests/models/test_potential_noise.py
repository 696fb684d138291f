"""Noise of potentials: deviations of energies and forces from the features of atoms."""

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from hydragnn_flow.config import load_network
from hydragnn_flow.models import NOISE_SUFFIX, build_model
from hydragnn_flow.testing.networks import GOLD, alloy, as_batch, lively, network, outputs
from hydragnn_flow.training.measures.losses import Counts, Loss, gaussian_nll

ENERGY, FORCES = "energy" + NOISE_SUFFIX, "forces" + NOISE_SUFFIX


def noisy(mpnn_type="SchNet", *, beta=0.0, **options):
    """A network that learns the noise too."""
    values = network(mpnn_type, **options)
    values["Training"] |= {"loss_function_type": "GaussianNLLLoss", "nll_beta": beta}
    return values


def built(manifest, values):
    torch.manual_seed(0)
    return build_model(values, manifest)


def test_every_type_has_noise_that_no_frame_order_or_repetition_changes(potential_type, manifest):
    model, atoms = lively(built(manifest, noisy(potential_type))), alloy()
    found = outputs(model, atoms)
    assert found[ENERGY].shape == (1, 1) and found[FORCES].shape == (4, 3)
    assert (found[ENERGY] > 0).all() and (found[FORCES] > 0).all()
    assert (found[FORCES] == found[FORCES][:, :1]).all(), "whatever the frame"
    assert np.ptp(found[FORCES]) > 1e-6 * found[FORCES].mean()

    turned = atoms.copy()
    turn = Rotation.random(random_state=1).as_matrix()
    turned.set_cell(atoms.cell.array @ turn)
    turned.positions = atoms.positions @ turn
    order = np.array([2, 0, 3, 1])
    for other, at in ((turned, slice(None)), (atoms[order], order)):
        again = outputs(model, other)
        np.testing.assert_allclose(again[ENERGY], found[ENERGY], rtol=1e-4)
        np.testing.assert_allclose(again[FORCES], found[FORCES][at], rtol=1e-4)
    twice = outputs(model, atoms * (2, 1, 1))
    np.testing.assert_allclose(twice[ENERGY], np.sqrt(2) * found[ENERGY], rtol=1e-4)
    np.testing.assert_allclose(twice[FORCES][:4], found[FORCES], rtol=1e-4)


@pytest.mark.parametrize("head", ["node", "graph"])
def test_energies_and_forces_are_those_without_noise(manifest, head):
    with_noise = built(manifest, noisy(head=head, graph_pooling="add")).eval()
    plain = built(manifest, network("SchNet", head=head, graph_pooling="add")).eval()
    plain.load_state_dict({k: v for k, v in with_noise.state_dict().items() if "noise" not in k})
    batch = as_batch(alloy(), alloy(1))
    expected, found = plain(batch), with_noise(batch)
    assert set(found) == {*expected, ENERGY, FORCES}
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=0, atol=0)
    assert not any(values.requires_grad for values in found.values())


def test_noise_leaves_the_features_alone(manifest):
    """Its gradient reaches its heads only, and with the others' every parameter, as DDP needs."""
    values = noisy("PAINN")
    model = built(manifest, values).train()
    batch = as_batch(alloy(), alloy(1))
    found = model(batch)
    own = set(model.noise.parameters())
    (found[ENERGY].sum() + found[FORCES].sum()).backward()
    assert {p for p in model.parameters() if p.grad is not None} == own
    batch["energy"], batch["forces"] = torch.zeros(2), torch.zeros(8, 3)
    loss = Loss(load_network(values), manifest)
    loss.total(loss.term_means(model(batch), batch, Counts(2, 8))).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_what_is_not_trained_on_has_no_noise(manifest):
    for weight, has in (("energy_peratom_weight", FORCES), ("force_weight", ENERGY)):
        found = built(manifest, noisy(**{weight: 0.0})).eval()(as_batch(alloy()))
        assert {ENERGY, FORCES}.intersection(found) == {has}


def test_the_loss_of_an_energy_per_atom_takes_the_noise_per_atom(manifest):
    beta = 0.5
    loss = Loss(load_network(noisy(beta=beta)), manifest)
    batch = as_batch(alloy(), alloy() * (2, 1, 1))
    batch["energy"], batch["forces"] = torch.zeros(2), torch.zeros(12, 3)
    rng = torch.Generator().manual_seed(0)
    predicted = {
        "energy": torch.randn(2, 1, generator=rng).double(),
        ENERGY: torch.rand(2, 1, generator=rng).double() + 0.1,
        "forces": torch.randn(12, 3, generator=rng),
        FORCES: torch.rand(12, 1, generator=rng).expand(-1, 3) + 0.1,
    }
    means = loss.term_means(predicted, batch, Counts(2, 12))
    sizes, scale = torch.tensor([[4.0], [8.0]]), 0.8
    for mean, name, per in ((means[0], "energy", sizes), (means[1], "forces", torch.ones(1))):
        residual, noise = (predicted[key] / per / scale for key in (name, name + NOISE_SUFFIX))
        values = gaussian_nll(residual, noise, beta)
        assert float(mean) == pytest.approx(float(values.mean()), rel=1e-6)


def test_noise_that_depends_on_the_element_is_found(manifest):
    """Forces on gold are noisier than on copper, and so are energies of gold-rich cells."""
    rng = np.random.default_rng(0)
    structures = [alloy(seed) for seed in range(60)]
    for atoms in structures:
        atoms.numbers[rng.random(4) < 0.3] = GOLD
    batch = as_batch(*structures)
    gold = (batch.x[:, 0] == GOLD).double()
    true_forces = 0.1 + 0.7 * gold
    n_gold = torch.zeros(60).double().index_add(0, batch.batch, gold)
    true_energy = (0.01 * (4 - n_gold) + 0.09 * n_gold).sqrt()
    model = built(manifest, noisy())
    with torch.no_grad():
        nodes, geometry = model.encoder(batch, batch.pos)
    draws = torch.Generator().manual_seed(0)
    forces = true_forces[:, None] * torch.randn(240, 3, generator=draws)
    energy = true_energy[:, None] * torch.randn(60, 1, generator=draws)
    optimizer = torch.optim.AdamW(model.noise.parameters(), lr=2e-2)
    for _ in range(150):
        found = model.noise(nodes, geometry, None)
        loss = gaussian_nll(forces, found[FORCES]).mean()
        loss = loss + gaussian_nll(energy, found[ENERGY]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = {name: values.detach() for name, values in found.items()}
    for element, true in ((0.0, 0.1), (1.0, 0.8)):
        assert float(found[FORCES][gold == element].mean()) == pytest.approx(true, rel=0.25)
    assert np.corrcoef(found[ENERGY][:, 0], true_energy)[0, 1] > 0.8
