"""Default sampler: a Gaussian process beside the driver, and batched TPE for large studies."""

from __future__ import annotations

import bisect
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import qmc

from hydragnn_flow.processes import JsonProcess, ProcessDied
from hydragnn_flow.search.records import FIXED, active
from hydragnn_flow.search.samplers.batched_tpe import BatchedTPESampler
from hydragnn_flow.search.samplers.encoding import (
    Known,
    KnownTrial,
    Running,
    Space,
    UnitCube,
    Values,
)
from hydragnn_flow.search.samplers.proposer import Proposer

MOST_IDLE = 0.01
"""Largest fraction of a trial's time to wait for a proposal that takes all results into account."""
MOST_BUSY = 0.25
"""Largest fraction of its time that the driver may wait for proposals, and for the verdicts at one
rung."""
MOST_SECONDS = 2.0
"""Longest single wait of the driver for a proposal [s], as it also records results and sends
segments."""


class Proposals(NamedTuple):
    """Parameters of proposed trials, and the time that it took to compute them."""

    values: list[Values]
    seconds: float
    """Wall time of all proposals together [s]."""


class Background(Protocol):
    """Interface of a process beside the driver that proposes trials by a Gaussian process."""

    def propose(self, known: Known, running: Running, count: int, seed: int) -> Future[Proposals]:
        """Request new trials from `Proposer.propose` in the process; return a future of them.

        The future raises `ProcessDied` if the process ends without an answer.
        """

    def continues(
        self, known: Known, running: Running, row: int, wanted: int, seed: int
    ) -> Future[bool]:
        """Request a verdict of `Proposer.continues` on a trial; return a future of the verdict."""

    def close(self) -> None:
        """End the process that proposes; it is gone when this method returns."""


