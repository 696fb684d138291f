"""Default sampler: a Gaussian process beside the driver, and batched TPE for large studies."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import qmc

from hydragnn_flow.processes import JsonProcess, ProcessDied
from hydragnn_flow.search.records import FIXED, PROMOTES, as_pruned, waits
from hydragnn_flow.search.samplers.batched_tpe import BatchedTPESampler
from hydragnn_flow.search.samplers.encoding import Finished, Running, Space, UnitCube, Values
from hydragnn_flow.search.samplers.proposer import Proposer

MOST_IDLE = 0.01
"""Largest fraction of a trial's time to wait for a proposal that takes all results into account."""
MOST_BUSY = 0.25
"""Largest fraction of its time that the driver may spend on waiting for proposals."""
MOST_SECONDS = 2.0
"""Longest single wait of the driver for a proposal [s], as it also records results and sends
segments."""


class Proposals(NamedTuple):
    """Trials that a process proposes, and the time that it took to compute them."""

    values: list[Values]
    seconds: float
    """Wall time of all proposals together [s]."""


class Background(Protocol):
    """Process that proposes trials next to the driver."""

    def propose(
        self, finished: Finished, running: Running, count: int, seed: int
    ) -> Future[Proposals]:
        """Call `Proposer.propose` in the process; return a future of the proposals.

        The future raises `ProcessDied` if the process ends without an answer.
        """

    def close(self) -> None:
        """End the process; it is gone when this returns."""


