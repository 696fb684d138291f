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
from hydragnn_flow.search.rungs import Rungs, bracket_shares

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
@given(
    values=VALUES,
    turns=TURNS,
    eta=st.integers(2, 4),
    size=st.integers(1, 4),
    rule=st.sampled_from(["stopping", "hyperband"]),
)
def test_stopping_is_the_naive_rule(values, turns, eta, size, rule):
    """Hyperband's in each bracket apart, where the first to arrive goes on whatever the size."""
    rungs = made(size, rungs=rule, reduction_factor=eta)
    wanted = size if rule == "stopping" else 1
    reported: dict[tuple[int, int], list[float]] = defaultdict(list)
    went_on = Counter[tuple[int, int]]()
    at = dict.fromkeys(range(len(values)), 0)
    for turn in turns:
        if not at:
            break
        number = sorted(at)[turn % len(at)]
        rung, value = at[number], values[number][at[number]]
        place = rungs.bracket(number), rung
        reported[place].append(value)
        best = sorted(reported[place])[: max(1, len(reported[place]) // eta)]
        expected = "stops"
        if rung == len(rungs.epochs(number)) - 1:
            expected = "complete"
        elif value <= best[-1] or went_on[place] < wanted:
            expected = "goes_on"
            went_on[place] += 1
        assert rungs.report(number, rung, value) == expected
        at[number] += 1
        if expected != "goes_on":
            del at[number]


@settings(deadline=None)
@given(values=VALUES, turns=TURNS, eta=st.integers(2, 4))
def test_promotion_is_algorithm_2(values, turns, eta):
    """The paper's definition: best first among the top 1/eta of a rung not yet promoted."""
    rungs = made(rungs="promotion", reduction_factor=eta)
    last = len(rungs.epochs(0)) - 1
    reported: list[dict[int, float]] = [{} for _ in range(last + 1)]
    promoted: list[set[int]] = [set() for _ in range(last + 1)]
    running = dict.fromkeys(range(len(values)), 0)
    for turn in turns:
        if turn % 3 == 0:
            expected = None
            for rung in range(last - 1, -1, -1):
                ranked = [n for _, n in sorted((v, n) for n, v in reported[rung].items())]
                top = [n for n in ranked[: len(ranked) // eta] if n not in promoted[rung]]
                if top:
                    expected = (top[0], rung)
                    break
            assert rungs.promote() == expected
            if expected is not None:
                promoted[expected[1]].add(expected[0])
                running[expected[0]] = expected[1] + 1
        elif running:
            number = sorted(running)[turn % len(running)]
            rung = running.pop(number)
            reported[rung][number] = values[number][rung]
            verdict = rungs.report(number, rung, values[number][rung])
            assert verdict == ("complete" if rung == last else "waits")
        waiting = {n for r in range(last) for n in set(reported[r]) - promoted[r]}
        assert rungs.waiting() == sorted(waiting)


@settings(deadline=None)
@given(
    values=VALUES,
    turns=TURNS,
    cut=st.integers(0, 100),
    size=st.integers(1, 3),
    rule=st.sampled_from(["stopping", "promotion", "hyperband", "none"]),
)
def test_reopened_goes_on_as_if_never_closed(values, turns, cut, size, rule):
    rungs, again = made(size, rungs=rule), made(size, rungs=rule)
    stored: dict[tuple[int, int], bool | None] = {}

    def steps(part, judges):
        for turn in part:
            going = [judge.promote() for judge in judges] if turn % 3 == 0 else [None]
            assert len(set(going)) == 1
            if going[0] is not None:
                stored[going[0]] = True
                running[going[0][0]] = going[0][1] + 1
            elif running:
                number = sorted(running)[turn % len(running)]
                rung = running.pop(number)
                verdicts = {judge.report(number, rung, values[number][rung]) for judge in judges}
                assert len(verdicts) == 1
                verdict = verdicts.pop()
                stored[number, rung] = {"goes_on": True, "waits": None}.get(verdict, False)
                if verdict == "goes_on":
                    running[number] = rung + 1

    running = dict.fromkeys(range(len(values)), 0)
    steps(turns[:cut], [rungs])
    for (number, rung), went_on in sorted(stored.items()):
        again.restore(number, rung, values[number][rung], went_on)
    assert again.waiting() == rungs.waiting()
    steps(turns[cut:], [rungs, again])


def test_a_verdict_that_was_acted_on_stands_and_others_are_given_once():
    rungs = made(reduction_factor=2)
    rungs.restore(0, 0, 5.0, went_on=True)
    rungs.restore(1, 0, 3.0, went_on=None)
    assert rungs.report(1, 0, 3.0) == "goes_on"
    for number in range(2, 9):
        rungs.restore(number, 0, 1.0, went_on=False)
    assert rungs.report(0, 0, 5.0) == "goes_on"
    rungs = made(reduction_factor=2)
    rungs.restore(0, 0, 1.0, went_on=True)
    rungs.restore(1, 0, 3.0, went_on=None)
    assert rungs.report(1, 0, 3.0) == "stops"
    # Were trial 1 ranked twice, two would be among the best and this one of them.
    assert rungs.report(2, 0, 2.0) == "stops"


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("trials", [1, 4, 11])
def test_a_closing_promotion_search_ends_with_as_many_complete_trials_as_members(trials, size):
    rungs = made(size, rungs="promotion")
    verdicts = [rungs.report(number, 0, float(number)) for number in range(trials)]
    while (promoted := rungs.promote() or rungs.promote(closing=True)) is not None:
        number, rung = promoted
        verdicts.append(rungs.report(number, rung + 1, float(number)))
    complete = min(size, trials)
    assert verdicts.count("complete") == complete
    assert rungs.waiting() == list(range(complete, trials))


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


def test_a_closing_search_takes_the_next_best_when_the_best_failed():
    rungs = made(rungs="promotion")
    for number in range(4):
        rungs.report(number, 0, float(number))
    assert rungs.promote() == (0, 0)
    rungs.forget(0)
    assert rungs.promote() is None
    assert rungs.promote(closing=True) == (1, 0)
    rungs.report(1, 1, 1.0)
    assert rungs.promote(closing=True) == (1, 1)


def test_a_failed_trial_waits_no_longer_but_keeps_its_rank():
    rungs = made(rungs="promotion")
    for number in range(3):
        rungs.report(number, 0, float(number))
    rungs.forget(0)
    assert rungs.waiting() == [1, 2]
    assert rungs.promote() is None
    for number in range(3, 6):
        rungs.report(number, 0, float(number))
    assert rungs.promote() == (1, 0)


def test_brackets_skip_rungs_and_share_the_trials():
    rungs = made(rungs="hyperband")
    shares = bracket_shares(len(RUNGS), 3)
    assert len(shares) == len(RUNGS)
    counts = [0] * len(RUNGS)
    for number in range(500):
        bracket = rungs.bracket(number)
        assert rungs.epochs(number) == RUNGS[bracket:]
        counts[bracket] += 1
        expected = [(number + 1) * share / sum(shares) for share in shares]
        assert all(abs(c - e) < 4 for c, e in zip(counts, expected, strict=True))


def test_shares_are_optunas():
    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=81, reduction_factor=3)
    pruner.prune(optuna.create_study(pruner=pruner), optuna.trial.create_trial(value=0.0))
    assert bracket_shares(5, 3) == pruner._trial_allocation_budgets


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
        for rung, epoch in enumerate(rungs.epochs(mine.number)):
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


@pytest.mark.parametrize("rule", ["stopping", "promotion", "hyperband"])
def test_a_report_costs_a_few_binary_searches(rule):
    """Sorting the rung at each of 4,000 reports would take thousands of comparisons each."""
    rungs = made(rungs=rule)
    values = np.random.default_rng(0).random(4_000).tolist()
    Counted.comparisons = 0
    for number, value in enumerate(values):
        rungs.report(number, 0, Counted(value))
        rungs.promote()
    assert 0 < Counted.comparisons / len(values) < 10 * math.log2(len(values))
