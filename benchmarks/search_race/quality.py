"""Quality of searches: regret after a number of evaluations, with trials running side by side.

Time is simulated and an evaluation costs nothing: a search of a day takes seconds or minutes, most
of them in the engine. Results are kept as lines of JSON, so that an interrupted run continues and
slow engines need to run only once.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hydragnn_flow.config import SearchConfig
from hydragnn_flow.search.rules import Rungs
from search_race.clock import Clock
from search_race.engines import Engine, EngineDied, fingerprint, make_engine
from search_race.function import Function

RUNGED = "auto_rungs"
"""The engine whose trials are judged at rungs; of functions whose trainings have curves."""
_CHEAP = ("tpe", "tpe_groups", "random")
_COSTLY = ("gp", "deephyper", "deephyper_default")
"""Engines whose searches take a minute of a core or more."""
_SLOW = (RUNGED, *_COSTLY)


@dataclass(frozen=True)
class Setting:
    """How much is evaluated."""

    in_flight: int
    evaluations: int
    seconds: float
    """How long a trial lasts, the median."""
    seeds: int
    """Searches of each function by each engine."""
    slow_seeds: int = 0
    """Searches by engines that take a minute of a core or more."""
    engines: tuple[str, ...] = ("auto", RUNGED, "batched_tpe", *_CHEAP)
    """Compared in this setting; what ships first."""

    @property
    def name(self) -> str:
        return f"{self.in_flight}:{self.evaluations}"

    def searches(self, engine: str) -> int:
        """Searches of each function by this engine."""
        if engine not in self.engines:
            return 0
        return self.slow_seeds if engine in _SLOW else self.seeds


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(4, 60, 60.0, 10, 1, ("auto", RUNGED, "batched_tpe", *_COSTLY, *_CHEAP)),
        Setting(32, 96, 600.0, 10, 1, ("auto", RUNGED, "batched_tpe", *_COSTLY, *_CHEAP)),
        Setting(256, 512, 600.0, 2, 0),
    )
}
QUICK_SETTING = Setting(4, 16, 60.0, 1, 0, ("auto", "batched_tpe", "tpe", "random"))
_SHARES = (0.25, 0.5, 0.75, 1.0)
_REDUCTION_FACTOR = 3


@dataclass(frozen=True)
class Result:
    """One search."""

    function: str
    engine: str
    setting: str
    seed: int
    regret: tuple[float, ...]
    """True loss of the best observed configuration over the best there is, after a quarter, half,
    three quarters and all of the evaluations; with rungs, of the epochs that those would take."""
    seconds: float
    """CPU time of the engine."""
    code: str
    """Fingerprints of the function and of the engine."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.function, self.engine, self.setting, self.seed


class Machine:
    """A simulated machine whose slots always have a trial, while any is left to begin.

    Parameters
    ----------
    function
        What is searched. If nothing is known of its trainings' times, the number of a trial
        decides how long it lasts, so that every engine sees results arrive in the same rhythm:
        lognormal with sigma 1, as times of networks spread.
    engine
        What proposes.
    setting
        How many slots, how many trials.
    seed
        Of the search.
    clock
        The engine's.
    """

    def __init__(
        self, function: Function, engine: Engine, setting: Setting, seed: int, clock: Clock
    ) -> None:
        self._function, self._engine, self._setting = function, engine, setting
        self._seed, self._clock = seed, clock
        drawn = np.random.default_rng([seed, 1]).lognormal(size=50 * setting.evaluations)
        self._durations = drawn.tolist()
        self._running: list[tuple[float, int, int, int]] = []
        self._params: dict[int, dict[str, object]] = {}
        self._number = 0

    def search(self) -> tuple[float, ...]:
        """Regrets after the shares of the evaluations; every trial is trained to its end."""
        evaluations = self._setting.evaluations
        self._begin(min(self._setting.in_flight, evaluations))
        best, regret, regrets = math.inf, math.inf, []
        while self._running:
            number, key, _ = self._wait()
            params = self._params.pop(number)
            value = self._function.observed(params, self._seed, number)
            if value < best:
                best, regret = value, self._regret(params)
            regrets.append(regret)
            self._engine.tell(key, value)
            if self._number < evaluations:
                self._begin(1)
        return tuple(regrets[math.ceil(share * len(regrets)) - 1] for share in _SHARES)

    def search_with_rungs(self) -> tuple[float, ...]:
        """Regrets after the shares of the epochs that as many whole trainings would take.

        The best of the configurations trained to their end counts.
        """
        assert self._function.curves is not None
        epochs = self._function.curves.rungs
        config = SearchConfig(
            trials=1,
            space=self._function.space,
            min_epochs=epochs[0],
            reduction_factor=_REDUCTION_FACTOR,
        )
        rungs = Rungs(config, epochs[-1])
        assert rungs.epochs(0) == epochs
        budget = self._setting.evaluations * epochs[-1]
        spent, best, regret = 0, math.inf, math.inf
        history: list[tuple[int, float]] = []
        self._begin(self._setting.in_flight)
        while self._running:
            number, key, rung = self._wait()
            spent += epochs[rung] - (epochs[rung - 1] if rung else 0)
            params = self._params[number]
            value = self._function.seen_at_rungs(params, self._seed, number)[rung]
            self._engine.report(key, epochs[rung], value)
            verdict = rungs.report(number, rung, value)
            if verdict == "goes_on":
                self._train(number, key, rung + 1)
                continue
            if verdict == "complete":
                if value < best:
                    best, regret = value, self._regret(params)
                self._engine.tell(key, value)
            else:
                self._engine.prune(key)
            history.append((spent, regret))
            if spent < budget:
                self._begin(1)
        return tuple(_after(history, share * budget) for share in _SHARES)

    def _regret(self, params: dict[str, object]) -> float:
        return max(self._function.value(params) - self._function.best, 0.0)

    def _begin(self, count: int) -> None:
        for key, params in self._engine.ask(count):
            self._params[self._number] = params
            self._train(self._number, key, 0)
            self._number += 1

    def _train(self, number: int, key: int, rung: int) -> None:
        """Epochs to a rung, or to the end if there are no rungs."""
        seconds, curves = self._setting.seconds, self._function.curves
        if curves is None:
            seconds *= self._durations[number]
        else:
            seconds *= curves.length(self._params[number])
        if self._engine.judged:
            assert curves is not None
            before = curves.rungs[rung - 1] if rung else 0
            seconds *= (curves.rungs[rung] - before) / curves.rungs[-1]
        heapq.heappush(self._running, (self._clock.now + seconds, number, key, rung))

    def _wait(self) -> tuple[int, int, int]:
        end, number, key, rung = heapq.heappop(self._running)
        # The driver may have been busy for longer.
        self._clock.now = max(self._clock.now, end)
        return number, key, rung


