"""Predictions for structures and for stores, and what is refused."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write
from ensemble_cases import property_ensemble
from torch import Tensor, nn

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import Target, atoms_to_graph, prepare_store, write_store
from hydragnn_flow.ensemble.predictions import inputs
from hydragnn_flow.ensemble.predictions import member_predictions as module
from hydragnn_flow.ensemble.predictions.structure_files import open_structures
from hydragnn_flow.ensemble.predictions.table import GRAPH_ID
from hydragnn_flow.errors import InputError

CUTOFF = 4.0


def rattled(symbol="Cu", seed=0):
    atoms = bulk(symbol, cubic=True)
    atoms.rattle(0.1, seed=seed)
    return atoms


def test_a_store_is_predicted_whole_in_its_order(ensemble, alloy_store):
    """One split has the same numbers, without a column `split`."""
    whole = ensemble.predict(alloy_store.path, members=True)
    graphs = whole.graphs
    expected = [(name, int(i)) for name in alloy_store.splits for i in alloy_store[name].graph_id]
    assert list(zip(graphs["split"], graphs["graph_id"], strict=True)) == expected
    labels = np.concatenate([alloy_store[n].target("energy")[:, 0] for n in alloy_store.splits])
    np.testing.assert_allclose(graphs["energy"], labels)
    part = ensemble.predict(alloy_store.path, split="valset", members=True)
    for all_rows, rows in ((graphs, part.graphs), (whole.nodes, part.nodes)):
        assert "split" not in rows
        same = all_rows[all_rows["split"] == "valset"].drop(columns="split")
        numbers = rows.columns.drop(["note", "flagged"], errors="ignore")
        np.testing.assert_allclose(rows[numbers], same[numbers], rtol=1e-12)


def test_a_label_far_off_that_training_masks_is_shown_with_a_note(ensemble, tmp_path):
    """A ranking by error finds it, though the graph itself has none; tests count such labels."""
    structures, wrong = [rattled("Cu", seed) for seed in range(40)], [3, 7, 11]
    for number, atoms in enumerate(structures):
        energy = number % 7 / 10 + 1000 * (number in wrong)
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=atoms.positions)
    write(tmp_path / "a.xyz", structures)
    units = {"energy": "eV", "forces": "eV/Å"}
    source = {"format": "ase", "train": "a.xyz", "targets": units}
    config = DataConfig(source=source, path=tmp_path, split={"val": 0.2, "test": 0.3})
    path = tmp_path / "s"
    store = prepare_store(config, CUTOFF, None, 0, path)
    graphs = ensemble.predict(path).graphs.set_index("graph_id")
    masked = [number for number in wrong if graphs["split"][number] != "testset"]
    assert 0 < len(masked) < 3
    assert sum(np.isnan(store[name].target("energy")).sum() for name in store.splits) == len(masked)
    for number in wrong:
        assert graphs["energy"][number] == pytest.approx(1000 + number % 7 / 10)
    assert sorted(graphs["energy_error"].abs().nlargest(3).index) == wrong
    noted = graphs["note"][
        graphs["note"].str.contains("is far off, and masked in training: energy")
    ]
    assert sorted(noted.index) == masked
    assert "eV/atom is 250 from what its elements add up to" in noted[masked[0]]


def test_a_store_without_labels(ensemble, tmp_path):
    """Its predictions are those of the same structures in a list; empty splits are left out."""
    structures = [rattled("Cu"), rattled("Au", 1)]
    path = tmp_path / "new.gs"
    graphs = [atoms_to_graph(a, CUTOFF, None, i) for i, a in enumerate(structures)]
    write_store(path, {"trainset": graphs, "valset": [], "testset": []}, cutoff=CUTOFF)
    tables = ensemble.predict(path)
    assert not {"energy", "forces_x", "split"} & {*tables.graphs, *tables.nodes}
    same = ensemble.predict(structures).graphs
    np.testing.assert_allclose(tables.graphs["energy_mean"], same["energy_mean"], rtol=1e-5)
    for split, says in (("testset", "holds no structures"), ("test", "it has trainset")):
        with pytest.raises(InputError, match=says):
            ensemble.predict(path, split=split)


def labelled(level, unit):
    """Settings of a store with such a label of the energy."""
    target = Target(level=level, dim=1, unit=unit)
    n = 1 if level == "graph" else 4
    return {"targets": {"energy": target}}, {"energy": np.full((n, 1), 1.5)}


@pytest.mark.parametrize(
    ("symbol", "settings", "labels", "says"),
    [
        ("Cu", {"cutoff": 5.0}, None, r"cutoff is 5\.0, but 4\.0"),
        ("Cu", {"max_neighbours": 8}, None, "max_neighbours is 8, but None"),
        ("Al", {}, None, "elements has Al"),
        ("Cu", *labelled("graph", "kcal/mol"), r"targets\.energy .* in kcal/mol, but .* in eV"),
        ("Cu", *labelled("node", "eV"), r"targets\.energy is 1 per node .* 1 per graph"),
    ],
)
def test_a_store_that_does_not_fit_is_refused(ensemble, tmp_path, symbol, settings, labels, says):
    graphs = [atoms_to_graph(rattled(symbol), CUTOFF, None, targets=labels)]
    path = tmp_path / "other.gs"
    write_store(path, {"trainset": graphs}, **{"cutoff": CUTOFF, **settings})
    with pytest.raises(InputError, match=rf"manifest\.json: {says}"):
        ensemble.predict(path)


def test_labels_of_an_unknown_unit_are_taken(ensemble, tmp_path):
    settings, labels = labelled("graph", "")
    graphs = [atoms_to_graph(rattled(), CUTOFF, None, targets=labels)]
    write_store(tmp_path / "other.gs", {"trainset": graphs}, cutoff=CUTOFF, **settings)
    assert ensemble.predict(tmp_path / "other.gs").graphs["energy"].tolist() == [1.5]


@pytest.mark.parametrize(
    ("names", "read"),
    [("atomic_number charge", [0]), ("atomic_number charge", [1]), ("atomic_number charge", [0, 1]),
     ("charge atomic_number", [1])],
)  # fmt: skip
def test_structures_are_refused_where_their_elements_are_not_what_is_read(ensemble, names, read):
    elements = [29] if names.startswith("atomic") else []
    update = {"node_features": names.split(), "elements": elements}
    manifest = ensemble.manifest.model_copy(update=update)
    other = property_ensemble(replace(ensemble, manifest=manifest), read)
    if read == [0]:
        other.predict(rattled())
        return
    with pytest.raises(InputError, match=r"reads node features of .*charge.* give a GraphStore"):
        other.predict(rattled())


@pytest.mark.parametrize("cut_in_training", [False, True])
def test_denser_structures_than_in_training_keep_all_neighbours(
    ensemble, tmp_path, cut_in_training
):
    """Where no list was cut in training, a potential that gets cut ones has no forces."""
    manifest = ensemble.manifest
    assert manifest.truncation is not None and not manifest.truncation.atoms
    cut = replace(manifest.truncation, atoms=1, edges=1, nearest=3.9) if cut_in_training else None
    update = {"max_neighbours": 12, "truncation": cut or manifest.truncation}
    other = replace(ensemble, manifest=manifest.model_copy(update=update))
    whole, found = (some.predict(rattled()).graphs for some in (ensemble, other))
    assert found["energy_mean"].equals(whole["energy_mean"]) == (not cut_in_training)

    source = {"format": "ase", "train": "dense.xyz", "targets": {"spin": "μB"}}
    for atoms in (structures := [rattled(seed=seed) for seed in range(4)]):
        atoms.info["spin"] = 1.0
    write(tmp_path / "dense.xyz", structures)
    split = {"val": 0.25, "test": 0.25}
    data = DataConfig.model_validate({"source": source, "path": tmp_path, "split": split})
    store = prepare_store(data, CUTOFF, 12, 0, tmp_path / "dense.gs")
    if cut_in_training:
        other.predict(store)
        return
    with pytest.raises(InputError, match=r"manifest\.json: max_neighbours = 12 leaves out .*ASE"):
        other.predict(store)


@pytest.mark.parametrize(
    ("given", "asked", "says"),
    [
        ((atoms for atoms in [rattled()]), {}, "a list of them, not <generator"),
        ([rattled(), "Cu"], {}, "a list of them, not .*, 'Cu'"),
        ([], {}, "there are no structures; give"),
        (rattled(), {"split": "testset"}, "structures have no splits"),
        (rattled(), {"device": "cuda:99"}, "device cuda:99: cannot be used"),
        (rattled(), {"device": "toaster"}, "device toaster: cannot be used"),
    ],
)
def test_what_cannot_be_predicted_is_refused(ensemble, given, asked, says):
    with pytest.raises(InputError, match=says):
        ensemble.predict(given, **asked)


def without_a_graph():
    """Structures that cannot be predicted, by what is said of them."""
    nan, twice, flat = rattled(), rattled(), rattled()
    nan.positions[1, 2] = np.nan
    twice.positions[1] = twice.positions[0]
    flat.cell = np.zeros((3, 3))
    return {
        "has no atoms": Atoms(),
        "has a position or cell vector that is not finite": nan,
        "has the atoms 0 and 1 at one place": twice,
        "is periodic in a direction that has no cell vector": flat,
        "has Al, which the training data do not have": rattled("Al"),
        "has X, which": Atoms("X"),
        "has 200, which": Atoms(numbers=[200], positions=[[0, 0, 0]]),
    }


def test_a_structure_that_cannot_be_predicted_keeps_its_row(ensemble):
    bad = without_a_graph()
    structures = [rattled(seed=9), *bad.values(), rattled(seed=8)]
    tables = ensemble.predict(structures, members=True)
    alone = ensemble.predict([structures[0], structures[-1]], members=True)
    graphs, nodes = tables.graphs, tables.nodes
    known = graphs["energy_mean"].notna()
    assert known.tolist() == [True, *[False] * len(bad), True]
    assert graphs["flagged"][~known].all()
    for note, says in zip(graphs["note"][1:-1], bad, strict=True):
        assert note.startswith(says)
    sizes = nodes.groupby("graph_id").size()
    assert sizes.to_dict() == {i: len(a) for i, a in enumerate(structures) if len(a)}
    for table, of_known, same, name in (
        (graphs, known, alone.graphs, "energy"),
        (nodes, nodes["graph_id"].isin([0, len(structures) - 1]), alone.nodes, "forces"),
    ):
        numbers = [column for column in table if column.startswith(name)]
        np.testing.assert_array_equal(table[of_known][numbers], same[numbers])
        assert table[~of_known][numbers].isna().all(axis=None)
    nothing = ensemble.predict(list(bad.values()), members=True).graphs
    assert list(nothing) == list(graphs)
    assert nothing.filter(regex="^energy").isna().all(axis=None)


class WithoutEnergy(nn.Module):
    """A network that gives no finite energy for the first structure of a batch."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        found: dict[str, Tensor] = self.model(batch)
        first = torch.arange(batch.num_graphs)[:, None] == 0
        return {**found, "energy": found["energy"].masked_fill(first, torch.nan)}


