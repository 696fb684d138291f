"""Trials that become members are chosen by what they predicted, as it lies in their folders."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
from campaign_cases import CONFIG
from segment_cases import make_spec

from hydragnn_flow.config import RunConfig
from hydragnn_flow.ensemble import selection as module
from hydragnn_flow.ensemble.selection import choose_trials
from hydragnn_flow.errors import InputError
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import SegmentResult, TrainingOutcome
from hydragnn_flow.training.checkpoints.checkpoint import FILE, save_checkpoint
from hydragnn_flow.training.measures.criterion import Criterion
from hydragnn_flow.training.predict import KEY, kept

Choose = Callable[..., tuple[list[int], list[int]]]
TYPES = ["SchNet", "SchNet", "SchNet", "EGNN", "PNA"]


@pytest.fixture
def trials(tmp_path, alloy_store):
    """Five trials: 0 to 2 err alike, 3 a little more and otherwise, 4 much more."""
    split = alloy_store["valset"]
    random = np.random.default_rng(0)
    labels = {name: split.target(name) for name in ("energy", "forces")}
    criterion = Criterion("mae", {"energy": 1.0, "forces": 1.0}, frozenset({"energy"}))
    n_atoms = split.n_atoms.astype(float)
    common, other, third = (
        {name: random.normal(size=values.shape) for name, values in labels.items()}
        for _ in range(3)
    )
    errors = [(common, 1.0), (common, 1.01), (common, 1.02), (other, 1.1), (third, 9.0)]
    results = {}
    for number, (error, size) in enumerate(errors):
        predicted = {name: values + size * error[name] for name, values in labels.items()}
        of_one = {name: values[None] for name, values in predicted.items()}
        value = float(criterion.of_predictions(of_one, labels, n_atoms)[0])
        folder = tmp_path / str(number)
        spec = make_spec(folder, alloy_store, 4, number=number)
        outcome = TrainingOutcome(status="ok", best_val_error=value, best_epoch=4, checkpoint=FILE)
        results[spec.number] = [SegmentResult.of(spec, outcome)]
        progress = {"best_val_error": value}
        of_split = {split.name: kept(predicted, split)}
        save_checkpoint(folder / FILE, {"progress": progress, KEY: of_split})

    def choose(size=2, failed=0, values=(0.0,) * 5, **ensemble):
        content = copy.deepcopy(CONFIG)
        content["ensemble"] |= {"size": size, **ensemble}
        records = [
            TrialRecord(number, "pruned", {"Architecture.mpnn_type": mpnn_type}, value)
            for number, (mpnn_type, value) in enumerate(zip(TYPES, values, strict=True))
        ]
        for number in range(failed):
            records[number] = TrialRecord(number, "failed", {}, None, "diverged: loss is NaN")
        config = RunConfig.model_validate(content)
        selection, missing = choose_trials(
            config.members,
            config.network["Architecture"],
            config.search.keep_checkpoints == "best",
            records,
            results,
            lambda number: tmp_path / str(number),
            split,
            criterion,
        )
        return [choice.trial for choice in selection.chosen], missing

    return choose, tmp_path


def test_greedy_reads_predictions(trials):
    choose, _ = trials
    assert choose() == ([0, 3], [])
    assert choose(strategy="top") == ([0, 1], [])
    assert choose(3, strategy="best_of_each_type") == ([0, 3, 4], [])


def test_the_best_by_the_criterion_are_read_whatever_the_objective_was(trials, monkeypatch):
    choose, _ = trials
    monkeypatch.setattr(module, "_MOST_TRIALS", 4)
    # Of the first objective trial 4 is the best.
    assert choose(values=[5.0, 4.0, 3.0, 2.0, 1.0]) == ([0, 3], [])


def test_lost_predictions_are_told_and_their_trials_count_by_their_criterion(trials):
    choose, folder = trials
    file = folder / "0" / FILE
    file.write_bytes(file.read_bytes()[:-10])
    chosen, missing = choose()
    assert missing == [0] and chosen[0] == 0
    # Predictions of other weights are no better than none.
    (folder / "4" / FILE).write_bytes((folder / "3" / FILE).read_bytes())
    assert choose()[1] == [0, 4]
    for number in range(5):
        (folder / str(number) / FILE).unlink()
    assert choose() == ([0, 1], [0, 1, 2, 3, 4])


def test_a_part_of_many_residuals_says_the_same(trials, monkeypatch):
    choose, _ = trials
    monkeypatch.setattr(module, "_MOST_RESIDUALS", 60)
    assert choose() == ([0, 3], [])


def test_why_there_are_too_few_is_said(trials):
    choose, _ = trials
    with pytest.raises(InputError) as caught:
        choose(3, failed=3)
    message = str(caught.value)
    assert "ensemble.size = 3 is more than the 2 trials" in message and "3 failed" in message
    assert "diverged: loss is NaN" in message and "search.trials" in message
    assert "\n" not in message
