"""The error of a target is one per atom where the target is a sum over atoms, whoever judges."""

import json
from dataclasses import replace

import numpy as np
import pytest
from ase.build import bulk
from ensemble_cases import untrained_ensemble
from segment_cases import make_spec, network_with

from hydragnn_flow.campaign.objectives import check_earlier_errors, outcome_of
from hydragnn_flow.config import SearchConfig
from hydragnn_flow.data import Target, atoms_to_graph, write_store
from hydragnn_flow.ensemble import FOLDER, member_folder
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import Segment, SegmentResult
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.predict import predict_batches, restore_model, split_batches
from hydragnn_flow.training.runner import run_segment

TARGETS = {
    "energy": Target(level="graph", dim=1, unit="eV"),
    "free_energy": Target(level="graph", dim=1, unit="Ry", extensive=True),
    "gap": Target(level="graph", dim=1, unit="eV"),
    "spectrum": Target(level="graph", dim=2, unit="1/eV"),
    "entropy_scaled_num_nodes": Target(level="graph", dim=1, unit="eV/K"),
}
SUMS = {"energy", "free_energy"}
NETWORK = network_with(
    Architecture__enable_interatomic_potential=False,
    Architecture__energy_peratom_weight=0.0,
    Architecture__force_weight=0.0,
    Architecture__output_heads={"graph": {"num_headlayers": 1, "dim_headlayers": [8]}},
    Variables_of_interest={"output_names": list(TARGETS), "type": ["graph"] * len(TARGETS)},
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Cells of 1 to 8 atoms."""
    graphs = []
    for number in range(24):
        rng = np.random.default_rng(number)
        atoms = bulk("Cu", "sc", a=3.0) * (1 + number % 8, 1, 1)
        atoms.rattle(0.1, seed=number)
        labels = {name: rng.normal(size=target.dim) for name, target in TARGETS.items()}
        graphs.append(atoms_to_graph(atoms, 4.0, None, number, labels))
    splits = {"trainset": graphs[:8], "valset": graphs[8:16], "testset": graphs[16:]}
    path = tmp_path_factory.mktemp("sizes") / "store.gs"
    return write_store(path, splits, targets=TARGETS, cutoff=4.0)


def errors(store, split, folder):
    """Absolute errors of a checkpoint's best weights, [n_graphs, dim], per atom where they are."""
    weights = load_checkpoint(folder / FILE)["best"]
    model = restore_model(NETWORK, store.manifest, weights)
    predicted = predict_batches(model, split_batches(store[split]))
    atoms = store[split].n_atoms[:, None]
    assert len(set(atoms.ravel())) == 8
    return {
        name: np.abs(predicted[name] - store[split].target(name)) / (atoms if name in SUMS else 1)
        for name in TARGETS
    }


def test_a_search_judges_by_the_error_of_its_kind(tmp_path, store):
    spec = make_spec(tmp_path / "t", store, 1, network=NETWORK)
    result = SegmentResult.of(spec, run_segment(spec))
    expected = errors(store, "valset", tmp_path / "t")
    for name in TARGETS:
        space = {"Architecture.hidden_dim": {"choices": [4, 8]}}
        search = SearchConfig.model_validate(
            {"trials": 2, "objectives": [f"val.{name}"], "space": space}
        )
        (value,) = outcome_of(search, [result]).objectives
        assert value == pytest.approx(expected[name].mean(), rel=1e-4), name


def test_ensemble_and_report_judge_by_the_same(tmp_path, store):
    units = {name: target.unit for name, target in TARGETS.items()}
    source = {"format": "ase", "train": "all.xyz", "targets": units}
    data = {"source": source, "split": {"val": 0.25, "test": 0.25}}
    untrained_ensemble(tmp_path, store, network=NETWORK, data=data)
    summary = json.loads(RunDirectory(tmp_path).summary.read_text())
    assert {name for name, of in summary["calibration"].items() if of["per_atom"]} == set(SUMS)
    assert set(summary["errors"]) == {
        f"{name} per atom" if name in SUMS else name for name in TARGETS
    }
    for label, target in summary["errors"].items():
        scale = 1000 if target["unit"] == "meV/atom" else 1
        for k in range(2):
            of = errors(store, "testset", member_folder(tmp_path / FOLDER, k))[target["target"]]
            found = target["mae"][str(k)]["value"]
            assert found == pytest.approx(scale * of.mean(), rel=1e-4), label


@pytest.mark.parametrize(
    "target", [{"unit": "eV/atom"}, {"unit": "eV", "extensive": False}], ids=["unit", "said"]
)
def test_a_potential_needs_a_total_energy(store, target):
    targets = {"energy": Target(level="graph", dim=1, **target)}
    manifest = store.manifest.model_copy(update={"targets": targets})
    network = network_with(Architecture__force_weight=0.0)
    with pytest.raises(InputError, match=r"sum over the atoms.*give total energies"):
        build_model(network, manifest)


def test_a_search_does_not_begin_with_trials_judged_by_another_error(tmp_path, store):
    outcome = run_segment(make_spec(tmp_path / "t", store, 1, network=NETWORK))
    segment = Segment(kind="trial", number=0, rung=0)
    directory = RunDirectory(tmp_path / "earlier")
    directory.path.mkdir()

    def check(earlier, objective, criterion="mae", **metrics):
        directory.segments.unlink(missing_ok=True)
        result = SegmentResult.of(segment, outcome)
        directory.record([replace(result, metrics={**result.metrics, **metrics})])
        values = {"trials": 2, "objectives": [objective], "warm_start": [str(earlier)]}
        space = {"Architecture.hidden_dim": {"choices": [4, 8]}}
        config = SearchConfig.model_validate({**values, "space": space})
        check_earlier_errors(config, store.manifest, criterion)

    for name in ("gap", "energy"):
        check(directory.path, f"val.{name}")
    check(directory.path, "val_error")
    check(directory.path, "val.energy", gap_mae_per_atom=0.01)
    with pytest.raises(InputError, match=r"/earlier were judged by the error of gap per atom"):
        check(directory.path, "val.gap", gap_mae_per_atom=0.01)
    check(directory.segments, "val.gap", gap_mae_per_atom=0.01)  # a journal by itself
    with pytest.raises(InputError, match=r"error of gap per atom"):
        check(directory.path, "val_error", gap_mae_per_atom=0.01)
    with pytest.raises(InputError, match=r"criterion = mae, those of this run are by rmse"):
        check(directory.path, "val_error", "rmse")
    check(directory.path, "val_error", "rmse", gap_rmse=0.01)
    check(directory.path, "val.gap", "rmse")
    outcome = replace(outcome, metrics={"energy_mae": 0.1})
    with pytest.raises(InputError, match=r"error of energy of a structure, .* by that per atom"):
        check(directory.path, "val.energy")
