"""Engines of search, all behind asking and telling, on a simulated clock."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import TrialState
from turns import Spoken

from hydragnn_flow.config.search import Parameter, SearchConfig
from hydragnn_flow.search.records import active, suggest
from hydragnn_flow.search.rungs import Rungs
from hydragnn_flow.search.samplers.auto import AutoSampler, Proposals
from hydragnn_flow.search.samplers.batched_tpe import BatchedTPESampler
from hydragnn_flow.search.samplers.encoding import Known, Running
from hydragnn_flow.search.samplers.proposer import MOST_FITTED, MOST_KNOWN, Proposer
from search_race.functions import Function

Answer = TypeVar("Answer")
Asked = list[tuple[int, dict[str, Any]]]
"""Keys to tell results by, and configurations."""
MEMBERS = 4
"""Members of the ensemble that a search is for, `ensemble.size`."""
ENGINES = {
    "auto": "ships",
    "batched_tpe": "ships",
    "gp": "Optuna's Gaussian process",
    "deephyper": "DeepHyper's CBO, set as HydraGNN does",
    "tpe": "Optuna's TPE",
    "tpe_groups": "the same, multivariate by groups",
    "random": "Optuna's random sampler",
}
"""Engine of whole trainings → what it is."""
RUNG_ENGINES = {
    "auto": "ships: predicted ends",
    "auto_whole": "the same without rungs",
    "tpe_hyperband": "Optuna's TPE with Hyperband",
    "bohb": "the same, multivariate by groups, as BOHB",
    "asha": "Optuna's random sampler with successive halving",
    "deephyper": "DeepHyper's CBO with successive halving",
    "random": "Optuna's random sampler, whole trainings",
}
"""Engine of trainings with rungs → what it is."""
WHOLE = ("auto_whole", "random")
"""Those of them that train every trial to its end."""
FRONT_ENGINES = {
    "auto": "ships",
    "gp": "Optuna's Gaussian process",
    "tpe": "Optuna's TPE",
    "nsga2": "Optuna's genetic algorithm",
    "random": "Optuna's random sampler",
}
"""Engine of two objectives → what it is."""


class Engine(Protocol):
    """Suggests configurations and learns what they are worth."""

    def ask(self, count: int) -> Asked: ...

    def report(self, key: int, epoch: int, value: float, *more: float) -> bool:
        """Learn the loss of a trial at an epoch, and its time if that is an objective too.

        The result is whether it continues.
        """

    def close(self) -> None: ...


class OptunaEngine:
    """A study in memory with a sampler, and a pruner or our rungs.

    Parameters
    ----------
    space
        Name → domain.
    epochs
        Epochs at which a trial is judged, the last is its end.
    sampler, pruner
        They propose and judge.
    search
        Configuration of our rungs, which judge instead of the pruner; None for the pruner.
    objectives
        How many values a trial has; two, and no rungs.
    flat
        Whether the sampler is to propose all parameters always, those too that do not exist in a
        trial, as users do for samplers that know no conditions.
    """

    def __init__(
        self,
        space: Mapping[str, Parameter],
        epochs: Sequence[int],
        sampler: BaseSampler,
        pruner: BasePruner | None = None,
        search: SearchConfig | None = None,
        *,
        objectives: int = 1,
        flat: bool = False,
    ) -> None:
        self._space, self._end = space, epochs[-1]
        self._asked = {
            name: domain.model_copy(update={"when": {}}) if flat else domain
            for name, domain in space.items()
        }
        self._study = optuna.create_study(
            sampler=sampler, pruner=pruner or NopPruner(), directions=["minimize"] * objectives
        )
        self._trials: dict[int, optuna.Trial] = {}
        self._rungs = None if search is None else Rungs(search, self._end, self._study, MEMBERS)
        self._place = {epoch: place for place, epoch in enumerate(epochs)}

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

    def report(self, key: int, epoch: int, value: float, *more: float) -> bool:
        """Learn the loss of a trial at an epoch; whether it continues."""
        trial = self._trials[key]
        if more:
            self._study.tell(trial, [value, *more])
            return False
        if self._rungs is not None:
            continues = self._rungs.report(key, self._place[epoch], value) == "goes_on"
            trial.report(value, epoch)
        else:
            trial.report(value, epoch)
            continues = epoch < self._end and not trial.should_prune()
        if epoch == self._end:
            self._study.tell(trial, value)
        elif not continues:
            self._study.tell(trial, state=TrialState.PRUNED)
        return continues

    def close(self) -> None:
        """End what works beside it."""
        getattr(self._study.sampler, "close", lambda: None)()


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
    epochs
        Epochs at which its stopper judges a trial, the last is its end.
    """

    def __init__(
        self, space: Mapping[str, Parameter], python: Path, seed: int, epochs: Sequence[int]
    ) -> None:
        self._end = epochs[-1]
        self._told: list[tuple[float, ...]] = []
        self._spoken = Spoken(python.absolute(), Path(__file__).with_name("deephyper_cbo.py"))
        domains = {name: domain.model_dump(mode="json") for name, domain in space.items()}
        self._spoken.tell(json.dumps({"space": domains, "seed": seed, "epochs": [*epochs]}))

    def ask(self, count: int) -> Asked:
        """Suggest so many configurations."""
        told, self._told = self._told, []
        return [(key, params) for key, params in self._answer({"tell": told, "ask": count})]

    def report(self, key: int, epoch: int, value: float, *more: float) -> bool:
        """Learn the loss of a trial at an epoch; whether it continues.

        The last loss is told with the next question, as DeepHyper's own loop tells before it asks.
        """
        continues = epoch < self._end and self._answer({"report": [key, epoch, value, *more]})
        if not continues:
            self._told.append((key, value, *more))
        return continues

    def close(self) -> None:
        """End the process."""
        self._spoken.process.communicate()

    def _answer(self, order: dict[str, Any]) -> Any:
        self._spoken.tell(json.dumps(order))
        return json.loads(self._spoken.answer())


