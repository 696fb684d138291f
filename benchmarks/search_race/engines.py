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

import hydragnn_flow
from hydragnn_flow.config import Parameter
from search_race.functions import Function

OURS = ("batched_tpe", "auto")
PEERS = ("tpe", "gp", "deephyper", "random")
ENGINES = (*OURS, *PEERS)
# The modules of ours whose change makes earlier results stale.
_TPE_MODULES = ("history", "parzen", "pareto", "batched_tpe")
_MODULES = {
    "batched_tpe": _TPE_MODULES,
    "auto": (*_TPE_MODULES, "encoding", "gaussian", "proposer", "auto"),
}
_BENCHMARKS = Path(__file__).parents[1]


class Engine(Protocol):
    """Suggests configurations and learns what they are worth."""

    seconds: float
    """CPU time of asking and telling until now."""

    def ask(self, count: int) -> list[tuple[int, dict[str, Any]]]:
        """Keys to tell results by, and configurations."""

    def tell(self, key: int, value: float) -> None:
        """The loss of a configuration."""

    def close(self) -> None:
        """End what works beside it."""


class OptunaEngine:
    """A sampler and a study in memory."""

    def __init__(self, function: Function, sampler: BaseSampler) -> None:
        self.seconds = 0.0
        self._function = function
        self._study = optuna.create_study(sampler=sampler)
        self._trials: dict[int, optuna.Trial] = {}

    def ask(self, count: int) -> list[tuple[int, dict[str, Any]]]:
        start = time.process_time()
        asked = []
        for _ in range(count):
            trial = self._study.ask()
            asked.append((trial.number, self._function.suggest(trial)))
            self._trials[trial.number] = trial
        self.seconds += time.process_time() - start
        return asked

    def tell(self, key: int, value: float) -> None:
        start = time.process_time()
        self._study.tell(self._trials.pop(key), value)
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
    quick
        Whether to spare its time, with the same suggestions; not where that is measured.
    """

    def __init__(
        self, space: Mapping[str, Parameter], python: Path, seed: int, *, quick: bool = False
    ) -> None:
        self.seconds = 0.0
        self._learnt: list[tuple[dict[str, Any], float]] = []
        self._told: list[tuple[int, float]] = []
        self._process = subprocess.Popen(
            [python.absolute(), "-m", "deephyper_peer"],
            cwd=_BENCHMARKS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        domains = {name: domain.model_dump(mode="json") for name, domain in space.items()}
        self._write({"space": domains, "seed": seed, "quick": quick})

    def learn(self, history: list[tuple[dict[str, Any], float]]) -> None:
        """Results of configurations that it did not suggest; of a space without conditions."""
        self._learnt += history

    def ask(self, count: int) -> list[tuple[int, dict[str, Any]]]:
        self._write({"learn": self._learnt, "tell": self._told, "ask": count})
        self._learnt, self._told = [], []
        assert self._process.stdout is not None
        answer = json.loads(self._process.stdout.readline())
        self.seconds += answer["seconds"]
        return [(key, params) for key, params in answer["asked"]]

    def tell(self, key: int, value: float) -> None:
        # Sent with the next question, as DeepHyper's own loop tells before it asks.
        self._told.append((key, value))

    def _write(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def make_engine(
    name: str, function: Function, in_flight: int, seed: int, deephyper: Path | None
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
    """
    if name == "deephyper":
        assert deephyper is not None
        return DeepHyperEngine(function.space, deephyper, seed, quick=True)
    return OptunaEngine(function, _sampler(name, function, in_flight, seed))


def _sampler(name: str, function: Function, in_flight: int, seed: int) -> BaseSampler:
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if name == "batched_tpe":
        from hydragnn_flow.search.samplers.batched_tpe import BatchedTPESampler

        return BatchedTPESampler(batch_size=max(1, in_flight // 32), seed=seed)
    if name == "auto":
        from hydragnn_flow.search.samplers.auto import AutoSampler

        return AutoSampler(function.space, seed=seed, wait=True)
    stock: dict[str, Callable[[], BaseSampler]] = {
        "tpe": lambda: TPESampler(seed=seed),
        "gp": lambda: GPSampler(seed=seed),
        "random": lambda: RandomSampler(seed=seed),
    }
    return stock[name]()


def fingerprint(name: str, deephyper: Path | None) -> str:
    """Changes with the code of the engine: its package's version, or the text of our modules."""
    if name in _MODULES:
        folder = Path(hydragnn_flow.__file__).parent / "search" / "samplers"
        text = b"".join((folder / f"{module}.py").read_bytes() for module in _MODULES[name])
        return hashlib.sha256(text).hexdigest()[:12]
    if name == "deephyper":
        return f"deephyper {deephyper_version(deephyper)}" if deephyper else "deephyper"
    return f"optuna {version('optuna')}"


def deephyper_version(python: Path) -> str:
    """As the interpreter's packages say."""
    code = "from importlib.metadata import version; print(version('deephyper'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{python} has no DeepHyper; correct --deephyper or install deephyper there")
    return done.stdout.strip()
