"""Samplers by name, and the default one with its process beside the driver."""

import itertools
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import psutil
import pytest
from optuna._hypervolume import compute_hypervolume
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)
from optuna.trial import TrialState

from hydragnn_flow.config import Parameter, SearchConfig
from hydragnn_flow.config.optuna_classes import SAMPLERS
from hydragnn_flow.errors import InputError
from hydragnn_flow.search.records import Outcome, suggest
from hydragnn_flow.search.samplers import auto
from hydragnn_flow.search.samplers.auto import AutoSampler, BackgroundProposer
from hydragnn_flow.search.samplers.batched_tpe import BatchedTPESampler
from hydragnn_flow.search.samplers.proposer import Proposer
from hydragnn_flow.search.study import Search, rehearse
from hydragnn_flow.testing.samplers import SamplerSuite

SPACE = {
    "kind": Parameter(choices=("wide", "deep")),
    "rate": Parameter(float=(1e-5, 1e-1), log=True),
    "width": Parameter(int=(8, 512), log=True, when={"kind": ("wide",)}),
    "depth": Parameter(int=(1, 9), step=2, when={"kind": ("deep",)}),
}


def loss(trial):
    own = 0.05 * abs(trial["depth"] - 5) if trial["kind"] == "deep" else 0.3
    return own + (trial["rate"] - 0.01) ** 2 * 1e3


def run(study, count):
    trials = []
    for _ in range(count):
        trial = study.ask()
        trials.append(suggest(trial, SPACE))
        study.tell(trial, [loss(trials[-1])] * len(study.directions))
    return trials


@contextmanager
def automatic(**settings):
    sampler = AutoSampler(SPACE, **settings)
    try:
        yield sampler
    finally:
        sampler.close()


CLASSES: list[dict[str, Any]] = [
    {"type": "CmaEsSampler", "sigma0": 0.3},
    {"type": "NSGAIISampler", "population_size": 4, "crossover": "UniformCrossover"},
    {"type": "QMCSampler", "qmc_type": "halton"},
    {
        "type": "PartialFixedSampler",
        "fixed_params": {"only": "one value"},
        "base_sampler": "TPESampler",
    },
    {"type": "hydragnn_flow:BatchedTPESampler", "n_ei_candidates": 8},
]


class TestSamplers(SamplerSuite):
    @pytest.fixture(params=[*SAMPLERS, *CLASSES], ids=str)
    def sampler(self, request):
        # A proposal of the process beside the driver depends on when it is ready.
        return {"type": "auto", "wait": True} if request.param == "auto" else request.param


class TestBatchedTPEAsOptunaAsks(
    BasicSamplerTestCase, RelativeSamplerTestCase, MultiObjectiveSamplerTestCase
):
    """Optuna's own tests of a sampler."""

    @pytest.fixture
    def sampler(self):
        return lambda: BatchedTPESampler(n_startup_trials=0, seed=1)


GRID = {"kind": ["wide"], "rate": [0.1]}
TWO = {"objectives": ["val_error", "seconds"], "rungs": "none"}


@pytest.mark.parametrize(
    ("options", "more", "said"),
    [
        ({"type": "GridSampler", "search_space": GRID}, {}, "width, is not found"),
        ({"type": "CmaEsSampler"}, TWO, "multi-objective"),
        ("tpe", {**TWO, "rungs": "stopping"}, "tpe cannot propose for this search: "),
        ({"type": f"{__name__}:Lazy"}, {}, "Lazy cannot propose for this search: no idea"),
    ],
)
def test_what_a_sampler_cannot_do_is_told_before_the_search(options, more, said):
    config = SearchConfig.model_validate({"trials": 1, "space": SPACE, "sampler": options, **more})
    with pytest.raises(InputError, match=said) as caught:
        rehearse(config)
    assert str(caught.value).startswith("search.sampler: ")
    assert "\n" not in str(caught.value)


class Lazy(optuna.samplers.RandomSampler):
    """A user's class that has nothing to propose."""

    def sample_independent(self, *arguments):
        raise RuntimeError("no\nidea")


