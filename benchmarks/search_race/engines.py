"""Engines of search, all behind asking and telling."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import optuna
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import TrialState
from results.code import fingerprints

from hydragnn_flow.config import Parameter
from hydragnn_flow.search.space import active, suggest
from search_race.clock import Clock, SimulatedBackground
from search_race.function import Function

# The modules of ours whose change makes earlier results stale.
_TPE_MODULES = ("history", "parzen", "kernels", "boxes", "pareto", "batched_tpe")
_AUTO_MODULES = (*_TPE_MODULES, "encoding", "gaussian", "proposer", "supply", "auto")
_MODULES = {
    "batched_tpe": _TPE_MODULES,
    "auto": _AUTO_MODULES,
    "auto_rungs": _AUTO_MODULES,
    "auto_waiting": _AUTO_MODULES,
}
_SIMULATION = "benchmarks/search_race/clock.py"
ENGINES = {
    "auto": "as it ships, proposals made in another process take their time",
    "auto_rungs": "the same with `rungs: stopping`",
    "auto_waiting": "each proposal made when it is asked for, in no time",
    "batched_tpe": "as it ships",
    "gp": "Optuna's `GPSampler()`, conditional parameters flattened",
    "deephyper": "DeepHyper's CBO as HydraGNN uses it, UCB and `cl_min`",
    "deephyper_default": "DeepHyper's CBO with its own defaults",
    "tpe": "Optuna's `TPESampler()`",
    "tpe_groups": "Optuna's TPE, multivariate by groups, the package's `tpe`",
    "random": "Optuna's `RandomSampler()`",
}
"""Engine → what it is."""
_BENCHMARKS = Path(__file__).parents[1]


class EngineDied(RuntimeError):
    """An engine's process ended with an error of its own."""


class Engine(Protocol):
    """Suggests configurations and learns what they are worth."""

    seconds: float
    """CPU time of asking and telling until now."""
    judged: bool
    """Whether its trials are judged at rungs."""

    def ask(self, count: int) -> list[tuple[int, dict[str, Any]]]:
        """Keys to tell results by, and configurations."""

    def tell(self, key: int, value: float) -> None:
        """The loss of a configuration."""

    def report(self, key: int, epoch: int, value: float) -> None:
        """The loss of a configuration at a rung."""

    def prune(self, key: int) -> None:
        """A configuration is trained no further."""

    def close(self) -> None:
        """End what works beside it."""


class OptunaEngine:
    """A sampler and a study in memory.

    Parameters
    ----------
    space
        Name → domain.
    sampler
        What proposes.
    flat
        Whether the sampler is to propose all parameters always, those too that do not exist in a
        trial, as users do for samplers that know no conditions.
    judged
        Whether trials are judged at rungs.
    """

    def __init__(
        self,
        space: Mapping[str, Parameter],
        sampler: BaseSampler,
        *,
        flat: bool = False,
        judged: bool = False,
    ) -> None:
        self.seconds, self.judged = 0.0, judged
        self._space = space
        self._asked = {
            name: domain.model_copy(update={"when": {}}) if flat else domain
            for name, domain in space.items()
        }
        self._study = optuna.create_study(sampler=sampler)
        self._trials: dict[int, optuna.Trial] = {}

    def ask(self, count: int) -> list[tuple[int, dict[str, Any]]]:
        start = time.process_time()
        asked = []
        for _ in range(count):
            trial = self._study.ask()
            values = suggest(trial, self._asked)
            asked.append(
                (trial.number, {name: values[name] for name in active(self._space, values)})
            )
            self._trials[trial.number] = trial
        self.seconds += time.process_time() - start
        return asked

    def tell(self, key: int, value: float) -> None:
        start = time.process_time()
        self._study.tell(self._trials.pop(key), value)
        self.seconds += time.process_time() - start

    def report(self, key: int, epoch: int, value: float) -> None:
        self._trials[key].report(value, epoch)

    def prune(self, key: int) -> None:
        start = time.process_time()
        self._study.tell(self._trials.pop(key), state=TrialState.PRUNED)
        self.seconds += time.process_time() - start

    def close(self) -> None:
        close = getattr(self._study.sampler, "close", None)
        if close is not None:
            close()