class Clock:
    """The time of a simulated search [s]."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Awaited(Future[Answer]):
    """Proposals or a verdict that are there from a moment on."""

    def __init__(self, clock: Clock, at: float, answer: Answer) -> None:
        super().__init__()
        self._clock, self._at = clock, at
        self.set_result(answer)

    def done(self) -> bool:
        return self._clock.now >= self._at

    def result(self, timeout: float | None = None) -> Answer:
        """Time passes until they are there."""
        if timeout is not None and self._at > self._clock.now + timeout:
            self._clock.now += timeout
            raise TimeoutError
        self._clock.now = max(self._clock.now, self._at)
        return super().result()


class SimulatedBackground:
    """A `BackgroundProposer` whose answers take the time that they would take on a quiet core."""

    def __init__(self, clock: Clock, proposer: Proposer) -> None:
        self._clock, self._proposer, self._fits = clock, proposer, 0

    def propose(self, known: Known, running: Running, count: int, seed: int) -> Future[Proposals]:
        """Propose as `BackgroundProposer.propose` does."""
        proposals = self._proposer.propose(known, running, count, seed)
        seconds = self._seconds(known, running, count)
        return Awaited(self._clock, self._clock.now + seconds, Proposals(proposals, seconds))

    def continues(
        self, known: Known, running: Running, row: int, wanted: int, seed: int
    ) -> Future[bool]:
        """Tell what `Proposer.continues` does."""
        verdict = self._proposer.continues(known, running, row, wanted, seed)
        return Awaited(self._clock, self._clock.now + self._seconds(known, running, 1), verdict)

    def _seconds(self, known: Known, running: Running, count: int) -> float:
        # CPU seconds measured for a space of twenty parameters: message, proposals, and a fit.
        results = sum(1 + len(trial.reports) for trial in known)
        size = min(results, MOST_KNOWN) + len(running)
        seconds = 0.01 + count * (0.02 + 2e-7 * size**2)
        if self._proposer.fits > self._fits:
            self._fits = self._proposer.fits
            seconds += 0.55 * (min(results, MOST_FITTED) / MOST_FITTED) ** 3
        return seconds

    def close(self) -> None:
        """There is nothing to end."""


def make_engine(
    name: str,
    function: Function,
    epochs: Sequence[int],
    trials: int,
    seed: int,
    deephyper: Path | None,
    clock: Clock,
    objectives: int = 1,
) -> Engine:
    """An engine by name, stock ones with the settings that they have by default."""
    if name == "deephyper":
        assert deephyper is not None
        return DeepHyperEngine(function.space, deephyper, seed, epochs)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)

    def auto() -> AutoSampler:
        return AutoSampler(
            function.space,
            seed=seed,
            rung_epochs=epochs,
            background=lambda *given: SimulatedBackground(clock, Proposer(*given)),
            clock=clock,
        )

    def groups() -> TPESampler:
        return TPESampler(multivariate=True, group=True, constant_liar=True, seed=seed)

    factor = epochs[1] // epochs[0] if len(epochs) > 1 else 3
    halving = SuccessiveHalvingPruner(min_resource=epochs[0], reduction_factor=factor)
    hyperband = HyperbandPruner(epochs[0], epochs[-1], factor)
    search = SearchConfig(
        trials=trials, space=function.space, min_epochs=epochs[0], reduction_factor=factor
    )
    made = partial(OptunaEngine, function.space, epochs, objectives=objectives)
    makers: dict[str, Callable[[], OptunaEngine]] = {
        "auto": lambda: made(auto(), search=search if len(epochs) > 1 else None),
        "auto_whole": lambda: made(auto()),
        "batched_tpe": lambda: made(BatchedTPESampler(seed=seed)),
        "gp": lambda: made(GPSampler(seed=seed), flat=True),
        "nsga2": lambda: made(NSGAIISampler(seed=seed)),
        "tpe": lambda: made(TPESampler(seed=seed)),
        "tpe_groups": lambda: made(groups()),
        "tpe_hyperband": lambda: made(TPESampler(seed=seed), hyperband),
        "bohb": lambda: made(groups(), hyperband),
        "asha": lambda: made(RandomSampler(seed=seed), halving),
        "random": lambda: made(RandomSampler(seed=seed)),
    }
    return makers[name]()


def deephyper_version(python: Path | None) -> dict[str, str]:
    """DeepHyper's entry of `peers`, as the interpreter's packages say it."""
    if python is None:
        return {}
    code = "from importlib.metadata import version; print(version('deephyper'))"
    done = subprocess.run([python, "-c", code], capture_output=True, encoding="utf-8")
    if done.returncode:
        sys.exit(f"{python} has no DeepHyper; correct --deephyper or install deephyper there")
    return {"DeepHyper": done.stdout.strip()}
