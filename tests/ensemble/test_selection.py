"""Which trials become members: strategies as functions of candidates' errors."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.config.run import Strategy
from hydragnn_flow.ensemble.selection import Candidate, Judged, select_members

STRATEGIES: tuple[Strategy, ...] = ("greedy", "top", "best_of_each_type")


def drawn(seed, k, power=1, n=60, together=0.5):
    """Candidates of several types whose errors have a part in common."""
    random = np.random.default_rng(seed)
    common = random.normal(size=n)
    own = random.normal(size=(k, n))
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


def rows(selection, candidates, judged):
    place = {candidate.trial: i for i, candidate in enumerate(candidates)}
    return judged.rows([place[choice.trial] for choice in selection.chosen])


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 99),
    k=st.integers(2, 12),
    size=st.integers(2, 6),
    strategy=st.sampled_from(STRATEGIES),
    power=st.sampled_from([1, 2]),
)
def test_every_strategy_holds_its_promises(seed, k, size, strategy, power):
    size = min(size, k)
    candidates, judged = drawn(seed, k, power)
    found = select(strategy, size, candidates, judged)
    assert len(found.chosen) == size
    best = min(candidates, key=lambda c: c.value)
    assert found.chosen[0].trial == best.trial and found.chosen[0].repeat == 0
    # Seeds of a trial are counted.
    for trial, members in Counter(choice.trial for choice in found.chosen).items():
        repeats = [choice.repeat for choice in found.chosen if choice.trial == trial]
        assert repeats == list(range(members))
    assert all(choice.reason for choice in found.chosen)
    # Whoever is no member is next in line, once.
    line = [choice.trial for choice in found.reserve]
    members = {choice.trial for choice in found.chosen}
    assert sorted([*line, *members]) == [candidate.trial for candidate in candidates]
    # The order in which candidates come does not matter.
    order = np.random.default_rng(seed).permutation(k).tolist()
    again = select(strategy, size, [candidates[i] for i in order], judged.rows(order))
    assert again == found


def test_greedy_beats_the_best_trials_where_seeds_err_alike():
    """New seeds of five trials; errors of seeds of one have the correlation 0.6, of two 0.4."""
    random = np.random.default_rng(0)
    means = dict.fromkeys(STRATEGIES, 0.0)
    for _ in range(10):
        sizes = random.uniform(1, 2, 5)
        of_all, of_trial = random.laplace(size=(1, 1, 400)), random.laplace(size=(5, 1, 400))
        errors = np.sqrt(0.4) * of_all + np.sqrt(0.2) * of_trial
        errors = errors + np.sqrt(0.4) * random.laplace(size=(5, 5, 400))
        errors *= sizes[:, None, None]
        judged = Judged(errors[:, 0], np.full(400, 1 / 400))
        values = judged.criterion(judged.residuals)
        candidates = [Candidate(i, float(value), "ABCDE"[i]) for i, value in enumerate(values)]
        for strategy in STRATEGIES:
            chosen = select(strategy, 4, candidates, judged).chosen
            trained = Judged(
                np.stack([errors[c.trial, 1 + c.repeat] for c in chosen]), judged.shares
            )
            means[strategy] += float(trained.criterion(trained.residuals.mean(axis=0))) / 10
    assert means["greedy"] < means["top"]


def test_greedy_takes_what_complements_and_not_what_is_second_best():
    """Trials 0 to 3 err alike; trial 4 is worse alone, and errs otherwise."""
    random = np.random.default_rng(0)
    common, other = random.normal(size=(2, 400))
    alike = [(1 + 0.01 * i) * common for i in range(4)]
    judged = Judged(np.stack([*alike, 1.2 * other]), np.full(400, 1 / 400))
    candidates = [
        Candidate(i, float(value)) for i, value in enumerate(judged.criterion(judged.residuals))
    ]
    chosen = {choice.trial for choice in select("greedy", 2, candidates, judged).chosen}
    assert 4 in chosen
    assert {choice.trial for choice in select("top", 2, candidates, judged).chosen} == {0, 1}


def test_a_trial_far_ahead_of_the_others_gets_several_seeds():
    random = np.random.default_rng(1)
    residuals = random.normal(size=(6, 200)) * np.array([1, 50, 50, 50, 50, 50])[:, None]
    judged = Judged(residuals, np.full(200, 1 / 200))
    values = judged.criterion(residuals)
    candidates = [Candidate(i, float(value)) for i, value in enumerate(values)]
    found = select("greedy", 4, candidates, judged)
    assert [(c.trial, c.repeat) for c in found.chosen] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert "seed 2 of this trial" in found.chosen[1].reason


def test_the_best_trial_is_first_once_where_its_predictions_are_lost():
    candidates = [Candidate(i, 1.0 + i) for i in range(4)]
    residuals = {i: np.random.default_rng(i).normal(size=50) for i in (1, 2, 3)}
    found = select_members("greedy", 3, candidates, residuals, np.full(50, 0.02))
    assert found.chosen[0].trial == 0
    reasons = [choice.reason for choice in found.chosen]
    assert ["the best trial" in reason for reason in reasons] == [True, False, False]


def test_among_equals_another_type_is_preferred():
    random = np.random.default_rng(2)
    own = random.normal(size=(3, 20000))
    judged = Judged(own / np.abs(own).mean(axis=1, keepdims=True), np.full(20000, 1 / 20000))
    types = ["PNA", "PNA", "SchNet"]
    candidates = [Candidate(i, 1.0, mpnn_type) for i, mpnn_type in enumerate(types)]
    chosen = select("greedy", 2, candidates, judged).chosen
    assert [choice.trial for choice in chosen] == [0, 2]


def test_best_of_each_type_goes_round_the_types():
    types = ["A", "A", "A", "B", "C", "B"]
    candidates = [Candidate(i, 1.0 + i, mpnn_type) for i, mpnn_type in enumerate(types)]
    judged = Judged(np.ones((6, 3)), np.ones(3))
    chosen = select("best_of_each_type", 5, candidates, judged).chosen
    assert [choice.trial for choice in chosen] == [0, 3, 4, 1, 5]


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
    if strategy != "best_of_each_type":
        assert [choice.trial for choice in found.chosen[1:]] == [c.trial for c in others[:2]]
