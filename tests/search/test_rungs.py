"""The rules at the rungs against their plain definitions."""

import math
from collections import Counter, defaultdict

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.config import Parameter, SearchConfig
from hydragnn_flow.config.optuna_classes import build_pruner
from hydragnn_flow.search.rungs import Rungs

NUM_EPOCH = 20
RUNGS = (2, 6, 18, 20)
SPACE = {"Architecture.hidden_dim": Parameter(int=(8, 64))}


def configured(**options):
    return SearchConfig.model_validate({"trials": 9, "min_epochs": 2, "space": SPACE, **options})


def made(ensemble_size=1, **options):
    return Rungs(configured(**options), NUM_EPOCH, ensemble_size=ensemble_size)


# Values of the trials at their rungs, falling, with many ties; and who reports next.
VALUES = st.builds(
    lambda trials, seed: falling(np.random.default_rng(seed).integers(0, 4, (trials, 5))),
    st.integers(1, 20),
    st.integers(0, 10**6),
)
TURNS = st.builds(
    lambda seed: np.random.default_rng(seed).integers(0, 10**6, 200).tolist(), st.integers(0, 10**6)
)


def falling(table):
    losses: list[list[float]] = np.cumsum(table[:, ::-1], axis=1)[:, ::-1].astype(float).tolist()
    return losses


@settings(deadline=None)
@given(values=VALUES, turns=TURNS, eta=st.integers(2, 4), size=st.integers(1, 4))
def test_stopping_is_the_naive_rule(values, turns, eta, size):
    rungs = made(size, reduction_factor=eta)
    reported: dict[int, list[float]] = defaultdict(list)
    went_on = Counter[int]()
    at = dict.fromkeys(range(len(values)), 0)
    for turn in turns:
        if not at:
            break
        number = sorted(at)[turn % len(at)]
        rung, value = at[number], values[number][at[number]]
        reported[rung].append(value)
        best = sorted(reported[rung])[: max(1, len(reported[rung]) // eta)]
        expected = "stops"
        if rung == len(rungs.epochs) - 1:
            expected = "complete"
        elif value <= best[-1] or went_on[rung] < size:
            expected = "goes_on"
            went_on[rung] += 1
        assert rungs.report(number, rung, value) == expected
        at[number] += 1
        if expected != "goes_on":
            del at[number]


@settings(deadline=None)
@given(
    values=VALUES,
    turns=TURNS,
    cut=st.integers(0, 100),
    size=st.integers(1, 3),
    rule=st.sampled_from(["stopping", "none"]),
)
def test_reopened_goes_on_as_if_never_closed(values, turns, cut, size, rule):
    rungs, again = made(size, rungs=rule), made(size, rungs=rule)
    stored: dict[tuple[int, int], bool] = {}

    def steps(part, judges):
        for turn in part:
            if not running:
                return
            number = sorted(running)[turn % len(running)]
            rung = running.pop(number)
            (verdict,) = {judge.report(number, rung, values[number][rung]) for judge in judges}
            stored[number, rung] = verdict == "goes_on"
            if verdict == "goes_on":
                running[number] = rung + 1

    running = dict.fromkeys(range(len(values)), 0)
    steps(turns[:cut], [rungs])
    for (number, rung), went_on in sorted(stored.items()):
        again.restore(number, rung, values[number][rung], went_on)
    steps(turns[cut:], [rungs, again])


def test_a_verdict_that_was_acted_on_stands_and_others_are_given_once():
    rungs = made(reduction_factor=2)
    rungs.restore(0, 0, 5.0, went_on=True)
    rungs.restore(1, 0, 3.0, went_on=False)
    assert rungs.report(1, 0, 3.0) == "goes_on"
    for number in range(2, 9):
        rungs.restore(number, 0, 1.0, went_on=False)
    assert rungs.report(0, 0, 5.0) == "goes_on"
    rungs = made(reduction_factor=2)
    rungs.restore(0, 0, 1.0, went_on=True)
    rungs.restore(1, 0, 3.0, went_on=False)
    assert rungs.report(1, 0, 3.0) == "stops"
    # Were trial 1 ranked twice, two would be among the best and this one of them.
    assert rungs.report(2, 0, 2.0) == "stops"


@pytest.mark.parametrize("seed", range(5))
def test_a_small_search_leaves_trials_to_choose_from(seed):
    """Of 24, with two rungs before the end, three were complete where four members were wanted."""
    rungs = Rungs(configured(), 18, ensemble_size=4)
    values, complete = np.random.default_rng(seed).random(24), 0
    for number, value in enumerate(values):
        rung = 0
        while (verdict := rungs.report(number, rung, float(value))) == "goes_on":
            rung += 1
        complete += verdict == "complete"
    assert 4 <= complete <= 12


def test_one_that_failed_makes_room_for_another():
    rungs = made(2, reduction_factor=4)
    for number in range(2):
        assert rungs.report(number, 0, 1.0) == "goes_on"
    assert rungs.report(2, 0, 9.0) == "stops"
    rungs.forget(0)
    assert rungs.report(3, 0, 9.0) == "goes_on"
    assert rungs.report(4, 0, 9.0) == "stops"


PRUNERS = [
    {"type": "MedianPruner", "n_startup_trials": 2},
    {"type": "SuccessiveHalvingPruner", "min_resource": 2, "reduction_factor": 3},
    {"type": "HyperbandPruner", "min_resource": 2, "max_resource": 20},
    {"type": "PatientPruner", "patience": 0, "wrapped_pruner": {"type": "MedianPruner"}},
]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("options", PRUNERS, ids=lambda options: options["type"])
def test_any_optuna_pruner_judges_as_it_does_in_optuna(options):
    study = optuna.create_study(study_name="ours")
    rungs = Rungs(configured(pruner=options), NUM_EPOCH, study)
    theirs = optuna.create_study(study_name="ours", pruner=build_pruner(options))
    rng = np.random.default_rng(0)
    pruned = 0
    for _ in range(40):
        mine, other = study.ask(), theirs.ask()
        value = float(rng.uniform(1, 6))
        for rung, epoch in enumerate(rungs.epochs):
            value *= rng.uniform(0.6, 1.05)
            study._storage.set_trial_intermediate_value(mine._trial_id, epoch, value)
            other.report(value, epoch)
            verdict = rungs.report(mine.number, rung, value)
            if verdict == "complete":
                study.tell(mine, value)
                theirs.tell(other, value)
            else:
                assert verdict == ("stops" if other.should_prune() else "goes_on")
            if verdict == "stops":
                pruned += 1
                study.tell(mine, state=optuna.trial.TrialState.PRUNED)
                theirs.tell(other, state=optuna.trial.TrialState.PRUNED)
                break
    assert pruned > 0


class Counted(float):
    """A value that counts how often it is compared."""

    comparisons = 0

    def __lt__(self, other):
        Counted.comparisons += 1
        return float(self) < other

    def __eq__(self, other):
        Counted.comparisons += 1
        return float(self) == other

    __hash__ = float.__hash__


def test_a_report_costs_a_few_binary_searches():
    """Sorting the rung at each of 4,000 reports would take thousands of comparisons each."""
    rungs = made()
    values = np.random.default_rng(0).random(4_000).tolist()
    Counted.comparisons = 0
    for number, value in enumerate(values):
        rungs.report(number, 0, Counted(value))
    assert 0 < Counted.comparisons / len(values) < 10 * math.log2(len(values))