def test_what_is_known_of_trials():
    """Losses at rungs, of running trials too; a limit of what a trial had cost only if exceeded."""
    study = optuna.create_study()
    for value in (1.0, 2.0, 6.0):
        study.tell(study.ask(), value)
    for value in (0.5, 4.0):
        trial = study.ask()
        trial.report(value, step=1)
        trial.set_constraint("gcd_hours", value - 1)
        study.tell(trial, state=TrialState.PRUNED)
    study.tell(study.ask(), state=TrialState.FAIL)
    running = [study.ask() for _ in range(2)]
    running[1].report(3.0, step=1)
    known = auto._known(study.get_trials(), study.directions, (1, 3, 9))
    assert list(known) == [0, 1, 2, 3, 4, 5, 7]
    ends = {number: trial.numbers[0] for number, trial in known.items()}
    ends = {number: value for number, value in ends.items() if value == value}
    assert ends == {0: 1.0, 1: 2.0, 2: 6.0, 5: 6.0}
    reports = {number: trial.reports for number, trial in known.items() if trial.reports}
    assert reports == {3: [(0, 0.5)], 4: [(0, 4.0)], 7: [(0, 3.0)]}
    excesses = [trial.numbers[1] for trial in known.values()]
    assert [excess for excess in excesses if excess == excess] == [3.0]


def test_a_trial_that_has_reported_is_known_and_does_not_count_as_running(monkeypatch):
    asked: list[tuple[int, int]] = []
    propose = Proposer.propose

    def noted(self, known, running, *rest):
        asked.append((len(known), len(running)))
        return propose(self, known, running, *rest)

    monkeypatch.setattr(Proposer, "propose", noted)
    sampler = AutoSampler(SPACE, seed=0, wait=True, rung_epochs=(2, 6))
    study = optuna.create_study(sampler=sampler)
    for number in range(12):
        trial = study.ask()
        suggest(trial, SPACE)
        if number < 2:
            study.tell(trial, 1.0 + number)
        elif number < 10:
            trial.report(0.5 * number, step=2)
    assert asked[-1] == (10, 9)


def test_a_search_asks_for_verdicts_unless_trials_are_short(tmp_path, monkeypatch):
    """The ranking decides otherwise, and of the first at each rung."""
    asked = []
    continues = Proposer.continues

    def noted(self, known, running, row, *rest):
        asked.append(continues(self, known, running, row, *rest))
        return asked[-1]

    monkeypatch.setattr(Proposer, "continues", noted)
    for wait in (True, False):
        settings = {"trials": 9, "space": SPACE, "sampler": {"type": "auto", "wait": wait}}
        config = SearchConfig.model_validate({**settings, "where": ["rate < 0.05"]})
        with Search(tmp_path / f"{wait}.log", config, 18, seed=0) as search:
            for number in range(24):
                value, begun = loss(search.ask().parameters), len(asked)
                for rung in range(3):
                    verdict = search.report(number, rung, Outcome((value + 2 - rung,)))
                    if len(asked) > begun + rung:
                        assert verdict == ("goes_on" if asked[-1] else "stops")
                    if verdict != "goes_on":
                        break
            assert {"complete", "pruned"} == set(search.states)
        if wait:
            assert False in asked
            count = len(asked)
    assert len(asked) == count


def test_neither_a_trial_of_another_space_nor_losses_of_a_million_blind_the_model():
    space = {"x": Parameter(float=(0, 1)), "y": Parameter(float=(0, 1))}
    study = optuna.create_study(sampler=AutoSampler(space, seed=0, wait=True))
    study.tell(study.ask(), state=TrialState.FAIL)
    for _ in range(30):
        x, y = suggest(trial := study.ask(), space).values()
        study.tell(trial, 1e6 if x > 0.85 else (x - 0.3) ** 2 + (y - 0.6) ** 2)
    assert study.best_value < 1e-4


def test_batched_tpe_takes_over(monkeypatch):
    monkeypatch.setattr(auto, "MOST_TRIALS", 15)
    study = optuna.create_study(sampler=AutoSampler(SPACE, seed=9, wait=True))
    run(study, 15)
    other = optuna.create_study(sampler=BatchedTPESampler(seed=9))
    other.add_trials(study.get_trials())
    assert run(study, 5) == run(other, 5)


def test_proposals_spread_along_the_front_and_keep_to_limits():
    """Half of random trials exceed the limit, where both objectives are best: just at it."""
    space = {"x": Parameter(float=(0, 1)), "y": Parameter(float=(0, 1))}

    def fronts(sampler):
        study = optuna.create_study(directions=["minimize", "maximize"], sampler=sampler)
        for _ in range(40):
            trial = study.ask()
            x, y = suggest(trial, space).values()
            trial.set_constraint("sum", 1.0 - x - y)
            if trial.number % 7 == 6:
                study._storage.set_trial_intermediate_value(trial._trial_id, 1, x)
                study.tell(trial, state=TrialState.PRUNED)
            else:
                study.tell(trial, [(x - 0.3) ** 2 + y, -((x - 0.7) ** 2) - y])
        later = study.trials[10:]
        held = [trial for trial in later if trial.constraints["sum"] <= 0.01]
        front = np.array([trial.values for trial in study.best_trials]) * [1, -1]
        return len(held) / len(later), compute_hypervolume(front, np.ones(2))

    held, volume = fronts(AutoSampler(space, seed=0, wait=True, rung_epochs=(1, 2)))
    chance, random = fronts(optuna.samplers.RandomSampler(seed=0))
    assert held > 0.8 > chance
    assert volume > random


