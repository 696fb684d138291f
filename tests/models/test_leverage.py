"""Leverage: about 1 in training data, and larger the further a structure is from them."""

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk

from hydragnn_flow.data import atoms_to_graph, batch_graphs
from hydragnn_flow.models.leverage import Leverage

ELEMENTS = ("Ni", "Cu", "Au")


def scaled(atoms, factor):
    atoms = atoms.copy()
    atoms.set_cell(atoms.cell.array * factor, scale_atoms=True)
    return atoms


def batch_of(structures):
    return batch_graphs([atoms_to_graph(one, 5.0, None) for one in structures])


def nodes_of(batch):
    """Features as of a network: functions of the element and of the distances of neighbours."""
    number = batch.x[:, :1].double() / 50
    sender, receiver = batch.edge_index
    lengths = (batch.pos[receiver] - batch.pos[sender] + batch.edge_shifts).norm(dim=1).double()
    near = torch.zeros_like(number).index_add(0, receiver, (-lengths).exp()[:, None])
    return torch.cat([number, number**2, near, (number * near).sin()], dim=1)


def of(leverage, structures):
    batch = batch_of(structures)
    return leverage(nodes_of(batch), batch)


def fitted(structures, atoms=True):
    leverage = Leverage(atoms)
    rows = torch.nn.functional.pad(of(leverage, structures), (0, 1), value=1.0)
    leverage.fit(rows.T @ rows)
    return leverage


CRYSTALS = [
    scaled(bulk(z, cubic=True), 0.98 + 0.004 * (n % 11)) for n in range(40) for z in ELEMENTS
]
for number, crystal in enumerate(CRYSTALS):
    crystal.rattle(0.001 * number, seed=number)


def test_its_mean_in_the_training_data_is_about_one_and_copies_are_as_near():
    """It is less by the features that follow from others."""
    leverage = fitted(CRYSTALS)
    assert 0.5 < of(leverage, CRYSTALS).mean() < 1.001
    for n in (0, 1, 2):
        double = CRYSTALS[n] * (1, 2, 1)
        turned = CRYSTALS[n].copy()
        turned.rotate(30, "z", rotate_cell=True)
        same = of(leverage, [CRYSTALS[n], double, turned])[:, 0].numpy()
        np.testing.assert_allclose(same, same[0], rtol=1e-3)


@pytest.mark.parametrize("element", ELEMENTS)
def test_it_grows_with_the_distance_from_the_training_data(element):
    """A tight crystal of a large element is as dense as a usual one of a small element."""
    leverage = fitted(CRYSTALS)
    factors = (0.75, 0.85, 0.95, 1.0, 1.1, 1.2, 1.3)
    found = of(leverage, [scaled(bulk(element, cubic=True), f) for f in factors])[:, 0].numpy()
    assert found[3] < 2
    assert (np.diff(found[:4]) <= 0).all() and (np.diff(found[3:]) >= 0).all()
    assert found[1] > 10 and found[4] > 4


def test_a_state_makes_the_same_leverage_on_any_precision_of_the_network():
    leverage = fitted(CRYSTALS)
    again = Leverage.of(True, leverage.state)
    assert again is not None and not again.state_dict(), "not among the weights"
    batch = batch_of(CRYSTALS[:4])
    nodes = nodes_of(batch)
    expected = leverage(nodes, batch)
    assert torch.equal(again(nodes, batch), expected)
    found = again(nodes.float(), batch)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.05)
    assert Leverage.of(True, {}) is None


def test_training_data_that_hardly_vary_make_finite_leverages():
    """Equal ones, and atoms without neighbours; others are far away."""
    for training in ([bulk("Cu", a=3.6)] * 3, [Atoms("Cu"), Atoms("Cu", positions=[[1, 2, 3]])]):
        leverage = fitted(training)
        found = of(leverage, [training[0], bulk("Cu", a=3.8)])[:, 0]
        assert torch.isfinite(found).all()
        assert found[0] < 1e-3 and found[1] > 1


def test_nodes_that_are_no_atoms_have_the_network_s_features_alone():
    assert of(Leverage(False), CRYSTALS[:2]).shape == (2, 4)
    assert of(Leverage(True), CRYSTALS[:2]).shape == (2, 7)