def test_a_prediction_that_is_not_finite_is_flagged_and_counted(ensemble, alloy_store):
    broken = replace(ensemble, models=tuple(map(WithoutEnergy, ensemble.models)))

    def chunk(data, split=None):
        (found,) = module.predict_members(broken, open_structures(broken, data, split))
        return module.lay_out(broken, found, False), found

    of_structures, _ = chunk([rattled(), bulk("Cu")])
    graphs = of_structures.tables.graphs
    assert graphs["energy_mean"].isna().tolist() == [True, False]
    assert graphs["flagged"][0] and "its energy is not finite" in graphs["note"][0]
    assert of_structures.without == 1
    of_store, found = chunk(alloy_store, "testset")
    lost = of_store.tables.graphs["energy_mean"].isna()
    assert of_store.without == lost.sum() > 0 and of_store.tables.graphs["flagged"][lost].all()
    test = alloy_store["testset"]  # as at the end of a campaign, whose members have predicted it
    known = module.predict_graphs(
        broken, alloy_store, [test], {GRAPH_ID: test.graph_id}, found.members
    )
    assert module.lay_out(broken, known, False).tables.graphs.equals(of_store.tables.graphs)


def test_labels_of_structures_become_references_and_errors(ensemble):
    """Those of calculators, `info` and `arrays`; what is none is said, and what is old is not."""
    labelled, said, unlabelled, wrong, moved = (rattled(seed=seed) for seed in range(5))
    labelled.calc = EMT()
    energy, forces = labelled.get_potential_energy(), labelled.get_forces()
    said.info["energy"], said.arrays["forces"] = 1.5, np.ones((4, 3))
    wrong.info["energy"] = "low"
    moved.calc = EMT()
    moved.get_potential_energy()
    moved.positions += 0.01
    tables = ensemble.predict([labelled, said, unlabelled, wrong, moved])
    graphs = tables.graphs
    np.testing.assert_array_equal(graphs["energy"], [energy, 1.5, *[np.nan] * 3])
    np.testing.assert_allclose(graphs["energy_error"], graphs["energy_mean"] - graphs["energy"])
    found = tables.nodes[["forces_x", "forces_y", "forces_z"]].to_numpy()
    np.testing.assert_array_equal(found, [*forces, *np.ones((4, 3)), *np.full((12, 3), np.nan)])
    assert [bool(note) for note in graphs["note"]] == [False, False, False, True, False]
    assert "its label of energy is not a number per structure" in graphs["note"][3]
    assert graphs["energy_mean"].notna().all()
    plain = ensemble.predict([unlabelled])
    assert not {"energy", "energy_error", "forces_x"} & {*plain.graphs, *plain.nodes}


def test_members_share_one_pass_over_the_data(ensemble, monkeypatch):
    made = Mock(wraps=atoms_to_graph)
    monkeypatch.setattr(inputs, "atoms_to_graph", made)
    assert len(ensemble.models) > 1
    ensemble.predict([rattled(seed=seed) for seed in range(3)])
    assert made.call_count == 3


def test_intervals_at_another_coverage(ensemble):
    usual, narrow = (found.predict(rattled()).graphs for found in (ensemble, ensemble.at(0.5)))
    assert narrow.attrs["coverage"] == 0.5
    assert (usual["energy_lo"] <= narrow["energy_lo"]).all()
    assert (narrow["energy_hi"] <= usual["energy_hi"]).all()
    assert (usual["energy_std"] == narrow["energy_std"]).all()
    for coverage, says in (
        (0.9, "needs 9 structures .* of energy rely on 5"),
        (1.0, "coverage = 1: must lie between 0 and 1"),
        (0.0, "coverage = 0: must lie between 0 and 1"),
    ):
        with pytest.raises(InputError, match=says):
            ensemble.at(coverage)
