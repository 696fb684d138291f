"""How good what a search finds is: regret after so many evaluations, trials running side by side.

An evaluation costs nothing here; when it would have ended is drawn. Results are kept as lines of
JSON, so that an interrupted run goes on and slow engines need to run only once.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from search_race.engines import OURS, Engine, fingerprint, make_engine
from search_race.functions import FUNCTIONS, Function


@dataclass(frozen=True)
class Setting:
    """How much is evaluated."""

    in_flight: int
    evaluations: int
    engines: tuple[str, ...]
    """Compared in this setting; ours first."""

    @property
    def name(self) -> str:
        return f"{self.in_flight}:{self.evaluations}"


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(64, 384, ("batched_tpe", "tpe", "random")),
        Setting(256, 1536, ("batched_tpe", "tpe", "random")),
        Setting(32, 200, ("auto", "batched_tpe", "gp", "deephyper", "tpe", "random")),
    )
}
QUICK_SETTING = Setting(4, 16, ("batched_tpe", "auto", "tpe", "random"))
_SHARES = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Result:
    """One search."""

    function: str
    engine: str
    setting: str
    seed: int
    regret: tuple[float, ...]
    """True loss of the best observed configuration over the best there is, after a quarter, half,
    three quarters and all of the evaluations."""
    seconds: float
    """CPU time of the engine."""
    code: str
    """Fingerprints of the function and of the engine."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.function, self.engine, self.setting, self.seed


def search(function: Function, engine: Engine, setting: Setting, seed: int) -> tuple[float, ...]:
    """Regrets of one search, after the shares of its evaluations.

    The number of a trial decides how long it lasts, so that every engine sees results arrive in
    the same rhythm. Durations spread as those of networks do: lognormal with sigma 1.
    """
    durations = np.random.default_rng([seed, 1]).lognormal(size=setting.evaluations)
    running: list[tuple[float, int, int]] = []
    configurations = {}
    number = 0

    def start(count: int, now: float) -> None:
        nonlocal number
        for key, params in engine.ask(count):
            configurations[number] = params
            heapq.heappush(running, (now + durations[number], number, key))
            number += 1

    start(min(setting.in_flight, setting.evaluations), 0.0)
    best, regret, regrets = math.inf, math.inf, []
    while running:
        now, ended, key = heapq.heappop(running)
        params = configurations.pop(ended)
        value = function.observed(params, seed, ended)
        if value < best:
            best, regret = value, function.value(params) - function.best
        regrets.append(regret)
        engine.tell(key, value)
        if number < setting.evaluations:
            start(1, now)
    return tuple(regrets[math.ceil(share * len(regrets)) - 1] for share in _SHARES)


class Results:
    """Results on disk, one a line.

    Parameters
    ----------
    path
        The file; need not exist.
    deephyper
        An interpreter that has DeepHyper; None if it is not to run.
    """

    def __init__(self, path: Path, deephyper: Path | None) -> None:
        self._path, self._deephyper = path, deephyper
        self._functions = {name: f.fingerprint() for name, f in FUNCTIONS.items()}
        self._engines: dict[str, str] = {}

    def read(self) -> list[Result]:
        """What is known and not stale."""
        if not self._path.exists():
            return []
        found = {}
        for line in self._path.read_text().splitlines():
            # Another process may be writing the last line.
            try:
                content = json.loads(line)
            except json.JSONDecodeError:
                continue
            result = Result(**{**content, "regret": tuple(content["regret"])})
            if result.function in FUNCTIONS and self._fresh(result):
                found[result.key] = result
        return list(found.values())

    def run(
        self,
        settings: Iterable[Setting],
        engines: Sequence[str],
        seeds: int,
        say: Callable[[str], None],
    ) -> None:
        """Do the searches that are missing; the first seed of all engines and functions first."""
        known = {result.key for result in self.read()}
        for function, engine, setting, seed in _course(settings, engines, seeds):
            if engine == "deephyper" and self._deephyper is None:
                continue
            if (function.name, engine, setting.name, seed) in known:
                continue
            say(f"{setting.name} {engine} on {function.name}, seed {seed}")
            made = make_engine(engine, function, setting.in_flight, seed, self._deephyper)
            with closing(made):
                regrets = search(function, made, setting, seed)
                result = Result(
                    function.name,
                    engine,
                    setting.name,
                    seed,
                    regrets,
                    round(made.seconds, 3),
                    self._code(function.name, engine),
                )
            # In one write, so that several processes may share the file.
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")

    def _code(self, function: str, engine: str) -> str:
        if engine not in self._engines:
            self._engines[engine] = fingerprint(engine, self._deephyper)
        return f"{self._functions[function]} {self._engines[engine]}"

    def _fresh(self, result: Result) -> bool:
        if result.engine in OURS:
            return result.code == self._code(result.function, result.engine)
        return result.code.startswith(self._functions[result.function] + " ")


def _course(
    settings: Iterable[Setting], engines: Sequence[str], seeds: int
) -> Iterator[tuple[Function, str, Setting, int]]:
    for setting in settings:
        for seed in range(seeds):
            for engine in setting.engines:
                if engine in engines:
                    for function in FUNCTIONS.values():
                        yield function, engine, setting, seed
