"""Structures to label next: how unsure members are, how structures differ; and the command."""

import copy
import re
from dataclasses import replace
from itertools import combinations

import ase.io
import numpy as np
import pandas as pd
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow import Ensemble, EnsembleCalculator, InputError
from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import prepare_store
from hydragnn_flow.ensemble.acquisition import descriptors, farthest_points, select_structures
from hydragnn_flow.ensemble.applicability import Applicability
from hydragnn_flow.models.leverage import LEVERAGE, Leverage
from hydragnn_flow.training.predict import split_batches


def crystal(symbol, rattle=0.05, seed=0):
    atoms = bulk(symbol, cubic=True)
    atoms.rattle(rattle, seed=seed)
    return atoms


def levered(ensemble, store):
    """A copy whose members know how far structures are from the training split."""
    ensemble = replace(ensemble, models=copy.deepcopy(ensemble.models))
    for model in ensemble.models:
        model.leverage = Leverage(atoms=True)
        rows = [model(batch)[LEVERAGE] for batch in split_batches(store["trainset"])]
        rows = torch.nn.functional.pad(torch.cat(rows), (0, 1), value=1.0)
        model.leverage.fit(rows.T @ rows)
    return ensemble


def test_disagreement_is_that_of_the_members_in_units_of_the_calibration(lively, alloy_store):
    """By hand, from the columns of the tables; the calculator's, and that of the selection."""
    ensemble = levered(lively, alloy_store)
    structures = [crystal("Cu"), crystal("Au", 0.2) * (2, 1, 1), Atoms("Cu")]
    tables = ensemble.predict(structures, members=True)
    w = ensemble.weights

    def deviation(table, columns):
        variance = 0.0
        for column in columns:
            members = table[[f"{column}_member_{k}" for k in range(len(w))]].to_numpy()
            mean = members @ w
            of_column = (members - mean[:, None]) ** 2 @ np.cbrt(w) / np.cbrt(w).sum()
            variance = variance + of_column * len(w) / (len(w) - 1)
        return np.sqrt(variance)

    of_atoms = deviation(tables.nodes, [f"forces_{axis}" for axis in "xyz"])
    usual = {name: np.exp(r.highest) for name, r in ensemble.applicability.deviations.items()}
    of_targets = [
        deviation(tables.graphs, ["energy"]) / [len(a) for a in structures] / usual["energy"],
        [of_atoms[tables.nodes["graph_id"] == i].max() / usual["forces"] for i in range(3)],
    ]
    batches = [ensemble.batch_of(atoms) for atoms in structures]
    leverage = [[model(batch)[LEVERAGE].item() for model in ensemble.models] for batch in batches]
    beyond = np.mean(leverage, axis=1)
    assert beyond[2] > 10 * beyond[0]  # an atom alone
    expected = np.max(of_targets, axis=0) * np.sqrt(1 + beyond)
    np.testing.assert_allclose(tables.graphs["disagreement"], expected, rtol=1e-4)
    np.testing.assert_allclose(select_structures(ensemble, structures, 1).disagreement, expected)
    for atoms, one in zip(structures, expected, strict=True):
        atoms.calc = EnsembleCalculator(ensemble)
        assert atoms.calc.get_property("disagreement", atoms) == pytest.approx(one, rel=1e-4)


def test_without_a_calibration_structures_are_selected_by_distance(lively):
    unknown = replace(lively, applicability=Applicability())
    found = select_structures(unknown, [crystal("Cu"), crystal("Cu"), crystal("Au")], 2)
    assert found.indices == [0, 2] and np.isnan(found.disagreement).all()


def test_descriptors_are_of_the_structure_alone(lively):
    """Not of its frame, the order of its atoms, or how often its cell is repeated."""
    one = crystal("Cu")
    one.symbols[0] = "Au"
    turned = one[[2, 0, 3, 1]]
    turned.rotate(40, (1, 2, 3), rotate_cell=True)
    turned.positions += 5.0
    other = crystal("Cu", seed=1)
    found = descriptors(lively, [one, turned, one * (1, 2, 1), other])
    assert found.shape[0] == 4
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)
    np.testing.assert_allclose(found[2], found[0], atol=1e-5)
    assert np.linalg.norm(found[3] - found[0]) > 0.1
    n_members = len(lively.models)
    assert np.square(found).sum(axis=1).mean() == pytest.approx(n_members)