def _after(history: Sequence[tuple[int, float]], spent: float) -> float:
    """The regret of the last trial that had ended by then; of the first where none had."""
    known = [regret for at, regret in history if at <= spent and math.isfinite(regret)]
    return known[-1] if known else next(r for _, r in history if math.isfinite(r))


def search(
    function: Function, name: str, setting: Setting, seed: int, deephyper: Path | None
) -> tuple[tuple[float, ...], float]:
    """Regrets of one search by one of `ENGINES`, and CPU time of the engine [s]."""
    clock = Clock()
    with closing(make_engine(name, function, setting.in_flight, seed, deephyper, clock)) as engine:
        machine = Machine(function, engine, setting, seed, clock)
        regrets = machine.search_with_rungs() if engine.judged else machine.search()
        return regrets, engine.seconds


class Results:
    """Results on disk, one a line.

    Parameters
    ----------
    path
        The file; need not exist.
    deephyper
        An interpreter that has DeepHyper; None if it is not to run.
    functions
        Name → function; lines of others are passed over.
    """

    def __init__(
        self, path: Path, deephyper: Path | None, functions: Mapping[str, Function]
    ) -> None:
        self._path, self._deephyper, self._functions = path, deephyper, functions
        self._fingerprints = {name: f.fingerprint() for name, f in functions.items()}
        self._engines: dict[str, str] = {}

    def read(self) -> list[Result]:
        """Results that are known and not stale."""
        if not self._path.exists():
            return []
        found = {}
        for line in self._path.read_text(encoding="utf-8").splitlines():
            # Another process may be writing the last line.
            try:
                content = json.loads(line)
            except json.JSONDecodeError:
                continue
            result = Result(**{**content, "regret": tuple(content["regret"])})
            if result.function in self._functions and self._fresh(result):
                found[result.key] = result
        return list(found.values())

    def run(
        self,
        settings: Iterable[Setting],
        engines: Sequence[str],
        functions: Sequence[str],
        seeds: Sequence[int] | None,
        say: Callable[[str], None],
    ) -> None:
        """Do the searches that are missing; the first seed of all engines and functions first.

        Parameters
        ----------
        settings, engines, functions
            Which, the last two by their names.
        seeds
            As many as a setting has for an engine unless given.
        say
            Told what is being done.
        """
        known = {result.key for result in self.read()}
        chosen = [self._functions[name] for name in functions]
        for function, engine, setting, seed in _course(settings, engines, chosen, seeds):
            if engine.startswith("deephyper") and self._deephyper is None:
                continue
            if (function.name, engine, setting.name, seed) in known:
                continue
            say(f"{setting.name} {engine} on {function.name}, seed {seed}")
            try:
                regrets, seconds = search(function, engine, setting, seed, self._deephyper)
            except EngineDied:
                # Its traceback has been printed; another seed may go well.
                continue
            result = Result(
                function.name,
                engine,
                setting.name,
                seed,
                tuple(float(f"{regret:.6g}") for regret in regrets),
                round(seconds, 3),
                self._code(function.name, engine),
            )
            # In one write, so that several processes may share the file.
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")

    def _code(self, function: str, engine: str) -> str:
        if engine not in self._engines:
            self._engines[engine] = fingerprint(engine, self._deephyper)
        return f"{self._fingerprints[function]} {self._engines[engine]}"

    def _fresh(self, result: Result) -> bool:
        if result.engine.startswith("deephyper") and self._deephyper is None:
            return result.code.startswith(self._fingerprints[result.function] + " ")
        return result.code == self._code(result.function, result.engine)


def _course(
    settings: Iterable[Setting],
    engines: Sequence[str],
    functions: Sequence[Function],
    seeds: Sequence[int] | None,
) -> Iterator[tuple[Function, str, Setting, int]]:
    for setting in settings:
        for seed in range(max(setting.seeds, setting.slow_seeds)) if seeds is None else seeds:
            for engine in setting.engines:
                if engine not in engines or (seeds is None and seed >= setting.searches(engine)):
                    continue
                for function in functions:
                    if engine != RUNGED or function.curves is not None:
                        yield function, engine, setting, seed