class BackgroundProposer:
    """Separate process that runs a `Proposer`, with low priority and one thread.

    Parameters
    ----------
    space
        Domain of each parameter by dotted path, after the parameters that its condition names.
    objectives
        Number of objectives.
    """

    def __init__(self, space: Space, objectives: int) -> None:
        self._process = JsonProcess(
            "hydragnn_flow.search.samplers.proposer",
            str(os.getpid()),
            environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        # This thread writes and waits, so a full pipe cannot block the driver.
        self._thread = ThreadPoolExecutor(max_workers=1)
        domains = {name: domain.model_dump(mode="json") for name, domain in space.items()}
        first = {"space": domains, "objectives": objectives}
        self._thread.submit(self._process.send, first)

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    def propose(
        self, finished: Finished, running: Running, count: int, seed: int
    ) -> Future[Proposals]:
        request = {"finished": finished, "running": running, "count": count, "seed": seed}
        return self._thread.submit(self._call, request)

    def close(self) -> None:
        self._process.kill()
        self._thread.shutdown()
        self._process.close()

    def _call(self, request: Mapping[str, Any]) -> Proposals:
        self._process.send(request)
        answer = self._process.receive()
        assert answer is not None  # without a time limit
        return Proposals(**answer)


class Supply:
    """Source of proposals: computed on request if trials are long, made ahead if they are short.

    A proposal on request takes every result into account. It is computed in 0.1 s to 4 s, for which
    the driver waits if neither it nor the machine is idle for much of the time. Otherwise the
    driver takes a proposal that was made ahead, when a few results were missing, and never waits.

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
        self._asked_with = self._made_with = 0
        self._ready: deque[Values] = deque()
        self._cost = 0.0
        self._begun: dict[int, float] = {}
        self._ended, self._trial_seconds = 0, 0.0

    def begun(self, number: int) -> None:
        """Record that a trial starts now, to measure how long trials take."""
        self._begun[number] = self._clock()

    def ended(self, number: int) -> None:
        """Record that a trial ends now."""
        start = self._begun.pop(number, None)
        if start is not None:
            self._ended += 1
            self._trial_seconds += self._clock() - start

    def patience(self, in_flight: int) -> float:
        """Return how long the driver may wait for a proposal while ``in_flight`` trials run [s].

        It is 0 before a trial has ended.
        """
        if not self._ended:
            return 0.0
        mean = self._trial_seconds / self._ended
        return min(MOST_SECONDS, MOST_IDLE * mean, MOST_BUSY * mean / max(in_flight, 1))

    def take(self, finished: Finished, running: Running, seed: int) -> Values | None:
        """Return the parameters of the next trial; None if no proposal is ready in time.

        Parameters
        ----------
        finished
            Parameters and numbers of each ended trial, at least one.
        running
            Parameters of each trial whose loss is not known yet.
        seed
            Seed of the points at which the search for a proposal starts.

        Raises
        ------
        ProcessDied
            If the process has ended.
        """
        if self._background is None:
            self._background = self._make()
        self._collect()
        patience = self.patience(len(running))
        if self._cost > patience:
            proposal = self._ready.popleft() if self._ready else None
            # More would soon be outdated; with two, two trials can start together.
            ahead = max(2, len(running) // 16)
            if self._coming is None and len(self._ready) < ahead:
                begun = [*running, *self._ready, *([proposal] if proposal else [])]
                self._request(finished, begun, ahead, seed)
            return proposal
        if not (self._ready and self._made_with == len(finished)):
            if self._coming is None:
                self._request(finished, running, 1, seed)
            self._wait(patience)
        return self._ready.popleft() if self._ready else None

    def close(self) -> None:
        """End the process that proposes, and drop the proposals made ahead."""
        self._coming = None
        self._ready.clear()
        if self._background is not None:
            self._background.close()
            self._background = None

    def _request(self, finished: Finished, running: Running, count: int, seed: int) -> None:
        assert self._background is not None
        self._asked_with = len(finished)
        self._coming = self._background.propose(finished, running, count, seed)

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


MOST_TRIALS = 2000
"""Number of trials beyond which batched TPE makes all proposals. It is as good as the Gaussian
process with that many trials, at hardly any cost."""
N_START = 8
"""Number of quasi-random trials before the first proposal, whatever the number of parameters. With
two for each parameter, a search of sixty trials would be half over before it learns."""

_WITH_VALUE = (TrialState.COMPLETE, TrialState.PRUNED)

_logger = logging.getLogger(__name__)


class AutoSampler(BatchedTPESampler):
    """Sampler that begins with quasi-random points, goes on with a Gaussian process, then with TPE.

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
    clock
        Clock that measures how long trials take [s].
    """

    def __init__(
        self,
        space: Space,
        *,
        seed: int,
        wait: bool = False,
        background: Callable[[Space, int], Background] = BackgroundProposer,
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
        self._supply = Supply(lambda: background(self._space, self._objectives), clock)

    def close(self) -> None:
        """End the separate process; from then on batched TPE proposes."""
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
        """Return the distributions of the parameters that `sample_relative` will propose.

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
        """Return the values of the next trial by parameter.

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
        trials = study.get_trials(deepcopy=False)
        if PROMOTES in study.user_attrs:
            trials = [as_pruned(other) if waits(other) else other for other in trials]
        self._objectives = len(study.directions)
        finished = _finished(trials, study.directions)
        if finished:
            proposal = self._take(trial, trials, finished)
            if proposal is not None:
                return proposal
        if len(finished) < N_START:
            return self._start(trial.number)
        search_space = super().infer_relative_search_space(study, trial)
        return super().sample_relative(study, trial, search_space)

    def _start(self, number: int) -> Values:
        return self._cube.decode(self._quasi_random[number])

    def _take(
        self, trial: FrozenTrial, trials: Sequence[FrozenTrial], finished: Finished
    ) -> Values | None:
        """Return a proposal of the Gaussian process; None if none is ready or its process died."""
        running = [
            other.params
            for other in trials
            if other.state == TrialState.RUNNING and other.number != trial.number
        ]
        seed = self._seed * 100_003 + trial.number
        if self._wait:
            if self._proposer is None:
                self._proposer = Proposer(self._space, self._objectives)
            return self._proposer.propose(finished, running, 1, seed)[0]
        try:
            return self._supply.take(finished, running, seed)
        except ProcessDied:
            _logger.warning("The process that proposes trials has died; batched TPE takes over.")
            self.close()
            return None


def _finished(
    trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]
) -> list[tuple[Values, list[float]]]:
    """Return parameters and numbers of each ended trial; empty before the first is complete.

    The numbers are losses, then excesses; those that are not known are NaN. A pruned trial has its
    last value, or the median of the complete trials if that is worse, since it was worse than
    others at its rung; nothing is known of its other objectives. A failed trial has the worst
    losses of complete ones, which keeps proposals away from regions where networks diverge.
    """
    signs = np.where([of == StudyDirection.MAXIMIZE for of in directions], -1.0, 1.0)
    ended = [trial for trial in trials if trial.state in (*_WITH_VALUE, TrialState.FAIL)]
    losses = np.array([_values(trial, len(signs)) for trial in ended]).reshape(-1, len(signs))
    losses *= signs
    states = np.array([trial.state for trial in ended])
    complete = losses[states == TrialState.COMPLETE]
    complete = complete[np.isfinite(complete).all(axis=1)]
    if not len(complete):
        return []
    worst, middle = complete.max(axis=0), np.median(complete, axis=0)
    pruned = states == TrialState.PRUNED
    unknown = ~np.isfinite(losses)
    unknown[pruned, 1:] = False
    losses = np.where(unknown, worst, losses)
    losses[pruned, 0] = np.maximum(losses[pruned, 0], middle[0])
    limits = dict.fromkeys(name for trial in ended for name in trial.constraints)
    return [
        (trial.params, [*known, *(_excess(trial, name) for name in limits)])
        for trial, known in zip(ended, losses.tolist(), strict=True)
    ]


def _excess(trial: FrozenTrial, limit: str) -> float:
    """Return by how much a trial exceeds a limit; NaN if it might, had it not ended early."""
    excess = trial.constraints.get(limit, math.nan)
    return excess if trial.state == TrialState.COMPLETE or excess > 0 else math.nan


def _values(trial: FrozenTrial, n: int) -> list[float]:
    """Return the values of a trial [n_objectives]; NaN where they are not known."""
    if trial.state == TrialState.PRUNED:
        step = trial.last_step
        known = math.nan if step is None else trial.intermediate_values[step]
        return [known, *[math.nan] * (n - 1)]
    return list(trial.values or [math.nan] * n)