def test_short_trials_do_not_wait_for_the_process_beside_the_driver(monkeypatch):
    """They go on though it is suspended, and nothing is proposed in the driver's own process."""
    monkeypatch.setattr(Proposer, "propose", lambda *_: pytest.fail("the driver proposes"))
    monkeypatch.setattr(auto, "MOST_SECONDS", 600.0)
    with automatic(seed=0) as sampler, ThreadPoolExecutor(1) as driver:
        study = optuna.create_study(sampler=sampler)
        run(study, 8)
        proposals = sampler._supply
        assert proposals._background is None
        run(study, 1)
        assert isinstance(proposals._background, BackgroundProposer)
        process = psutil.Process(proposals._background.pid)
        process.suspend()
        try:
            assert len(driver.submit(run, study, 5).result(120)) == 5
            assert not proposals._ready
        finally:
            process.resume()
        give_up = time.monotonic() + 300
        while not proposals._ready:
            assert time.monotonic() < give_up
            run(study, 1)
            time.sleep(0.05)
        expected = proposals._ready[0]
        assert run(study, 1) == [expected]
        assert process.nice() >= 10
        sampler.close()
        assert not process.is_running()
        run(study, 2)


def test_long_trials_wait_for_proposals_that_know_all_results(monkeypatch):
    monkeypatch.setattr(auto, "MOST_SECONDS", 120.0)  # for the process to start
    hours = itertools.count(0, 36_000)
    suggested = []
    for settings in ({"clock": lambda: float(next(hours))}, {"wait": True}):
        with automatic(seed=0, **settings) as sampler:
            study = optuna.create_study(sampler=sampler)
            suggested.append(run(study, 14))
    assert suggested[0] == suggested[1]


def test_verdicts_of_the_process_beside_the_driver(monkeypatch):
    monkeypatch.setattr(auto, "MOST_SECONDS", 120.0)  # for the process to start
    hours = itertools.count(0, 36_000)
    verdicts = []
    for settings in ({"clock": lambda: float(next(hours))}, {"wait": True}):
        with automatic(seed=0, rung_epochs=(1, 9), **settings) as sampler:
            study = optuna.create_study(sampler=sampler)
            run(study, 12)
            verdicts.append([])
            for value in (9.0, 0.001):
                trial = study.ask()
                suggest(trial, SPACE)
                trial.report(value, step=1)
                frozen = study.get_trials()[trial.number]
                verdicts[-1].append(sampler.continues(study, frozen, 1))
            assert sampler.continues(study, frozen, 99) is None, "fewer are complete"
            frozen.intermediate_values = {1: 0.001, 9: float("inf")}
            assert sampler.continues(study, frozen, 1) is None, "an infinite report is ranked"
    assert verdicts[0] == verdicts[1]
    assert verdicts[0] == [False, True]


def test_batched_tpe_takes_over_when_the_process_dies(caplog):
    with automatic(seed=0) as sampler:
        study = optuna.create_study(sampler=sampler)
        run(study, 9)
        proposals = sampler._supply
        assert isinstance(proposals._background, BackgroundProposer)
        os.kill(proposals._background.pid, signal.SIGKILL)
        assert proposals._coming is not None
        proposals._coming.exception(timeout=120)
        run(study, 4)
        assert proposals._background is None
    assert "batched TPE takes over" in caplog.text


def test_the_process_ends_with_a_driver_that_is_killed():
    driver = subprocess.Popen(
        [sys.executable, "-c", _DRIVER],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    )
    assert driver.stdout is not None
    process, holder = (psutil.Process(int(word)) for word in driver.stdout.readline().split())
    try:
        driver.kill()
        driver.wait()
        process.wait(timeout=120)
    finally:
        holder.kill()
        driver.stdout.close()


# A process that the driver forks, as Parsl forks some, holds all of its pipes open.
_DRIVER = """
import os
import time
from hydragnn_flow.config import Parameter, SearchConfig
from hydragnn_flow.search.samplers.auto import BackgroundProposer
proposer = BackgroundProposer({"a": Parameter(float=(0, 1))}, 1)
proposer.propose([({"a": 0.5}, [1.0])], [], 1, 0).result()
holder = os.fork()
if holder:
    print(proposer.pid, holder, flush=True)
time.sleep(100)
"""