class DeepHyperEngine:
    """DeepHyper's CBO in another process.

    Parameters
    ----------
    space
        Name → domain.
    python
        An interpreter that has DeepHyper.
    seed
        Of the search.
    as_hydragnn
        Whether with the settings of HydraGNN's searches instead of DeepHyper's own.
    quick
        Whether to spare its time, with the same suggestions; not where that is measured.
    """

    judged = False

    def __init__(
        self,
        space: Mapping[str, Parameter],
        python: Path,
        seed: int,
        *,
        as_hydragnn: bool = True,
        quick: bool = False,
    ) -> None:
        self.seconds = 0.0
        self._learnt: list[tuple[dict[str, Any], float]] = []
        self._told: list[tuple[int, float]] = []
        self._process = subprocess.Popen(
            [python.absolute(), "-m", "deephyper_peer"],
            cwd=_BENCHMARKS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        domains = {name: domain.model_dump(mode="json") for name, domain in space.items()}
        self._write({"space": domains, "seed": seed, "as_hydragnn": as_hydragnn, "quick": quick})

    def learn(self, history: list[tuple[dict[str, Any], float]]) -> None:
        """Results of configurations that it did not suggest; of a space without conditions."""
        self._learnt += history

    def ask(self, count: int) -> list[tuple[int, dict[str, Any]]]:
        self._write({"learn": self._learnt, "tell": self._told, "ask": count})
        self._learnt, self._told = [], []
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineDied
        answer = json.loads(line)
        self.seconds += answer["seconds"]
        return [(key, params) for key, params in answer["asked"]]

    def tell(self, key: int, value: float) -> None:
        # Sent with the next question, as DeepHyper's own loop tells before it asks.
        self._told.append((key, value))

    def report(self, key: int, epoch: int, value: float) -> None:
        raise NotImplementedError

    def prune(self, key: int) -> None:
        raise NotImplementedError

    def _write(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def make_engine(
    name: str, function: Function, in_flight: int, seed: int, deephyper: Path | None, clock: Clock
) -> Engine:
    """One of :data:`ENGINES`, stock ones with the settings that they have by default.

    Parameters
    ----------
    name
        Which.
    function
        Whose space is searched.
    in_flight
        Trials that run at a time.
    seed
        Of the search.
    deephyper
        An interpreter that has DeepHyper.
    clock
        Of the simulated search.
    """
    if name.startswith("deephyper"):
        assert deephyper is not None
        as_hydragnn = name == "deephyper"
        return DeepHyperEngine(function.space, deephyper, seed, as_hydragnn=as_hydragnn, quick=True)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    makers: dict[str, Callable[[], BaseSampler]] = {
        "batched_tpe": lambda: _batched_tpe(seed),
        "auto": lambda: _auto(function, seed, clock),
        "auto_rungs": lambda: _auto(function, seed, clock),
        "auto_waiting": lambda: _auto(function, seed, None),
        "tpe": lambda: TPESampler(seed=seed),
        "tpe_groups": lambda: TPESampler(
            multivariate=True, group=True, constant_liar=True, seed=seed
        ),
        "gp": lambda: GPSampler(seed=seed),
        "random": lambda: RandomSampler(seed=seed),
    }
    return OptunaEngine(
        function.space, makers[name](), flat=name == "gp", judged=name == "auto_rungs"
    )


def _batched_tpe(seed: int) -> BaseSampler:
    from hydragnn_flow.search.samplers.batched_tpe import BatchedTPESampler

    return BatchedTPESampler(seed=seed)


def _auto(function: Function, seed: int, clock: Clock | None) -> BaseSampler:
    """As it ships with a clock, without one as if proposals took no time."""
    from hydragnn_flow.search.samplers.auto import AutoSampler

    if clock is None:
        return AutoSampler(function.space, seed=seed, wait=True)
    return AutoSampler(
        function.space,
        seed=seed,
        background=lambda space: SimulatedBackground(clock, space),
        clock=clock,
    )


def fingerprint(name: str, deephyper: Path | None) -> str:
    """Changes with the code of the engine: its package's version, or what runs of our modules."""
    if name in _MODULES:
        paths = [f"hydragnn_flow/search/samplers/{module}.py" for module in _MODULES[name]]
        if name in ("auto", "auto_rungs"):
            paths.append(_SIMULATION)
        return hashlib.sha256(json.dumps(fingerprints(paths)).encode()).hexdigest()[:12]
    if name.startswith("deephyper"):
        return f"deephyper {deephyper_version(deephyper)}" if deephyper else "deephyper"
    return f"optuna {version('optuna')}"


def deephyper_version(python: Path) -> str:
    """As the interpreter's packages say."""
    code = "from importlib.metadata import version; print(version('deephyper'))"
    done = subprocess.run([python, "-c", code], capture_output=True, encoding="utf-8")
    if done.returncode:
        sys.exit(f"{python} has no DeepHyper; correct --deephyper or install deephyper there")
    return done.stdout.strip()
