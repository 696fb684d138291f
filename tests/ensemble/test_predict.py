"""Predictions for structures and for stores, and what is refused."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.io import write
from calibration_cases import plain
from ensemble_cases import untrained_ensemble
from segment_cases import NETWORK
from torch import Tensor, nn

from hydragnn_flow import Ensemble
from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import Target, atoms_to_graph, prepare_store, write_store
from hydragnn_flow.ensemble import inputs
from hydragnn_flow.ensemble.member_predictions import store_predictions
from hydragnn_flow.ensemble.predicting import predict_chunks
from hydragnn_flow.ensemble.split_tables import split_tables
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model
from hydragnn_flow.models.potential import PotentialModel
from hydragnn_flow.models.stress import VOIGT

CUTOFF = 4.0


@pytest.fixture(scope="module")
def ensemble(alloy_store, tmp_path_factory):
    return Ensemble.load(untrained_ensemble(tmp_path_factory.mktemp("run"), alloy_store))


def rattled(symbol="Cu", seed=0):
    atoms = bulk(symbol, cubic=True)
    atoms.rattle(0.1, seed=seed)
    return atoms


def test_a_single_structure_is_a_list_of_one(ensemble):
    alone, listed = ensemble.predict(rattled()), ensemble.predict([rattled()])
    assert alone.graphs is not None and alone.nodes is not None
    assert len(alone.graphs) == 1 and len(alone.nodes) == 4
    assert alone.graphs.equals(listed.graphs)


def test_a_store_is_predicted_whole_in_its_order(ensemble, alloy_store):
    graphs = ensemble.predict(alloy_store.path).graphs
    assert graphs is not None
    expected = [(name, int(i)) for name in alloy_store.splits for i in alloy_store[name].graph_id]
    assert list(zip(graphs["split"], graphs["graph_id"], strict=True)) == expected
    labels = np.concatenate([alloy_store[n].target("energy")[:, 0] for n in alloy_store.splits])
    np.testing.assert_allclose(graphs["energy"], labels)


def test_one_split_has_no_split_column(ensemble, alloy_store):
    whole = ensemble.predict(alloy_store.path, members=True)
    part = ensemble.predict(alloy_store.path, split="valset", members=True)
    for all_rows, rows in ((whole.graphs, part.graphs), (whole.nodes, part.nodes)):
        assert all_rows is not None and rows is not None
        assert "split" not in rows
        same = all_rows[all_rows["split"] == "valset"].drop(columns="split")
        numbers = rows.columns.drop(["note", "flagged"], errors="ignore")
        np.testing.assert_allclose(rows[numbers], same[numbers], rtol=1e-12)


def test_a_store_without_labels(ensemble, tmp_path):
    """Its predictions are those of the same structures in a list; empty splits are left out."""
    structures = [rattled("Cu"), rattled("Au", 1)]
    path = tmp_path / "new.gs"
    graphs = [atoms_to_graph(a, CUTOFF, None, i) for i, a in enumerate(structures)]
    write_store(path, {"trainset": graphs, "valset": [], "testset": []}, cutoff=CUTOFF)
    tables = ensemble.predict(path)
    assert tables.graphs is not None and tables.nodes is not None
    assert "energy" not in tables.graphs and "forces_x" not in tables.nodes
    assert "split" not in tables.graphs
    same = ensemble.predict(structures).graphs
    assert same is not None
    np.testing.assert_allclose(tables.graphs["energy_mean"], same["energy_mean"], rtol=1e-5)
    with pytest.raises(InputError, match="testset holds no structures"):
        ensemble.predict(path, split="testset")
    with pytest.raises(InputError, match="no split 'test'; it has trainset"):
        ensemble.predict(path, split="test")


@pytest.mark.parametrize(
    ("symbol", "settings", "says"),
    [
        ("Cu", {"cutoff": 5.0}, r"manifest\.json: cutoff is 5\.0, but 4\.0 .* prepare the store"),
        ("Cu", {"cutoff": None}, r"manifest\.json: cutoff is unknown, but 4\.0"),
        ("Cu", {"max_neighbours": 8}, r"manifest\.json: max_neighbours is 8, but none"),
        ("Al", {}, r"manifest\.json: elements has Al, which .* do not have; make a store without"),
    ],
)
def test_a_store_that_does_not_fit_is_refused(ensemble, tmp_path, symbol, settings, says):
    graphs = [atoms_to_graph(rattled(symbol), CUTOFF, None)]
    write_store(tmp_path / "other.gs", {"trainset": graphs}, **{"cutoff": CUTOFF, **settings})
    with pytest.raises(InputError, match=says):
        ensemble.predict(tmp_path / "other.gs")


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (Target(level="graph", dim=1, unit="kcal/mol"), "1 per graph in kcal/mol, but .* in eV"),
        (Target(level="graph", dim=1), None),
        (Target(level="node", dim=1, unit="eV"), "1 per node in eV, but 1 per graph in eV"),
    ],
)
def test_labels_of_another_kind_are_not_put_beside_predictions(ensemble, tmp_path, target, says):
    atoms = rattled()
    label = np.array([1.5]) if target.level == "graph" else np.full((len(atoms), 1), 1.5)
    graph = atoms_to_graph(atoms, CUTOFF, None, targets={"energy": label})
    path = tmp_path / "labelled.gs"
    write_store(path, {"trainset": [graph]}, targets={"energy": target}, cutoff=CUTOFF)
    if says is None:
        graphs = ensemble.predict(path).graphs
        assert graphs is not None and graphs["energy"].tolist() == [1.5]
        return
    with pytest.raises(InputError, match=rf"manifest\.json: targets\.energy is {says}"):
        ensemble.predict(path)


def test_structures_are_refused_where_the_training_data_brought_edges(ensemble, alloy_store):
    manifest = ensemble.manifest.model_copy(update={"provenance": {"own_edges": True}})
    other = replace(ensemble, manifest=manifest)
    with pytest.raises(InputError, match=r"brought edges .* give a GraphStore"):
        other.predict(rattled())
    assert other.predict(alloy_store, split="valset").graphs is not None


@pytest.mark.parametrize(
    ("names", "inputs"),
    [
        (["atomic_number", "charge"], [0, 1]),
        (["atomic_number", "charge"], [1]),
        (["charge", "atomic_number"], [1]),
        (["charge"], [0]),
        (["atomic_number", "charge"], [0]),
    ],
)
def test_structures_are_refused_where_their_elements_are_not_what_is_read(ensemble, names, inputs):
    asked = {"input_node_features": inputs, "output_names": ["energy"], "type": ["graph"]}
    head = {
        "num_headlayers": 1,
        "dim_headlayers": [4],
        "num_sharedlayers": 1,
        "dim_sharedlayers": 4,
    }
    network = {
        "Architecture": {
            "mpnn_type": "SchNet",
            "hidden_dim": 4,
            "num_conv_layers": 1,
            "radius": CUTOFF,
            "output_heads": {"graph": head},
            "task_weights": [1.0],
        },
        "Variables_of_interest": asked,
        "Training": NETWORK["Training"],
    }
    elements = [29] if names[0] == "atomic_number" else []
    manifest = ensemble.manifest.model_copy(update={"node_features": names, "elements": elements})
    calibrations = {"energy": ensemble.calibrations["energy"]}
    other = replace(
        ensemble,
        models=tuple(build_model(network, manifest).eval() for _ in range(2)),
        calibrations=calibrations,
        manifest=manifest,
    )
    if names[0] == "atomic_number" and inputs == [0]:
        assert other.predict(rattled()).graphs is not None
        return
    with pytest.raises(InputError, match=r"reads node features of .*charge.* give a GraphStore"):
        other.predict(rattled())


def test_elements_that_only_other_splits_have_are_not_predicted(ensemble):
    manifest = ensemble.manifest
    statistics = manifest.statistics
    energies = {z: e for z, e in statistics.element_energies.items() if z != 29}
    statistics = statistics.model_copy(update={"element_energies": energies})
    other = replace(ensemble, manifest=manifest.model_copy(update={"statistics": statistics}))
    assert ensemble.predict(rattled()).graphs["note"].tolist() == [""]
    (note,) = other.predict(rattled()).graphs["note"]
    assert note.startswith("has Cu, which the training data do not have")


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
    assert whole is not None and found is not None
    assert found["energy_mean"].equals(whole["energy_mean"]) == (not cut_in_training)

    source = {"format": "ase", "train": "dense.xyz", "targets": {"spin": "μB"}}
    for atoms in (structures := [rattled(seed=seed) for seed in range(4)]):
        atoms.info["spin"] = 1.0
    write(tmp_path / "dense.xyz", structures)
    data = DataConfig.model_validate(
        {"source": source, "path": tmp_path, "split": {"val": 0.25, "test": 0.25}}
    )
    store = prepare_store(data, CUTOFF, 12, 0, tmp_path / "dense.gs")
    if cut_in_training:
        assert other.predict(store).graphs is not None
        return
    with pytest.raises(InputError, match=r"manifest\.json: max_neighbours = 12 leaves out .*ASE"):
        other.predict(store)


def test_paths_that_cannot_be_predicted_are_named(ensemble, tmp_path):
    file = tmp_path / "some.xyz"
    for path in (file, str(file)):
        with pytest.raises(InputError, match=r"some\.xyz: does not exist"):
            ensemble.predict(path)
    write(file, rattled())
    with pytest.raises(InputError, match=r"some\.xyz: is no GraphStore .* leave --split out"):
        ensemble.predict(file, split="testset")
    with pytest.raises(InputError, match="structures have no splits"):
        ensemble.predict(rattled(), split="testset")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((atoms for atoms in [rattled()]), "of type generator; make a list of it"),
        (None, "of type NoneType; give one"),
        (3, "of type int; give one"),
        ([rattled(), "Cu"], "structure 1 is of type str, not ase.Atoms"),
        ([], "there are no structures to predict"),
    ],
)
def test_what_is_no_structure_is_refused(ensemble, given, says):
    with pytest.raises(InputError, match=says):
        ensemble.predict(given)


def test_a_device_that_is_not_here_is_refused(ensemble):
    for device in ("cuda:99", "toaster"):
        with pytest.raises(InputError, match=f"device {device}: cannot be used"):
            ensemble.predict(rattled(), device=device)


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
    assert tables.nodes is not None and alone.nodes is not None
    assert len(tables.graphs) == len(structures)
    numbers = [name for name in tables.graphs if str(name).startswith("energy")]
    known = tables.graphs["energy_mean"].notna()
    assert tables.graphs["flagged"][~known].all()
    assert known.tolist() == [True, *[False] * len(bad), True]
    np.testing.assert_array_equal(tables.graphs[known][numbers], alone.graphs[numbers])
    assert tables.graphs[~known][numbers].isna().all(axis=None)
    for note, says in zip(tables.graphs["note"][1:-1], bad, strict=True):
        assert note.startswith(says)
    sizes = tables.nodes.groupby("graph_id").size()
    assert sizes.to_dict() == {i: len(a) for i, a in enumerate(structures) if len(a)}
    forces = [name for name in tables.nodes if str(name).startswith("forces")]
    of_known = tables.nodes["graph_id"].isin([0, len(structures) - 1])
    np.testing.assert_array_equal(tables.nodes[of_known][forces], alone.nodes[forces])
    assert tables.nodes[~of_known][forces].isna().all(axis=None)
    nothing = ensemble.predict(list(bad.values()), members=True)
    assert nothing.nodes is not None and list(nothing.graphs) == list(tables.graphs)
    assert nothing.graphs[numbers].isna().all(axis=None)


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
    (of_structures,) = predict_chunks(broken, [rattled(), bulk("Cu")])
    graphs = of_structures.tables.graphs
    assert graphs["energy_mean"].isna().tolist() == [True, False]
    assert graphs["flagged"][0] and "its energy is not finite" in graphs["note"][0]
    assert of_structures.without == 1
    (of_store,) = predict_chunks(broken, alloy_store, split="testset")
    lost = of_store.tables.graphs["energy_mean"].isna()
    assert of_store.without == lost.sum() > 0 and of_store.tables.graphs["flagged"][lost].all()
    splits, found, _ = store_predictions(broken, alloy_store, "testset")
    assert split_tables(broken, splits, found, ()).graphs["flagged"][lost].all()


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
    graphs, nodes = tables.graphs, tables.nodes
    assert nodes is not None
    np.testing.assert_array_equal(graphs["energy"], [energy, 1.5, *[np.nan] * 3])
    np.testing.assert_allclose(graphs["energy_error"], graphs["energy_mean"] - graphs["energy"])
    found = nodes[["forces_x", "forces_y", "forces_z"]].to_numpy()
    np.testing.assert_array_equal(found, [*forces, *np.ones((4, 3)), *np.full((12, 3), np.nan)])
    assert graphs["note"].tolist() == [
        *[""] * 3,
        "its label of energy is not a number per structure and is left out",
        "",
    ]
    assert graphs["energy_mean"].notna().all()
    plain = ensemble.predict([unlabelled])
    assert plain.nodes is not None
    assert not {"energy", "energy_error", "forces_x"} & {*plain.graphs, *plain.nodes}


def test_a_stress_needs_three_periodic_directions(ensemble):
    """Its label may have six components where the training data have nine."""
    target = Target(level="graph", dim=9, unit="eV/Å^3")
    models = copy.deepcopy(ensemble.models)
    for model in models:
        assert isinstance(model, PotentialModel)
        model.stress = True
    targets = {**ensemble.manifest.targets, "stress": target}
    other = replace(
        ensemble,
        models=models,
        calibrations={**ensemble.calibrations, "stress": plain(1.0, 0.1, 1.0)},
        manifest=ensemble.manifest.model_copy(update={"targets": targets}),
    )
    labelled, slab = rattled(), rattled(seed=1)
    labelled.info["stress"] = np.arange(6.0)
    slab.pbc = [True, True, False]
    graphs = other.predict([labelled, slab]).graphs
    found = graphs[[f"stress_{axes}" for axes in VOIGT]].to_numpy()
    np.testing.assert_array_equal(found, [np.arange(6.0), np.full(6, np.nan)])
    assert graphs["stress_xx_mean"].isna().tolist() == [False, True]
    assert graphs["energy_mean"].notna().all()
    assert "no stress, as it is not periodic in three directions" in graphs["note"][1]
    assert "no stress" not in graphs["note"][0]
    alone = ensemble.predict([labelled, slab]).graphs
    assert graphs["flagged"].tolist() == alone["flagged"].tolist()


def test_the_ids_of_structures_are_kept(ensemble):
    structures = [rattled() for _ in range(4)]
    structures[0].info["id"] = "mp-1"
    structures[2].info |= {"name": "fcc\ncopper", "id": 7}
    structures[3].info["material_id"] = "007"
    ids = ensemble.predict(structures).graphs["id"]
    assert ids.isna().tolist() == [False, True, False, False]
    assert ids.dropna().tolist() == ["mp-1", "7", "007"]
    assert "id" not in ensemble.predict(rattled()).graphs


def test_members_share_one_pass_over_the_data(ensemble, monkeypatch):
    made: list[int] = []

    def counted(atoms, *rest):
        made.append(len(atoms))
        return atoms_to_graph(atoms, *rest)

    monkeypatch.setattr(inputs, "atoms_to_graph", counted)
    assert len(ensemble.models) > 1
    ensemble.predict([rattled(seed=seed) for seed in range(3)])
    assert made == [4, 4, 4]


def test_intervals_at_another_coverage(ensemble):
    usual, narrow = (found.predict(rattled()).graphs for found in (ensemble, ensemble.at(0.5)))
    assert narrow.attrs["coverage"] == 0.5
    assert (usual["energy_lo"] <= narrow["energy_lo"]).all()
    assert (narrow["energy_hi"] <= usual["energy_hi"]).all()
    assert (usual["energy_std"] == narrow["energy_std"]).all()


@pytest.mark.parametrize(
    ("coverage", "says"),
    [
        (0.9, "coverage = 0.9: needs 9 structures .* of energy rely on 5; give a lower one"),
        (1.0, "coverage = 1: must lie between 0 and 1"),
        (0.0, "coverage = 0: must lie between 0 and 1"),
    ],
)
def test_coverage_that_nothing_can_hold_is_refused(ensemble, coverage, says):
    with pytest.raises(InputError, match=says):
        ensemble.at(coverage)