class BackgroundProposer:
    """Separate process in which a `Proposer` proposes trials, with low priority and one thread.

    Parameters
    ----------
    space
        Domain of each parameter by dotted path, after the parameters that its condition names.
    objectives
        Number of objectives.
    epochs
        Epochs at which trials are judged, the end of a training last.
    """

    def __init__(self, space: Space, objectives: int, epochs: Sequence[int] = (1,)) -> None:
        self._process = JsonProcess(
            "hydragnn_flow.search.samplers.proposer",
            str(os.getpid()),
            environment={
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                # glibc would return memory after each step of a fit, and take it again: a third of
                # its time.
                "MALLOC_MMAP_THRESHOLD_": str(2**25),
                "MALLOC_TRIM_THRESHOLD_": str(2**30),
            },
        )
        # This thread writes and waits, so a full pipe cannot block the driver.
        self._thread = ThreadPoolExecutor(max_workers=1)
        domains = {name: domain.model_dump(mode="json") for name, domain in space.items()}
        first = {"space": domains, "objectives": objectives, "epochs": list(epochs)}
        self._thread.submit(self._process.send, first)

    @property
    def pid(self) -> int:
        """Process id of the separate process."""
        return self._process.pid

    def propose(self, known: Known, running: Running, count: int, seed: int) -> Future[Proposals]:
        request = {"known": known, "running": running, "count": count, "seed": seed}
        return self._thread.submit(lambda: Proposals(**self._call(request)))

    def continues(
        self, known: Known, running: Running, row: int, wanted: int, seed: int
    ) -> Future[bool]:
        request = {"known": known, "running": running, "row": row, "wanted": wanted, "seed": seed}
        return self._thread.submit(lambda: bool(self._call(request)["continues"]))

    def close(self) -> None:
        self._process.kill()
        self._thread.shutdown()
        self._process.close()

    def _call(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._process.send(request)
        answer = self._process.receive()
        assert answer is not None  # without a time limit
        return answer


class Supply:
    """Source of proposed trials for the driver, and of verdicts on whether trials continue.

    Both come from a process beside the driver. Proposals are computed on request if trials are
    long, and made ahead if they are short.

    A proposal on request takes every result into account. It is computed in 0.1 s to 4 s, for which
    the driver waits if neither it nor the machine is idle for much of the time. Otherwise the
    driver takes a proposal that was made ahead, when a few results were missing, and never waits.
    A verdict takes as long as a proposal, and is not waited for either if trials are short.

    Parameters
    ----------
    background
        Function that starts the process that proposes.
    clock
        Clock that measures time [s].
    """

    def __init__(self, background: Callable[[], Background], clock: Callable[[], float]) -> None:
        self._make, self._clock = background, clock
        self._background: Background | None = None
        self._coming: Future[Proposals] | None = None
        self._verdict: Future[bool] | None = None
        self._asked_with = self._made_with = 0
        self._ready: deque[Values] = deque()
        self._cost = 0.0
        self._begun: dict[int, float] = {}
        self._ended, self._trial_seconds = 0, 0.0

    def begun(self, number: int) -> None:
        """Record that a trial starts now, to measure how long trials take."""
        self._begun[number] = self._clock()

    def ended(self, number: int) -> None:
        """Record that a trial ends now, to measure how long trials take."""
        start = self._begun.pop(number, None)
        if start is not None:
            self._ended += 1
            self._trial_seconds += self._clock() - start

    @property
    def patience(self) -> float:
        """Longest time that the driver may wait for a proposal or a verdict now [s].

        It is 0 before the first trial has ended.
        """
        if not self._ended:
            return 0.0
        mean = self._trial_seconds / self._ended
        return min(MOST_SECONDS, MOST_IDLE * mean, MOST_BUSY * mean / max(len(self._begun), 1))

    @property
    def judges(self) -> bool:
        """True if the driver may wait for a verdict on a trial now.

        That needs trials so long that the wait hardly matters, and no other verdict in progress.
        """
        free = self._verdict is None or self._verdict.done()
        return free and self.patience > self._cost

    def take(self, known: Known, running: Running, seed: int) -> Values | None:
        """Return the parameters of the next trial; None if no proposal is ready in time.

        Parameters
        ----------
        known
            Trials of which something is known, at least one.
        running
            Parameters of each trial that runs.
        seed
            Seed of the points at which the search for a proposal starts.

        Raises
        ------
        ProcessDied
            If the process has ended.
        """
        self._begin()
        patience = self.patience
        if self._cost > patience:
            proposal = self._ready.popleft() if self._ready else None
            # More would soon be outdated; with two, two trials can start together.
            ahead = max(2, len(self._begun) // 16)
            if self._coming is None and len(self._ready) < ahead:
                begun = [*running, *self._ready, *([proposal] if proposal else [])]
                self._request(known, begun, ahead, seed)
            return proposal
        if not (self._ready and self._made_with == _size(known)):
            if self._coming is None:
                self._request(known, running, 1, seed)
            self._wait(patience)
        return self._ready.popleft() if self._ready else None

    def continues(
        self, known: Known, running: Running, row: int, wanted: int, seed: int
    ) -> bool | None:
        """Return the verdict of `Proposer.continues` on a trial, or None if that takes too long.

        True means that the trial should train on.

        Raises
        ------
        ProcessDied
            If the process has ended.
        """
        self._verdict = self._begin().continues(known, running, row, wanted, seed)
        try:
            return self._verdict.result(self.patience)
        except TimeoutError:
            self._verdict.cancel()
            return None

    def close(self) -> None:
        """End the process that proposes, and drop the proposals made ahead."""
        self._coming = None
        self._ready.clear()
        if self._background is not None:
            self._background.close()
            self._background = None

    def _begin(self) -> Background:
        if self._background is None:
            self._background = self._make()
        self._collect()
        return self._background

    def _request(self, known: Known, running: Running, count: int, seed: int) -> None:
        assert self._background is not None
        self._asked_with = _size(known)
        self._coming = self._background.propose(known, running, count, seed)

    def _wait(self, seconds: float) -> None:
        assert self._coming is not None
        try:
            self._coming.result(timeout=seconds)
        except TimeoutError:
            return
        self._ready.clear()
        self._collect()

    def _collect(self) -> None:
        if self._coming is None or not self._coming.done():
            return
        proposals = self._coming.result()
        self._coming, self._made_with = None, self._asked_with
        self._ready.extend(proposals.values)
        self._cost = proposals.seconds / len(proposals.values)


def _size(known: Known) -> int:
    """Return the number of losses that are known."""
    return sum(1 + len(trial.reports) for trial in known)


MOST_TRIALS = 2000
"""Number of trials beyond which batched TPE makes all proposals. It is as good as the Gaussian
process with that many trials, at hardly any cost."""
N_START = 8
"""Number of quasi-random trials before the first proposal, whatever the number of parameters. With
two for each parameter, a search of sixty trials would be half over before it learns."""

_logger = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class AutoSampler(BatchedTPESampler):
    """Default sampler: quasi-random trials first, then a Gaussian process, TPE in large studies.

    The Gaussian process models the whole space, conditions included, in a separate process. The
    driver waits for its proposal only if trials last so long that the wait does not matter;
    otherwise it takes one that was made ahead (`Supply`). If there is none, batched TPE proposes.
    Batched TPE makes all proposals beyond `MOST_TRIALS` trials.

    Parameters
    ----------
    space
        Domain of each parameter by dotted path, after the parameters that its condition names.
    seed
        Seed of the random numbers.
    wait
        True to compute every proposal of the Gaussian process on request, however long it takes.
        Suggestions then depend only on the seed and the history.
    background
        Function that starts the process of the Gaussian process.
    rung_epochs
        Epochs at which trials are judged, the end of a training last.
    clock
        Clock that measures how long trials take [s].
    """

    def __init__(
        self,
        space: Space,
        *,
        seed: int,
        wait: bool = False,
        rung_epochs: Sequence[int] = (1,),
        background: Callable[[Space, int, Sequence[int]], Background] = BackgroundProposer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(seed=seed)
        self._space, self._seed, self._wait = dict(space), seed, wait
        self._cube = UnitCube(space)
        spread = qmc.Sobol(len(self._cube), seed=seed).random_base2(MOST_TRIALS.bit_length())
        self._quasi_random = self._cube.snap(spread)
        self._handed_over = False
        self._proposer: Proposer | None = None
        self._objectives = 1
        self._epochs = rung_epochs
        self._supply = Supply(lambda: background(space, self._objectives, rung_epochs), clock)

    def close(self) -> None:
        """End the process of the Gaussian process; from then on batched TPE proposes."""
        self._handed_over = True
        self._proposer = None
        self._supply.close()

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Record that a trial has ended, for the mean time of trials and the next fit of TPE."""
        self._supply.ended(trial.number)
        super().after_trial(study, trial, state, values)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return Optuna's distribution of each parameter that `sample_relative` will propose.

        They are those of the whole space, or, for a proposal of batched TPE, the sampler's own.
        """
        if not self._handed_over and trial.number >= MOST_TRIALS:
            self.close()
        # If some values of a trial are fixed, only batched TPE can propose the others.
        if self._handed_over or FIXED in trial.system_attrs:
            return super().infer_relative_search_space(study, trial)
        return self._cube.domains

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the parameter values of the next trial, by dotted path.

        They are quasi-random, or proposed by the Gaussian process or by batched TPE.
        """
        proposal = self._proposal(study, trial, search_space)
        # The trial starts when the driver has it.
        self._supply.begun(trial.number)
        return proposal

    def _proposal(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if search_space is not self._cube.domains:
            return super().sample_relative(study, trial, search_space)
        if trial.number < N_START:
            return self._start(trial.number)
        found, running = self._seen(study, trial)
        known, seed = list(found.values()), self._seed * 100_003 + trial.number
        if known:
            proposal = (
                self._own().propose(known, running, 1, seed)[0]
                if self._wait
                else self._beside(lambda: self._supply.take(known, running, seed))
            )
            if proposal is not None:
                return proposal
        if len(known) < N_START:
            return self._start(trial.number)
        search_space = super().infer_relative_search_space(study, trial)
        return super().sample_relative(study, trial, search_space)

    def _start(self, number: int) -> Values:
        return self._cube.decode(self._quasi_random[number, None])[0]

    def continues(self, study: Study, trial: FrozenTrial, wanted: int) -> bool | None:
        """Return True if a trial at a rung should train on, False if it should stop there.

        The Gaussian process decides by the trial's newest report (`Proposer.continues`). The answer
        is None if it cannot tell: there are several objectives, fewer than ``wanted`` trials are
        complete, the newest report is infinite, batched TPE proposes, or there is no time to
        wait for the answer.
        """
        if (
            self._handed_over
            or len(study.directions) > 1
            or not (self._wait or self._supply.judges)
        ):
            return None
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        newest = trial.intermediate_values[max(trial.intermediate_values)]
        if len(complete) < wanted or not math.isfinite(newest):
            return None
        found, running = self._seen(study, trial)
        known, seed = list(found.values()), self._seed * 100_003 + trial.number
        row = list(found).index(trial.number)
        if self._wait:
            return self._own().continues(known, running, row, wanted, seed)
        return self._beside(lambda: self._supply.continues(known, running, row, wanted, seed))

    def _seen(self, study: Study, trial: FrozenTrial) -> tuple[dict[int, KnownTrial], Running]:
        """Return what is known of trials, by number, and the parameters of other running trials.

        ``trial`` replaces what the study has of it.
        """
        self._objectives = len(study.directions)
        # A wrong trial that was enqueued, or one of another space, has no place in this one.
        every = study.get_trials(deepcopy=False)
        others = [of for of in every if {*active(self._space, of.params)} == {*of.params}]
        trials = [trial if other.number == trial.number else other for other in others]
        found = _known(trials, study.directions, self._epochs)
        running = [
            other.params
            for other in others
            if other.state == TrialState.RUNNING and other.number != trial.number
        ]
        return found, running

    def _own(self) -> Proposer:
        if self._proposer is None:
            self._proposer = Proposer(self._space, self._objectives, self._epochs)
        return self._proposer

    def _beside(self, ask: Callable[[], _Answer | None]) -> _Answer | None:
        """Ask the process beside the driver; None if it has died, and batched TPE takes over."""
        try:
            return ask()
        except ProcessDied:
            _logger.warning("The process that proposes trials has died; batched TPE takes over.")
            self.close()
            return None


def _known(
    trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection], epochs: Sequence[int]
) -> dict[int, KnownTrial]:
    """Return what is known of trials that have ended or reported at a rung, by number.

    The first loss is known at every rung. A failed trial has the worst losses of complete ones,
    which keeps proposals away from regions where networks diverge. Of several objectives nothing is
    known before the first trial is complete.
    """
    signs = np.where([of == StudyDirection.MAXIMIZE for of in directions], -1.0, 1.0)
    complete = [trial.values for trial in trials if trial.state == TrialState.COMPLETE]
    losses = signs * np.array(complete).reshape(-1, len(signs))
    losses = losses[np.isfinite(losses).all(axis=1)]
    if not len(losses) and len(signs) > 1:
        return {}
    worst = losses.max(axis=0, initial=-np.inf)
    limits = dict.fromkeys(name for trial in trials for name in trial.constraints)
    known = {}
    for trial in trials:
        numbers, reports = np.full(len(signs), np.nan), []
        if trial.state == TrialState.COMPLETE:
            numbers = signs * np.array(trial.values)
            numbers = np.where(np.isfinite(numbers), numbers, worst)
        elif trial.state == TrialState.FAIL and len(losses):
            numbers = worst
        if trial.state != TrialState.FAIL:
            # A trial of another search may have been judged between two rungs of this one.
            steps = sorted(step for step in trial.intermediate_values if step < epochs[-1])
            rungs = {
                max(bisect.bisect_right(epochs, step) - 1, 0): float(
                    signs[0] * trial.intermediate_values[step]
                )
                for step in (steps if len(epochs) > 1 else ())
            }
            reports = [(rung, value) for rung, value in rungs.items() if math.isfinite(value)]
        if reports or np.isfinite(numbers).any():
            excesses = [_excess(trial, name) for name in limits]
            known[trial.number] = KnownTrial(trial.params, [*numbers.tolist(), *excesses], reports)
    return known


def _excess(trial: FrozenTrial, limit: str) -> float:
    """Return by how much a trial exceeds a limit; NaN if it might, had it not ended early."""
    excess = trial.constraints.get(limit, math.nan)
    return excess if trial.state == TrialState.COMPLETE or excess > 0 else math.nan
