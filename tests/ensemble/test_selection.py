"""Which trials become members: strategies, and predictions as they lie in trials' folders."""

import copy
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from campaign_cases import CONFIG
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_cases import make_spec

from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.run import Strategy
from hydragnn_flow.ensemble import selection as module
from hydragnn_flow.ensemble.selection import Candidate, Judged, choose_trials, select_members
from hydragnn_flow.errors import InputError
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import SegmentResult, TrainingOutcome
from hydragnn_flow.training.checkpoints.checkpoint import FILE, save_checkpoint
from hydragnn_flow.training.measures.criterion import Criterion
from hydragnn_flow.training.predict import KEY, kept

STRATEGIES: tuple[Strategy, ...] = ("greedy", "top")
any_strategy, powers = st.sampled_from(STRATEGIES), st.sampled_from([1, 2])


def drawn(seed, k, power=1, n=60, together=0.5):
    """Candidates of several types whose errors have a part in common."""
    random = np.random.default_rng(seed)
    common, own = random.normal(size=n), random.normal(size=(k, n))
    residuals = random.uniform(1, 3, (k, 1)) * (together * common + (1 - together) * own)
    judged = Judged(residuals, np.full(n, 1 / n), power)
    values = judged.criterion(residuals)
    return [
        Candidate(10 + i, float(values[i]), "ABC"[random.integers(3)], int(random.integers(8, 11)))
        for i in range(k)
    ], judged


def select(strategy, size, candidates, judged):
    residuals = {c.trial: row for c, row in zip(candidates, judged.residuals, strict=True)}
    return select_members(strategy, size, candidates, residuals, judged.shares, judged.power)


@settings(max_examples=25)
@given(st.integers(0, 99), st.integers(2, 12), st.integers(2, 6), any_strategy, powers)
def test_every_strategy_holds_its_promises(seed, k, size, strategy, power):
    size = min(size, k)
    candidates, judged = drawn(seed, k, power)
    found = select(strategy, size, candidates, judged)
    assert len(found.chosen) == size
    best = min(candidates, key=lambda c: c.value)
    assert found.chosen[0].trial == best.trial and found.chosen[0].repeat == 0
    for trial, members in Counter(choice.trial for choice in found.chosen).items():
        repeats = [choice.repeat for choice in found.chosen if choice.trial == trial]
        assert repeats == list(range(members))
    assert all(choice.reason for choice in found.chosen)
    # Whoever is no member is next in line, once.
    members = {choice.trial for choice in found.chosen}
    assert sorted([*(c.trial for c in found.reserve), *members]) == [c.trial for c in candidates]
    # The order in which candidates come does not matter.
    order = np.random.default_rng(seed).permutation(k).tolist()
    turned = replace(judged, residuals=judged.residuals[order])
    again = select(strategy, size, [candidates[i] for i in order], turned)
    assert again == found
    if strategy == "greedy" and not found.chosen[1].repeat:
        pair = judged.residuals[[choice.trial - 10 for choice in found.chosen[:2]]]
        assert f"mean {judged.criterion(pair.mean(axis=0)):.4g}" in found.chosen[1].reason


def test_greedy_beats_the_best_trials_where_seeds_err_alike():
    """New seeds of five trials; errors of seeds of one have the correlation 0.6, of two 0.4."""
    random = np.random.default_rng(0)
    means = {"greedy": 0.0, "top": 0.0}
    for _ in range(10):
        of_all, of_trial = random.laplace(size=(1, 1, 400)), random.laplace(size=(5, 1, 400))
        of_seed = random.laplace(size=(5, 5, 400))
        errors = np.sqrt(0.4) * of_all + np.sqrt(0.2) * of_trial + np.sqrt(0.4) * of_seed
        errors *= random.uniform(1, 2, (5, 1, 1))
        judged = Judged(errors[:, 0], np.full(400, 1 / 400))
        candidates = list(map(Candidate, range(5), judged.criterion(judged.residuals), "ABCDE"))
        for strategy in means:
            chosen = select(strategy, 4, candidates, judged).chosen
            trained = np.stack([errors[c.trial, 1 + c.repeat] for c in chosen])
            means[strategy] += float(judged.criterion(trained.mean(axis=0)))
    assert means["greedy"] < means["top"]


def test_a_trial_far_ahead_of_the_others_gets_several_seeds():
    random = np.random.default_rng(1)
    residuals = random.normal(size=(6, 200)) * np.array([1, 50, 50, 50, 50, 50])[:, None]
    judged = Judged(residuals, np.full(200, 1 / 200))
    found = select("greedy", 4, [*map(Candidate, range(6), judged.criterion(residuals))], judged)
    assert [(c.trial, c.repeat) for c in found.chosen] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert "seed 2 of this trial" in found.chosen[1].reason


def test_a_trial_that_complements_comes_before_seeds_and_trials_that_are_alike():
    common, part, *own = np.random.default_rng(0).normal(size=(7, 4000))
    parts = [np.sqrt(0.15) * part + np.sqrt(0.05) * e for e in own[:4]] + [np.sqrt(0.2) * own[4]]
    errors, sizes = np.sqrt(0.8) * common + parts, [1, 1.001, 1.002, 1.003, 1.01]
    judged = Judged((errors.T / np.abs(errors).mean(axis=1) * sizes).T, np.ones(4000))
    chosen = select("greedy", 2, [*map(Candidate, range(5), sizes)], judged).chosen
    assert [(choice.trial, choice.repeat) for choice in chosen] == [(0, 0), (4, 0)]