point = st.tuples(st.integers(-3, 3), st.integers(-3, 3))
points = st.lists(point.map(lambda pair: [*map(float, pair)]), min_size=1, max_size=7)


def reach(all_points, chosen):
    """Largest distance to the nearest chosen point."""
    distances = np.linalg.norm(all_points[:, None] - all_points[chosen], axis=2)
    return float(distances.min(axis=1).max())


@settings(max_examples=60)
@given(points, st.data())
def test_farthest_points_cover_all(rows, data):
    all_points = np.array(rows)
    n = data.draw(st.integers(1, len(rows)))
    chosen = farthest_points(all_points, np.ones(len(rows)), n)
    assert chosen[0] == 0 and len(set(chosen)) == n
    best = min(reach(all_points, list(some)) for some in combinations(range(len(rows)), n))
    assert reach(all_points, chosen) <= 2 * best + 1e-12


def test_the_choice_is_uncertain_and_diverse(lively):
    """Of many alike, of which some are the most uncertain, one is chosen and then others."""
    kinds = ["Cu", "Au", "Ni"]
    structures = [crystal(kind, 0.02, seed) for kind in kinds for seed in range(4)]
    found = select_structures(lively, structures, 3)
    assert found.indices[0] == int(found.disagreement.argmax())
    assert {i // 4 for i in found.indices} == {0, 1, 2}
    assert found.disagreement.shape == (12,)
    # One that nobody doubts is not worth a label, however far it is from the others.
    calm = [Atoms("Cu")] * 30  # no forces, about which alone members may disagree here
    known = lively.applicability
    energy = replace(known.deviations["energy"], high=20.0)
    known = replace(known, deviations=known.deviations | {"energy": energy})
    known = replace(lively, applicability=known)
    again = select_structures(known, [*calm, *structures], 3)
    assert sum(i < 30 for i in again.indices) == 0


def test_copies_and_neighbouring_frames_are_chosen_once(lively):
    """However many of the most uncertain structure there are."""
    others = [crystal(kind, 0.1) for kind in ("Cu", "Ni", "Pd", "Au")]
    wild = others.pop(select_structures(lively, others, 1).indices[0])
    frames = [wild.copy() for _ in range(12)]
    for seed, atoms in enumerate(frames):
        atoms.rattle(1e-3, seed=seed)
    for alike in ([wild] * 12, [wild * (1, 1, k) for k in (1, 2)] * 6, frames):
        found = select_structures(lively, [*others, *alike], 4)
        assert found.indices[0] >= 3 and sorted(found.indices[1:]) == [0, 1, 2]
    every = select_structures(lively, [wild, wild, *others], 5)
    assert sorted(every.indices) == [0, 1, 2, 3, 4] and every.indices[-1] == 1


def test_what_cannot_be_selected_is_refused(lively):
    structures = [crystal("Cu"), crystal("Au")]
    with pytest.raises(InputError, match=r"0 of 2 structures cannot be selected"):
        select_structures(lively, structures, 0)
    with pytest.raises(InputError, match=r"not 'a\.cif'; read files with ase\.io"):
        select_structures(lively, "a.cif", 1)
    strange = [crystal("Cu"), crystal("Al"), crystal("Al")]
    with pytest.raises(InputError, match=r"b\.cif: has Al.*and 1 more"):
        select_structures(lively, strange, 1, names=["a.cif", "b.cif", "c.cif"])


@pytest.fixture
def folder(tmp_path):
    """Two files of several structures with labels, some that cannot be predicted; and notes."""
    folder = tmp_path / "new"
    folder.mkdir()
    for symbol in ("Cu", "Au"):
        structures = [crystal(symbol, 0.1, seed) for seed in range(3)]
        for seed, atoms in enumerate(structures):
            atoms.info |= {"origin": f"{symbol} {seed}", "energy": 1.0}
            atoms.arrays["forces"] = np.ones((4, 3))
        if symbol == "Cu":
            structures.insert(1, bulk("W"))
        ase.io.write(folder / f"{symbol}.extxyz", structures)
    (folder / "notes.txt").write_text("no structures\n")
    return folder


def test_the_selected_are_written_in_order_with_where_they_come_from(run, folder, tmp_path, flow):
    out = tmp_path / "out.extxyz"
    code, said, wrong = flow("select", run, folder, "-n", 6, "-o", out)
    assert code == 0, wrong
    assert "notes.txt" in said and "out.extxyz: 6 of 6 structures" in said
    files = ["Au.extxyz"] * 3 + ["Cu.extxyz"] * 3
    frames = [0, 1, 2, 0, 2, 3]
    places = zip(files, frames, strict=True)
    structures = [ase.io.read(folder / name, frame) for name, frame in places]
    expected = select_structures(Ensemble.load(run), structures, 6)
    written = ase.io.read(out, ":")
    assert [atoms.info["file"] for atoms in written] == [files[i] for i in expected.indices]
    assert [atoms.info["frame"] for atoms in written] == [frames[i] for i in expected.indices]
    for atoms, i in zip(written, expected.indices, strict=True):
        assert atoms.info["origin"] == structures[i].info["origin"]
        assert atoms.info["disagreement"] == pytest.approx(expected.disagreement[i])
        np.testing.assert_allclose(atoms.positions, structures[i].positions, atol=1e-7)
        assert atoms.calc is None  # the label is to be computed
        assert "energy" not in atoms.info and "forces" not in atoms.arrays


def test_structures_of_a_store_are_those_it_was_made_of(run, alloy_store, tmp_path, flow):
    out = tmp_path / "out.extxyz"
    code, said, wrong = flow("select", run, alloy_store.path, "-n", 5, "-o", out)
    assert code == 0 and "out.extxyz: 5 of 24 structures" in said, wrong
    lively = Ensemble.load(run)
    whole = lively.predict(alloy_store).graphs.set_index(["split", "graph_id"])
    for atoms in ase.io.read(out, ":"):
        row = whole.loc[(atoms.info["split"], atoms.info["graph_id"])]
        again = lively.predict(atoms).graphs
        np.testing.assert_allclose(row["energy_mean"], again["energy_mean"], rtol=1e-4)
        assert "energy" not in again, "the label is to be computed"


def test_structures_of_a_store_of_files_are_named_by_file_frame_and_id(run, tmp_path, flow):
    made = [crystal(symbol, 0.1, seed) for seed in range(6) for symbol in ("Cu", "Au")]
    for number, atoms in enumerate(made):
        atoms.info |= {"energy": number / 10, "name": f"mp-{number}"}
        atoms.arrays["forces"] = np.full((4, 3), number / 10)
    table, out = tmp_path / "table.csv", tmp_path / "out.extxyz"

    def prepared(name):
        ase.io.write(tmp_path / f"{name}.extxyz", made)
        targets = {"energy": "eV", "forces": "eV/Å"}
        source = {"format": "ase", "train": f"{name}.extxyz", "targets": targets}
        config = DataConfig(source=source, path=tmp_path, split={"val": 0.3, "test": 0.3})
        return prepare_store(config, 4.0, None, 0, tmp_path / name)

    store = prepared("known")
    assert flow("predict", run, store.path, "-o", table)[0] == 0
    assert flow("select", run, store.path, "-n", 5, "-o", out)[0] == 0
    rows, atoms = pd.read_csv(table), pd.read_csv(tmp_path / "table_nodes.csv")
    known = rows.set_index(["split", "graph_id"])[["file", "frame", "id"]]
    for said in (chosen.info for chosen in ase.io.read(out, ":")):
        expected = known.loc[(said["split"], said["graph_id"])]
        assert [said[name] for name in expected.index] == expected.tolist()
    for row in rows.to_dict("records") + atoms.to_dict("records"):
        assert row["id"] == ase.io.read(row["file"], row["frame"]).info["name"]
        assert row.get("energy", row.get("forces_x")) == pytest.approx(int(row["id"][3:]) / 10)
    made[3].symbols = "W4"
    code, _, wrong = flow("select", run, prepared("strange").path, "-n", 5, "-o", out)
    named = r"set: graph \d \(.*strange.extxyz: structure 3 \(id mp-3\)\): .*W"
    assert code == 2 and re.search(named, wrong)


def test_what_it_refuses(run, folder, monkeypatch, flow):
    monkeypatch.chdir(folder.parent)
    copper = folder / "Cu.extxyz"
    for words, says in (
        ([folder, "-n", 7], "new: 7 of 6 structures cannot be selected"),
        ([folder, "-n", 1, "-o", "out.csv"], "out.csv: must end in .extxyz"),
        ([folder / "notes.txt", "-n", 1], "notes.txt"),
        ([copper, "-n", 1, "-o", copper], "holds the structures"),
    ):
        code, _, wrong = flow("select", run, *words)
        assert code == 2 and says in wrong, wrong
        assert not (folder.parent / "selected.extxyz").exists()
