"""Structures to label next: how unsure the members are, and how the structures differ."""

from itertools import combinations

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ensemble_cases import lively_ensemble
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow import InputError
from hydragnn_flow.data.sources.ase_files import said_of
from hydragnn_flow.ensemble.acquisition import (
    descriptors,
    disagreement,
    farthest_points,
    select_structures,
)
from hydragnn_flow.ensemble.predictions.member_predictions import predict_all
from hydragnn_flow.ensemble.predictions.structure_files import Record


@pytest.fixture(scope="module")
def ensemble(alloy_store, tmp_path_factory):
    return lively_ensemble(tmp_path_factory.mktemp("run"), alloy_store)


def crystal(symbol, rattle=0.05, seed=0):
    atoms = bulk(symbol, cubic=True)
    atoms.rattle(rattle, seed=seed)
    return atoms


def disagreement_about(ensemble, structures, **changes):
    records = {str(i): Record(said_of(atoms)) for i, atoms in enumerate(structures)}
    found = predict_all(ensemble, records)
    members = {name: changes.get(name, 1) * v for name, v in found.members.items()}
    return disagreement(ensemble, members, found.n_atoms)


def test_disagreement_is_that_of_the_members(ensemble):
    """By hand, from the columns of the tables."""
    structures = [crystal("Cu"), crystal("Au", 0.2) * (2, 1, 1), Atoms("Cu")]
    tables = ensemble.predict(structures, members=True)
    assert tables.graphs is not None and tables.nodes is not None
    w = ensemble.weights
    of_targets = []
    for table, columns in ((tables.graphs, ["energy"]), (tables.nodes, ["forces_x", "forces_y"])):
        columns = [*columns, "forces_z"] if len(columns) > 1 else columns
        variance = 0.0
        for column in columns:
            members = table[[f"{column}_member_{k}" for k in range(len(w))]].to_numpy()
            mean = members @ w
            variance = variance + (members - mean[:, None]) ** 2 @ w / (1 - (w**2).sum())
        deviation = np.sqrt(variance)
        if len(columns) > 1:
            of_targets.append([deviation[tables.nodes["graph_id"] == i].max() for i in range(3)])
        else:
            of_targets.append(deviation / [len(atoms) for atoms in structures])
    expected = np.mean([of / np.mean(of) for of in of_targets], axis=0)
    found = disagreement_about(ensemble, structures)
    np.testing.assert_allclose(found, expected)
    assert found.mean() == pytest.approx(1)


def test_targets_that_tell_nothing_do_not_count(ensemble):
    structures = [Atoms("Cu"), Atoms("Au")]  # without forces
    found = disagreement_about(ensemble, structures)
    np.testing.assert_array_equal(found, disagreement_about(ensemble, structures, forces=0))
    alike = disagreement_about(ensemble, structures, forces=0, energy=0)
    np.testing.assert_array_equal(alike, [1, 1])


def test_descriptors_are_of_the_structure_alone(ensemble):
    """Not of its frame, the order of its atoms, or how often its cell is repeated."""
    one = crystal("Cu")
    one.symbols[0] = "Au"
    turned = one[[2, 0, 3, 1]]
    turned.rotate(40, (1, 2, 3), rotate_cell=True)
    turned.positions += 5.0
    other = crystal("Cu", seed=1)
    found = descriptors(ensemble, [one, turned, one * (1, 2, 1), other])
    assert found.shape[0] == 4
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)
    np.testing.assert_allclose(found[2], found[0], atol=1e-5)
    assert np.linalg.norm(found[3] - found[0]) > 0.1
    n_members = len(ensemble.models)
    assert np.square(found).sum(axis=1).mean() == pytest.approx(n_members)


points = st.lists(
    st.tuples(*[st.integers(-3, 3)] * 2).map(lambda pair: [float(x) for x in pair]),
    min_size=1,
    max_size=7,
)


def reach(all_points, chosen):
    """Largest distance to the nearest chosen point."""
    distances = np.linalg.norm(all_points[:, None] - all_points[chosen], axis=2)
    return float(distances.min(axis=1).max())


@settings(max_examples=60, deadline=None)
@given(points, st.data())
def test_farthest_points_cover_all(rows, data):
    all_points = np.array(rows)
    n = data.draw(st.integers(1, len(rows)))
    chosen = farthest_points(all_points, np.ones(len(rows)), n)
    assert chosen[0] == 0 and len(set(chosen)) == n
    best = min(reach(all_points, list(some)) for some in combinations(range(len(rows)), n))
    assert reach(all_points, chosen) <= 2 * best + 1e-12


def test_the_choice_is_uncertain_and_diverse(ensemble):
    """Of many alike, of which some are the most uncertain, one is chosen and then others."""
    kinds = ["Cu", "Au", "Ni"]
    structures = [crystal(kind, 0.02, seed) for kind in kinds for seed in range(4)]
    found = select_structures(ensemble, structures, 3)
    assert found.indices[0] == int(found.uncertainties.argmax())
    assert {i // 4 for i in found.indices} == {0, 1, 2}
    assert found.uncertainties.shape == (12,)
    # One that nobody doubts is not worth a label, however far it is from the others.
    calm = [Atoms("Cu")] * 30
    again = select_structures(ensemble, [*calm, *structures], 3)
    assert sum(i < 30 for i in again.indices) == 0


def test_copies_and_neighbouring_frames_are_chosen_once(ensemble):
    """However many of the most uncertain structure there are."""
    others = [crystal(kind, 0.1) for kind in ("Cu", "Ni", "Pd", "Au")]
    wild = others.pop(select_structures(ensemble, others, 1).indices[0])
    frames = [wild.copy() for _ in range(12)]
    for seed, atoms in enumerate(frames):
        atoms.rattle(1e-3, seed=seed)
    for alike in ([wild] * 12, [wild * (1, 1, k) for k in (1, 2)] * 6, frames):
        found = select_structures(ensemble, [*others, *alike], 4)
        assert found.indices[0] >= 3 and sorted(found.indices[1:]) == [0, 1, 2]
    every = select_structures(ensemble, [wild, wild, *others], 5)
    assert sorted(every.indices) == [0, 1, 2, 3, 4] and every.indices[-1] == 1


@pytest.mark.parametrize("n", [0, 3])
def test_too_few_structures_are_refused(ensemble, n):
    with pytest.raises(InputError, match=rf"{n} of 2 structures cannot be selected"):
        select_structures(ensemble, [crystal("Cu"), crystal("Au")], n)
    with pytest.raises(InputError, match=r"not 'a\.cif'; read files with ase\.io"):
        select_structures(ensemble, "a.cif", 1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"b\.cif: has Al"):
        select_structures(ensemble, [crystal("Cu"), crystal("Al")], 1, names=["a.cif", "b.cif"])