def test_among_equals_another_type_is_preferred():
    own = np.random.default_rng(3).normal(size=(3, 20000))
    judged = Judged(own / np.abs(own).mean(axis=1, keepdims=True), np.full(20000, 1 / 20000))
    candidates = list(map(Candidate, range(3), [1.0] * 3, ["PNA", "PNA", "SchNet"]))
    chosen = select("greedy", 2, candidates, judged).chosen
    assert [choice.trial for choice in chosen] == [0, 2]


@pytest.mark.parametrize("worse", [1.9, 2.1])
def test_the_last_member_is_of_another_type_unless_far_worse(worse):
    signs, sizes = np.random.default_rng(3).choice([-1.0, 1.0], (2000, 3)), [1, 1.5, worse]
    judged = Judged((signs * sizes).T, np.full(2000, 1 / 2000))
    candidates = list(map(Candidate, range(3), sizes, ["PNA", "PNA", "SchNet"]))
    chosen = select("greedy", 3, candidates, judged).chosen
    assert [c.trial == 2 and "of one type" in c.reason for c in chosen] == [False, False, worse < 2]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_broke_a_limit_or_has_no_predictions_comes_last(strategy):
    candidates, judged = drawn(3, 5)
    best, *others = sorted(candidates, key=lambda candidate: candidate.value)
    place = candidates.index(best)
    candidates[place] = replace(best, feasible=False)
    found = select(strategy, 3, candidates, judged)
    assert best.trial not in {choice.trial for choice in found.chosen}
    everyone = select("top", 5, candidates, judged)
    assert "limits of search.constraints" in everyone.chosen[-1].reason
    # A trial whose predictions are lost may be the best all the same.
    candidates[place] = best
    judged.residuals[place] = np.nan
    found = select(strategy, 3, candidates, judged)
    assert found.chosen[0].trial == best.trial
    judged.residuals[:] = np.nan
    found = select(strategy, 3, candidates, judged)
    assert [choice.trial for choice in found.chosen[1:]] == [c.trial for c in others[:2]]


TYPES = ["SchNet", "SchNet", "SchNet", "EGNN", "PNA"]


@pytest.fixture
def trials(tmp_path, alloy_store):
    """Five trials: 0 to 2 err alike, 3 a little more and otherwise, 4 much more."""
    split = alloy_store["valset"]
    random = np.random.default_rng(0)
    labels = {name: split.target(name) for name in ("energy", "forces")}
    criterion = Criterion("mae", {"energy": 1.0, "forces": 1.0}, frozenset({"energy"}))
    shapes = {name: values.shape for name, values in labels.items()}
    drawn = [{name: random.normal(size=of) for name, of in shapes.items()} for _ in range(3)]
    common, other, third = drawn
    errors = [(common, 1.0), (common, 1.01), (common, 1.02), (other, 1.1), (third, 9.0)]
    results = {}
    for number, (error, size) in enumerate(errors):
        predicted = {name: values + size * error[name] for name, values in labels.items()}
        of_one = {name: values[None] for name, values in predicted.items()}
        residuals, shares, _ = criterion.residuals(of_one, labels, split.n_atoms)
        value = float(Judged(residuals, shares).criterion(residuals)[0])
        folder = tmp_path / str(number)
        spec = make_spec(folder, alloy_store, 4, number=number)
        outcome = TrainingOutcome(status="ok", best_val_error=value, best_epoch=4, checkpoint=FILE)
        results[number] = [SegmentResult.of(spec, outcome)]
        state = {"progress": {"best_val_error": value}, KEY: {split.name: kept(predicted, split)}}
        save_checkpoint(folder / FILE, state)

    def choose(size=2, failed=0, values=(0.0,) * 5, **ensemble):
        content = copy.deepcopy(CONFIG)
        content["ensemble"] |= {"size": size, **ensemble}
        config = RunConfig.model_validate(content)
        records = [
            TrialRecord(number, "failed", {}, None, "diverged: loss is NaN")
            if number < failed
            else TrialRecord(number, "pruned", {"Architecture.mpnn_type": mpnn_type}, value)
            for number, (mpnn_type, value) in enumerate(zip(TYPES, values, strict=True))
        ]
        asked = config.members, config.network["Architecture"], False
        there = records, results, lambda number: tmp_path / str(number), split, criterion
        selection, missing = choose_trials(*asked, *there)
        return [choice.trial for choice in selection.chosen], missing

    return choose, tmp_path


def test_greedy_takes_what_complements_and_not_what_is_second_best(trials, monkeypatch):
    choose, _ = trials
    assert choose() == ([0, 3], [])
    assert choose(strategy="top") == ([0, 1], [])
    monkeypatch.setattr(module, "_MOST_RESIDUALS", 60)
    assert choose() == ([0, 3], [])


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


def test_why_there_are_too_few_is_said(trials):
    choose, _ = trials
    says = "ensemble.size = 3 is more than the 2 trials .*3 failed.* loss is NaN.* search.trials"
    with pytest.raises(InputError, match=says):
        choose(3, failed=3)
