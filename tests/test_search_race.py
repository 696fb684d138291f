"""The race of searches: functions are frozen, time is simulated, "ahead" is beyond two errors."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from results.code import REPOSITORY, fingerprints
from search_race import engines, report
from search_race.clock import Awaited, Clock
from search_race.development import DEVELOPMENT
from search_race.function import Curves, Function
from search_race.held_out import HELD_OUT
from search_race.idle import cost, idle_fractions
from search_race.quality import Machine, Result, Results, Setting, search
from search_race.recorded.grids import GRIDS
from search_race.recorded.surrogate import Surrogate
from search_race.recorded.tasks import TASKS

from hydragnn_flow.config import Parameter
from hydragnn_flow.search.samplers.background import Proposals

FROZEN = {
    "hydra": "5ed5867fbe6d",
    "ackley": "2a87ec1832f1",
    "branches": "db0f27674a94",
    "types": "3bbcac2a6bde",
    "rugged": "93727a7ba583",
    "scaled": "0ab930f667b1",
    "diabetes": "bb4d47a8f2f0",
    "alloys": "eb4a3698a09e",
    "perovskites": "812827ebe683",
    "boosting": "f2bb523b8a2c",
    "digits": "3428d1f3c3b1",
    "molecule": "8b2dad673e21",
    "tumours": "6c92e7e75daf",
    "hartmann": "4198b0ed17a5",
}


@pytest.mark.parametrize("name", [*DEVELOPMENT, *HELD_OUT])
def test_functions_are_frozen(name: str) -> None:
    function = (DEVELOPMENT | HELD_OUT)[name]
    assert function.fingerprint() == FROZEN[name]


@pytest.mark.parametrize("name", [*DEVELOPMENT, *HELD_OUT])
def test_no_configuration_is_better_than_the_best(name: str) -> None:
    function = (DEVELOPMENT | HELD_OUT)[name]
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    losses = [function.value(function.suggest(study.ask())) for _ in range(300)]
    assert min(losses) >= function.best
    assert np.ptp(losses) > 0


@pytest.mark.parametrize("name", TASKS)
def test_what_was_recorded_is_what_networks_say(name: str) -> None:
    """Loosely: trainings scatter, and those that diverge count as the worst of the others."""
    task = TASKS[name]
    with np.load(task.file) as held:
        params, curves = held["params"], held["log_losses"].astype(float)
    assert len(params) == task.drawn + task.near + task.again
    final = np.fmin.reduce(curves[: task.drawn], axis=1)
    surrogate = Surrogate(task.file, task.space)
    domains = _domains(task.space)
    trials = [
        {
            key: domains[key].to_external_repr(float(value))
            for key, value in zip(task.space, row, strict=True)
            if not math.isnan(value)
        }
        for row in params[: task.drawn]
    ]
    foreseen = np.log(surrogate.losses(trials))
    assert (np.diff(foreseen, axis=1) <= 0).all()
    order, expected = np.argsort(np.argsort(foreseen[:, -1])), np.argsort(np.argsort(final))
    assert np.corrcoef(order, expected)[0, 1] > 0.7


def _domains(space: dict[str, Parameter]) -> dict[str, Any]:
    from hydragnn_flow.search.space import distributions

    return distributions(space)


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_has_every_configuration(name: str) -> None:
    grid = GRIDS[name]
    with np.load(grid.file) as held:
        for kind, levels in grid.levels.items():
            assert held[kind].shape == tuple(map(len, levels.values()))
            assert np.isfinite(held[kind]).all()


def test_proposals_are_there_when_their_time_has_come() -> None:
    clock = Clock()
    proposals = Proposals([{"x": 1}], 3.0)
    awaited = Awaited(clock, 3.0, proposals)
    assert not awaited.done()
    with pytest.raises(TimeoutError):
        awaited.result(timeout=1.0)
    assert clock.now == 1.0
    assert awaited.result(timeout=5.0) == proposals
    assert clock.now == 3.0 and awaited.done()


class Drawing:
    """An engine that draws at random and notes what it is told."""

    judged = False
    seconds = 0.0

    def __init__(self) -> None:
        self.rng, self.asked = np.random.default_rng(0), 0
        self.told: list[int] = []
        self.most = 0

    def ask(self, count: int) -> list[tuple[int, dict[str, Any]]]:
        first, self.asked = self.asked, self.asked + count
        self.most = max(self.most, self.asked - len(self.told))
        return [(key, {"x": float(self.rng.random())}) for key in range(first, first + count)]

    def tell(self, key: int, value: float) -> None:
        self.told.append(key)

    def report(self, key: int, epoch: int, value: float) -> None: ...

    def prune(self, key: int) -> None:
        self.told.append(key)

    def close(self) -> None: ...


LINE = Function("line", "a line", {"x": Parameter(float=(0, 1))}, lambda p: p["x"], best=0.0)


def test_slots_are_never_empty_while_trials_are_left() -> None:
    engine, clock = Drawing(), Clock()
    regrets = Machine(LINE, engine, Setting(4, 40, 60.0, 1), 0, clock).search()
    assert sorted(engine.told) == list(range(40))
    assert engine.most == 4
    assert engine.told != sorted(engine.told)  # trials are of different lengths
    assert list(regrets) == sorted(regrets, reverse=True)


def test_with_rungs_the_same_epochs_serve_more_trials() -> None:
    curves = Curves((2, 6, 18), lambda p: (p["x"] + 2, p["x"] + 1, p["x"]), lambda p: 1.0)
    engine, clock = Drawing(), Clock()
    engine.judged = True
    function = replace(LINE, curves=curves)
    regrets = Machine(function, engine, Setting(4, 40, 60.0, 1), 0, clock).search_with_rungs()
    assert len(engine.told) > 2 * 40
    assert engine.most == 4
    assert list(regrets) == sorted(regrets, reverse=True)


def test_a_search_by_what_ships_can_be_repeated() -> None:
    setting = Setting(3, 12, 60.0, 1)
    once, again = (search(DEVELOPMENT["types"], "auto", setting, 1, None)[0] for _ in range(2))
    assert once == again


def results(engine: str, regrets: Iterable[Iterable[float]]) -> list[Result]:
    """Regrets of functions `a`, `b`, … by seed; half of them at the end."""
    return [
        Result("abcdefgh"[i], engine, "4:60", seed, (2 * r, 2 * r, r, r), 1.0, "")
        for i, of_function in enumerate(regrets)
        for seed, r in enumerate(of_function)
    ]


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([[0.5, 0.6], [0.5, 0.5], [0.4, 0.6]], "ahead"),
        ([[1.4, 1.6], [1.5, 1.5], [1.6, 1.5]], "behind"),
        # Far ahead on one function, behind on the others: nothing can be said of a fourth.
        ([[0.0, 0.0], [1.1, 1.1], [1.1, 1.1]], "equal"),
    ],
)
def test_ahead_is_beyond_two_standard_errors_over_functions(
    ours: list[list[float]], verdict: str
) -> None:
    known = results("random", [[2.0, 2.0]] * 3) + results("auto", ours)
    known += results("tpe", [[1.0, 1.0]] * 3)
    told = report.Report(known, ["a", "b", "c"], [Setting(4, 60, 60.0, 2)])
    end, half = told.differences()
    assert (end.verdict, half.verdict) == (verdict, verdict)
    assert end.mean == pytest.approx(np.mean(ours) / 2 - 0.5)
    assert end.ratio == pytest.approx(np.mean(ours))
    per_function = np.mean(ours, axis=1) / 2
    assert end.error == pytest.approx(per_function.std(ddof=1) / math.sqrt(3))


def test_nothing_is_said_of_a_peer_known_on_one_function() -> None:
    known = results("random", [[2.0]] * 2) + results("auto", [[0.5]] * 2) + results("gp", [[1.0]])
    assert report.Report(known, ["a", "b"], [Setting(4, 60, 60.0, 1)]).differences() == []


def test_slow_engines_have_fewer_seeds_unless_they_are_given(tmp_path: Path) -> None:
    setting = Setting(4, 8, 60.0, 2, 1, ("gp", "random"))
    functions = {"ackley": DEVELOPMENT["ackley"]}
    for seeds, expected in ((None, {("gp", 0), ("random", 0), ("random", 1)}), ([1], {("gp", 1)})):
        kept = Results(tmp_path / f"{seeds}.jsonl", None, functions)
        names = ["gp", "random"] if seeds is None else ["gp"]
        kept.run([setting], names, ["ackley"], seeds, lambda text: None)
        assert {(one.engine, one.seed) for one in kept.read()} == expected


def test_results_of_other_code_are_stale(tmp_path: Path) -> None:
    kept = Results(tmp_path / "searches.jsonl", None, {"ackley": DEVELOPMENT["ackley"]})
    setting = Setting(4, 8, 60.0, 1)
    kept.run([setting], ["random", "tpe"], ["ackley"], [0], lambda text: None)
    assert {one.engine for one in kept.read()} == {"random", "tpe"}
    text = (tmp_path / "searches.jsonl").read_text()
    optuna_version = f"optuna {optuna.__version__}"
    (tmp_path / "searches.jsonl").write_text(text.replace(optuna_version, "optuna 4.0.0", 1))
    assert len(kept.read()) == 1


def test_words_of_a_sampler_leave_its_searches_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samplers, clock = "hydragnn_flow/search/samplers", "benchmarks/search_race/clock.py"
    shutil.copytree(REPOSITORY / samplers, tmp_path / samplers)
    (tmp_path / clock).parent.mkdir(parents=True)
    shutil.copy(REPOSITORY / clock, tmp_path / clock)
    monkeypatch.setattr(engines, "fingerprints", partial(fingerprints, root=tmp_path))
    module = tmp_path / samplers / "parzen.py"
    text, names = module.read_text(), ("batched_tpe", "auto")
    before = [engines.fingerprint(name, None) for name in names]
    module.write_text(text.replace('"""Mixture', '"""A mixture').replace("    #", "    # So:"))
    assert module.read_text() != text
    assert [engines.fingerprint(name, None) for name in names] == before
    module.write_text(text.replace("FLAT = 25", "FLAT = 26"))
    after = [engines.fingerprint(name, None) for name in names]
    assert not set(before) & set(after)


def test_a_start_at_random_costs_next_to_nothing() -> None:
    seconds = cost({100: 10.0, 200: 20.0}, start=0.001)
    assert (seconds(0), seconds(150), seconds(300)) == (0.001, 15.0, 30.0)
    dear = idle_fractions(lambda finished: 1.0, after=(50,), gcds=100)
    cheap = idle_fractions(lambda finished: 1.0 if finished else 0.001, after=(50,), gcds=100)
    assert cheap[0] < dear[0]
