"""Engines of search, all behind asking and telling, on a simulated clock."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import optuna
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler

from hydragnn_flow.config import Parameter
from hydragnn_flow.search.records import active, suggest
from hydragnn_flow.search.samplers.auto import AutoSampler, Proposals
from hydragnn_flow.search.samplers.batched_tpe import BatchedTPESampler
from hydragnn_flow.search.samplers.encoding import Known, Running
from hydragnn_flow.search.samplers.proposer import MOST_FITTED, MOST_KNOWN, Proposer
from search_race.functions import Function

Asked = list[tuple[int, dict[str, Any]]]
"""Keys to tell results by, and configurations."""
ENGINES = {
    "auto": "ships",
    "batched_tpe": "ships",
    "gp": "Optuna's Gaussian process",
    "deephyper": "DeepHyper's CBO, set as HydraGNN does",
    "tpe": "Optuna's TPE",
    "tpe_groups": "the same, multivariate by groups",
    "random": "Optuna's random sampler",
}
"""Engine → what it is."""


class Engine(Protocol):
    """Suggests configurations and learns what they are worth."""

    def ask(self, count: int) -> Asked: ...

    def tell(self, key: int, value: float) -> None: ...

    def close(self) -> None: ...


class OptunaEngine:
    """A sampler and a study in memory.

    Parameters
    ----------
    space
        Name → domain.
    sampler
        Sampler that proposes.
    flat
        Whether the sampler is to propose all parameters always, those too that do not exist in a
        trial, as users do for samplers that know no conditions.
    """

    def __init__(
        self, space: Mapping[str, Parameter], sampler: BaseSampler, *, flat: bool = False
    ) -> None:
        self._space = space
        self._asked = {
            name: domain.model_copy(update={"when": {}}) if flat else domain
            for name, domain in space.items()
        }
        self._study = optuna.create_study(sampler=sampler)
        self._trials: dict[int, optuna.Trial] = {}

    def ask(self, count: int) -> Asked:
        """Suggest so many configurations."""
        asked = []
        for _ in range(count):
            trial = self._study.ask()
            values = suggest(trial, self._asked)
            params = {name: values[name] for name in active(self._space, values)}
            asked.append((trial.number, params))
            self._trials[trial.number] = trial
        return asked

    def tell(self, key: int, value: float) -> None:
        """Learn the loss of a configuration."""
        self._study.tell(self._trials.pop(key), value)

    def close(self) -> None:
        """End what works beside it."""
        close = getattr(self._study.sampler, "close", None)
        if close is not None:
            close()


class DeepHyperEngine:
    """DeepHyper's CBO in another process, with the settings of HydraGNN's searches.

    Parameters
    ----------
    space
        Name → domain.
    python
        An interpreter that has DeepHyper.
    seed
        Seed of the search.
    """

    def __init__(self, space: Mapping[str, Parameter], python: Path, seed: int) -> None:
        self._told: list[tuple[int, float]] = []
        self._process = subprocess.Popen(
            [python.absolute(), Path(__file__).with_name("deephyper_cbo.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        domains = {name: domain.model_dump(mode="json") for name, domain in space.items()}
        self._write({"space": domains, "seed": seed})

    def ask(self, count: int) -> Asked:
        """Suggest so many configurations."""
        self._write({"tell": self._told, "ask": count})
        self._told = []
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("DeepHyper has ended")
        return [(key, params) for key, params in json.loads(line)]

    def tell(self, key: int, value: float) -> None:
        """Learn a loss with the next question, as DeepHyper's own loop tells before it asks."""
        self._told.append((key, value))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _write(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()


class Clock:
    """The time of a simulated search [s]."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Awaited(Future[Proposals]):
    """Proposals that are there from a moment on."""

    def __init__(self, clock: Clock, at: float, proposals: Proposals) -> None:
        super().__init__()
        self._clock, self._at = clock, at
        self.set_result(proposals)

    def done(self) -> bool:
        return self._clock.now >= self._at

    def result(self, timeout: float | None = None) -> Proposals:
        """Time passes until they are there."""
        if timeout is not None and self._at > self._clock.now + timeout:
            self._clock.now += timeout
            raise TimeoutError
        self._clock.now = max(self._clock.now, self._at)
        return super().result()


class SimulatedBackground:
    """A `BackgroundProposer` whose proposals take the time that they would take on a quiet core."""

    def __init__(self, clock: Clock, proposer: Proposer) -> None:
        self._clock, self._proposer = clock, proposer

    def propose(self, known: Known, running: Running, count: int, seed: int) -> Future[Proposals]:
        """Propose as `BackgroundProposer.propose` does."""
        before = self._proposer.fits
        proposals = self._proposer.propose(known, running, count, seed)
        # CPU seconds measured for a space of twenty parameters: message, proposals, and a fit.
        size = min(len(known), MOST_KNOWN) + len(running)
        seconds = 0.01 + count * (0.055 + 3.6e-7 * size**2)
        if self._proposer.fits > before:
            seconds += 0.65 * (min(len(known), MOST_FITTED) / MOST_FITTED) ** 3
        return Awaited(self._clock, self._clock.now + seconds, Proposals(proposals, seconds))

    def continues(
        self, known: Known, running: Running, row: int, wanted: int, seed: int
    ) -> Future[bool]:
        """Tell what `Proposer.continues` does, at once."""
        answer: Future[bool] = Future()
        answer.set_result(self._proposer.continues(known, running, row, wanted, seed))
        return answer

    def close(self) -> None:
        """There is nothing to end."""


def make_engine(
    name: str, function: Function, seed: int, deephyper: Path | None, clock: Clock
) -> Engine:
    """One of :data:`ENGINES`, stock ones with the settings that they have by default."""
    if name == "deephyper":
        assert deephyper is not None
        return DeepHyperEngine(function.space, deephyper, seed)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    makers: dict[str, Callable[[], BaseSampler]] = {
        "auto": lambda: AutoSampler(
            function.space,
            seed=seed,
            background=lambda *given: SimulatedBackground(clock, Proposer(*given)),
            clock=clock,
        ),
        "batched_tpe": lambda: BatchedTPESampler(seed=seed),
        "gp": lambda: GPSampler(seed=seed),
        "tpe": lambda: TPESampler(seed=seed),
        "tpe_groups": lambda: TPESampler(
            multivariate=True, group=True, constant_liar=True, seed=seed
        ),
        "random": lambda: RandomSampler(seed=seed),
    }
    return OptunaEngine(function.space, makers[name](), flat=name == "gp")


def deephyper_version(python: Path | None) -> dict[str, str]:
    """DeepHyper's entry of `peers`, as the interpreter's packages say it."""
    if python is None:
        return {}
    code = "from importlib.metadata import version; print(version('deephyper'))"
    done = subprocess.run([python, "-c", code], capture_output=True, encoding="utf-8")
    if done.returncode:
        sys.exit(f"{python} has no DeepHyper; correct --deephyper or install deephyper there")
    return {"DeepHyper": done.stdout.strip()}
