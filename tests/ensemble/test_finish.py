"""The end of a campaign: how much members count, what calibrates, tested once, told as it was."""

import json
from unittest.mock import Mock
from weakref import ref

import numpy as np
import pandas as pd
import pytest
from ensemble_cases import untrained_ensemble
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import prepare_store, write_store
from hydragnn_flow.ensemble import Ensemble, member_folder
from hydragnn_flow.ensemble import committee as members_module
from hydragnn_flow.ensemble import finish as module
from hydragnn_flow.ensemble.finish import member_weights, weights_by_fold
from hydragnn_flow.ensemble.selection import Judged
from hydragnn_flow.ensemble.uncertainty.calibration import folds
from hydragnn_flow.ensemble.uncertainty.distribution import combine, combine_noise
from hydragnn_flow.report.errors import explained
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint, save_checkpoint
from hydragnn_flow.training.predict import KEY, kept, predict_batches, split_batches


def test_members_trained_to_the_end_have_predicted(alloy_store, tmp_path, monkeypatch):
    """What the driver finds of just these weights it does not predict again."""
    monkeypatch.setattr(module, "split_batches", read := Mock(wraps=split_batches))
    untrained_ensemble(tmp_path / "made here", alloy_store, members=2)
    names = sorted(call.args[0].name for call in read.call_args_list)
    assert names == ["testset", "testset", "valset", "valset"]
    run = untrained_ensemble(tmp_path / "kept", alloy_store, members=2)
    ensemble = Ensemble.load(run)
    for split in ("valset", "testset"):
        for k, model in enumerate(ensemble.models):
            predicted = predict_batches(model, split_batches(alloy_store[split]))
            file = member_folder(run / "ensemble", k) / FILE
            state = load_checkpoint(file)
            found = state.get(KEY, {}) | {split: kept(predicted, alloy_store[split])}
            save_checkpoint(file, state | {KEY: found})
    read.reset_mock()
    untrained_ensemble(run, alloy_store, members=2)
    assert not read.called
    tables = [tmp_path / name / "predictions" / "test.parquet" for name in ("made here", "kept")]
    pd.testing.assert_frame_equal(*map(pd.read_parquet, tables))


def test_the_best_member_is_the_first_or_without_it_that_of_the_best_trial(alloy_store, tmp_path):
    for numbers, best in ((0, 1), 0), ((1, 2), 2):
        run = untrained_ensemble(tmp_path / str(best), alloy_store, numbers=numbers)
        assert json.loads((run / "ensemble" / "ensemble.json").read_text())["best_member"] == best


def test_checkpoints_are_not_in_memory_together(alloy_store, tmp_path, monkeypatch):
    """Each is several times as large as the weights that are taken from it."""

    class State(dict):
        """One that can be watched."""

    read, alive = [], []

    def watched(path, **more):
        alive.append(sum(state() is not None for state in read))
        state = State(load_checkpoint(path, **more))
        read.append(ref(state))
        return state

    monkeypatch.setattr(members_module, "load_checkpoint", watched)
    untrained_ensemble(tmp_path, alloy_store, members=3)
    assert alive and set(alive) <= {0, 1}, "the one before may go when the next has come"


def test_missing_labels_neither_calibrate_nor_count(alloy_store, tmp_path):
    splits = {name: list(alloy_store[name]) for name in alloy_store.splits}
    for name in ("valset", "testset"):
        splits[name][0].forces[:] = np.nan
    store = write_store(tmp_path / "s", splits, targets=alloy_store.manifest.targets, cutoff=4.0)
    assert store.manifest.lacking == {"testset": {"forces": 1}, "valset": {"forces": 1}}
    store.manifest.provenance["suspicious"] = {"structures": 1, "of": 24}
    run = untrained_ensemble(tmp_path / "run", store)
    summary = json.loads((run / "ensemble" / "ensemble.json").read_text())
    assert summary["suspicious"] == store.manifest.provenance["suspicious"]
    assert summary["lacking"] == store.manifest.lacking
    found = summary["calibration"]
    assert found["energy"]["structures"] == 1 + found["forces"]["structures"] == 5
    table = pd.read_parquet(run / "predictions" / "test_nodes.parquet")
    errors = [(table[f"forces_{axis}_mean"] - table[f"forces_{axis}"]).abs() for axis in "xyz"]
    assert table["forces_x"].isna().sum() == store["testset"].n_atoms[0]
    found = summary["errors"]["forces"]
    assert found["mae"]["ensemble"]["value"] == pytest.approx(pd.concat(errors).mean())
    assert found["structures"] == 4
    assert "forces: 4 structures have a label" in explained(summary)


def test_errors_are_those_of_the_tables(run, alloy_store):
    summary = json.loads((run / "ensemble" / "ensemble.json").read_text())
    assert [member["reason"] for member in summary["members"]] == ["", "diverged"]
    table = pd.read_parquet(run / "predictions" / "test.parquet")
    found, n_atoms = summary["errors"]["energy per atom"], alloy_store["testset"].n_atoms
    for column, who in (("energy_mean", "ensemble"), ("energy_member_1", "1")):
        error = 1000 * (table[column] - table["energy"]).abs() / n_atoms
        assert found["mae"][who]["value"] == pytest.approx(error.mean())
    inside = table["energy"].between(table["energy_lo"], table["energy_hi"])
    assert found["coverage"] == pytest.approx(inside.mean())


