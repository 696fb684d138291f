"""The end of a campaign: calibrated on validation data, tested once, told as it was."""

import json
from collections import Counter
from typing import Any
from weakref import ref

import numpy as np
import pandas as pd
import pytest
from ensemble_cases import untrained_ensemble

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import prepare_store
from hydragnn_flow.ensemble import Ensemble, member_folder
from hydragnn_flow.ensemble import committee as members_module
from hydragnn_flow.ensemble import finish as module
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint, save_checkpoint
from hydragnn_flow.training.measures.criterion import trivial_errors
from hydragnn_flow.training.predict import KEY, kept, predict_batches, split_batches


def test_members_trained_to_the_end_have_predicted(alloy_store, tmp_path, monkeypatch):
    """What the driver finds of just these weights it does not predict again."""
    read: Counter[str] = Counter()

    def counted(split):
        read[split.name] += 1
        return split_batches(split)

    monkeypatch.setattr(module, "split_batches", counted)
    untrained_ensemble(tmp_path / "made here", alloy_store, members=2)
    assert read == {"valset": 2, "testset": 2}

    run = untrained_ensemble(tmp_path / "kept", alloy_store, members=2)
    ensemble = Ensemble.load(run)
    for split in ("valset", "testset"):
        for k, model in enumerate(ensemble.models):
            predicted = predict_batches(model, split_batches(alloy_store[split]))
            file = member_folder(run / "ensemble", k) / FILE
            state = load_checkpoint(file)
            found = state.get(KEY, {}) | {split: kept(predicted, alloy_store[split])}
            save_checkpoint(file, state | {KEY: found})
    read.clear()
    untrained_ensemble(run, alloy_store, members=2)
    assert not read
    tables = [tmp_path / name / "predictions" / "test.parquet" for name in ("made here", "kept")]
    pd.testing.assert_frame_equal(*map(pd.read_parquet, tables))


def test_checkpoints_are_not_in_memory_together(alloy_store, tmp_path, monkeypatch):
    """Each is several times as large as the weights that are taken from it."""

    class State(dict[str, Any]):
        """One that can be watched."""

    read: list[ref[State]] = []
    alive: list[int] = []

    def watched(path, **more):
        alive.append(sum(state() is not None for state in read))
        state = State(load_checkpoint(path, **more))
        read.append(ref(state))
        return state

    monkeypatch.setattr(members_module, "load_checkpoint", watched)
    untrained_ensemble(tmp_path, alloy_store, members=3)
    assert alive and set(alive) <= {0, 1}, "the one before may go when the next has come"


def test_errors_are_those_of_the_tables(alloy_store, tmp_path):
    untrained_ensemble(tmp_path, alloy_store)
    summary = json.loads((tmp_path / "ensemble" / "ensemble.json").read_text())
    best = summary["best_member"]
    assert [member["reason"] for member in summary["members"]] == ["", "diverged"]
    table = pd.read_parquet(tmp_path / "predictions" / "test.parquet")
    found = summary["test"]["energy"]
    for column, who in (("energy_mean", "ensemble"), (f"energy_member_{best}", "best_member")):
        error = (table[column] - table["energy"]).abs()
        assert found[f"mae_{who}"] == pytest.approx(error.mean())
        assert found[f"mae_per_atom_{who}"] == pytest.approx(
            np.mean(error / alloy_store["testset"].n_atoms)
        )
    inside = table["energy"].between(table["energy_lo"], table["energy_hi"])
    assert found["coverage"] == pytest.approx(inside.mean())


def test_the_best_member_has_the_smallest_criterion(alloy_store, tmp_path):
    """Of its validation predictions, whatever its training told."""
    untrained_ensemble(tmp_path, alloy_store, members=3)
    summary = json.loads((tmp_path / "ensemble" / "ensemble.json").read_text())
    found = Ensemble.load(tmp_path).predict(alloy_store, split="valset", members=True)
    n_atoms = alloy_store["valset"].n_atoms
    unit = trivial_errors(alloy_store["trainset"], alloy_store.manifest)
    errors = []
    for k in range(3):
        energy = (found.graphs[f"energy_member_{k}"] - found.graphs["energy"]) / n_atoms
        forces = [found.nodes[f"forces_{c}_member_{k}"] - found.nodes[f"forces_{c}"] for c in "xyz"]
        relative = np.mean(np.abs(energy)) / unit["energy"]
        errors.append((relative + np.mean(np.abs(forces)) / unit["forces"]) / 2)
    told = [member["best_val_error"] for member in summary["members"]]
    assert summary["best_member"] == np.argmin(errors) != np.argmin(told)


def test_a_split_of_its_own_calibrates_and_no_other_does(tmp_path):
    data = DataConfig.model_validate(
        {
            "source": {"format": "emt_alloys", "structures": 30, "atoms": [8, 8]},
            "split": {"val": 0.1, "test": 0.2, "calibration": 0.3},
        }
    )
    store = prepare_store(data, 4.0, None, 0, tmp_path / "store.gs")
    assert {name: len(store[name]) for name in store.splits} == {
        "trainset": 12,
        "valset": 3,
        "calibrationset": 9,
        "testset": 6,
    }
    assert set(store.manifest.provenance["division"]["graphs"]) == set(store.splits)
    untrained_ensemble(tmp_path / "run", store)
    summary = json.loads((tmp_path / "run" / "ensemble" / "ensemble.json").read_text())
    assert summary["calibrated_on"] == {"split": "calibrationset", "structures": 9}
    for calibration in summary["calibration"].values():
        assert calibration["scores"][0][0]["structures"] == 9