def test_a_split_of_its_own_calibrates_and_no_other_does(tmp_path):
    source = {"format": "emt_alloys", "structures": 30, "atoms": [8, 8]}
    split = {"val": 0.1, "test": 0.2, "calibration": 0.3}
    data = DataConfig.model_validate({"source": source, "split": split})
    store = prepare_store(data, 4.0, None, 0, tmp_path / "store.gs")
    sizes = {"trainset": 12, "valset": 3, "calibrationset": 9, "testset": 6}
    assert {name: len(store[name]) for name in store.splits} == sizes
    assert set(store.manifest.provenance["division"]["graphs"]) == set(store.splits)
    untrained_ensemble(tmp_path / "run", store)
    summary = json.loads((tmp_path / "run" / "ensemble" / "ensemble.json").read_text())
    assert summary["calibrated_on"] == {"split": "calibrationset", "structures": 9}
    for calibration in summary["calibration"].values():
        assert calibration["scores"][0][0]["structures"] == 9


def drawn(scales, seed, power=1, n=120):
    random = np.random.default_rng(seed)
    residuals = np.array(scales)[:, None] * random.standard_t(3, size=(len(scales), n))
    return Judged(residuals, np.full(n, 1 / n), power)


def loss(judged, weights):
    return float(judged.criterion(weights @ judged.residuals))


scales = st.lists(st.floats(0.1, 10), min_size=2, max_size=6)


@pytest.mark.parametrize("power", [1, 2])
def test_members_count_by_the_sixth_power_of_their_criterion(power):
    judged = drawn([1.0, 2.0], 3, power)
    judged.residuals[1] = 2 * judged.residuals[0]
    np.testing.assert_allclose(member_weights(judged), [64 / 65, 1 / 65])


@settings(max_examples=15)
@given(scales, st.integers(0, 50), st.sampled_from([1, 2]))
def test_the_ensemble_is_hardly_worse_than_the_best_member_on_what_chose_that_one(s, seed, power):
    judged = drawn(s, seed, power)
    weights = member_weights(judged)
    assert loss(judged, weights) <= 1.2 * float(judged.criterion(judged.residuals).min())
    assert weights.sum() == pytest.approx(1) and weights.min() >= 0
    assert np.isfinite(combine(judged.residuals[:, None], weights)).all()


@pytest.mark.parametrize("bad", [1.0, 3.0, 9.9, 10.1, 500.0])
def test_members_of_any_error_show_how_much_the_mean_is_in_doubt(bad):
    judged = drawn([1.0, bad, bad], seed=0)
    mean, spread = combine(judged.residuals[:, None], member_weights(judged))
    assert 0.8 < np.sqrt(np.square(spread).mean() / np.square(mean).mean()) < 2.5


def test_weights_of_a_fold_do_not_know_it():
    judged, by = drawn([1.0, 1.2], seed=2), folds(120)
    before = weights_by_fold(judged, by, int(by.max()) + 1)
    judged.residuals[1, by == 3] *= 100
    after = weights_by_fold(judged, by, int(by.max()) + 1)
    np.testing.assert_array_equal(after[3], before[3])
    assert (np.delete(after, 3, axis=0)[:, 1] < np.delete(before, 3, axis=0)[:, 1]).all()
    # So have folds without labels of what is judged; if one has them all, it knows itself.
    found = weights_by_fold(judged, np.full(120, 3), 10)
    np.testing.assert_allclose(found, np.tile(member_weights(judged), (10, 1)), rtol=1e-12)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("wild", [np.nan, np.inf])
def test_a_member_without_a_finite_criterion_does_not_count(wild):
    good, by = drawn([1.0, 1.2], seed=2), folds(120)
    judged = Judged(np.vstack([good.residuals, np.full(120, wild)]), good.shares)
    for _ in range(2):
        np.testing.assert_array_equal(member_weights(judged), [*member_weights(good), 0.0])
        found = weights_by_fold(judged, by, 10)
        np.testing.assert_array_equal(found[:, :2], weights_by_fold(good, by, 10))
        np.testing.assert_array_equal(found[:, 2], 0.0)
        # One structure says it all as well, and that the other folds do not know.
        judged.residuals[2, 1:] = 1.0
    judged.residuals[:2] = 0.0
    np.testing.assert_array_equal(member_weights(judged), [0.5, 0.5, 0])  # no error, all the weight
    judged.residuals[:] = np.nan
    np.testing.assert_array_equal(member_weights(judged), 1 / 3)
    np.testing.assert_array_equal(weights_by_fold(judged, by, 10), 1 / 3)


def test_a_member_without_weight_does_not_spoil_the_others():
    members = np.array([[1.0, 2.0], [3.0, 2.0], [np.nan, np.inf]])
    found = combine(members, np.array([0.5, 0.5, 0.0]))
    np.testing.assert_allclose(found, combine(members[:2], np.array([0.5, 0.5])))
    np.testing.assert_array_equal(combine(members, np.array([1.0, 0, 0])), [[1, 2], [0, 0]])
    np.testing.assert_array_equal(combine_noise(members, np.array([1.0, 0, 0])), [1, 2])
