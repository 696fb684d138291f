"""Supply of proposals from a separate process to the driver."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from hydragnn_flow.processes import JsonProcess
from hydragnn_flow.search.samplers.encoding import Finished, Running, Space, Values

MOST_IDLE = 0.01
"""Largest fraction of a trial's time to wait for a proposal that knows all results."""
MOST_BUSY = 0.25
"""Largest fraction of its time that the driver may wait."""
MOST_SECONDS = 2.0
"""Longest single wait of the driver [s]: it has results to record and segments to send."""


class Proposals(NamedTuple):
    """Proposals of a process, and the time they took."""

    values: list[Values]
    seconds: float
    """Wall time of all proposals together [s]."""


class Background(Protocol):
    """Process that proposes trials next to the driver."""

    def propose(
        self, finished: Finished, running: Running, count: int, seed: int
    ) -> Future[Proposals]:
        """Run `Proposer.propose` later; the future raises `ProcessDied` if no answer comes."""

    def close(self) -> None:
        """End the process; it is gone when this returns."""


class BackgroundProposer:
    """`Proposer` in a separate process, with low priority and one thread.

    Parameters
    ----------
    space
        Domain of each parameter by dotted path; conditions follow the parameters they name.
    """

    def __init__(self, space: Space) -> None:
        self._process = JsonProcess(
            "hydragnn_flow.search.samplers.proposer",
            str(os.getpid()),
            environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        # This thread writes and waits, so a full pipe cannot block the driver.
        self._thread = ThreadPoolExecutor(max_workers=1)
        domains = {name: domain.model_dump(mode="json") for name, domain in space.items()}
        self._thread.submit(self._process.send, domains)

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
    """Proposals on request for long trials, made ahead for short ones.

    A proposal on request knows every result. It takes 0.1 s to 1 s, for which the driver waits if
    that idles neither the machine nor the driver for much of the time. Otherwise the driver takes a
    proposal that was made ahead, a few results ago, and never waits.

    Parameters
    ----------
    space
        Domain of each parameter by dotted path; conditions follow the parameters they name.
    background
        Function that starts the process that proposes.
    clock
        Clock that measures time [s].
    """

    def __init__(
        self,
        space: Space,
        background: Callable[[Space], Background],
        clock: Callable[[], float],
    ) -> None:
        self._space, self._make, self._clock = space, background, clock
        self._background: Background | None = None
        self._coming: Future[Proposals] | None = None
        self._asked_with = self._made_with = 0
        self._ready: deque[Values] = deque()
        self._cost = 0.0
        self._begun: dict[int, float] = {}
        self._ended, self._trial_seconds = 0, 0.0

    def begun(self, number: int) -> None:
        """Record that a trial starts now."""
        self._begun[number] = self._clock()

    def ended(self, number: int) -> None:
        """Record that a trial has ended."""
        start = self._begun.pop(number, None)
        if start is not None:
            self._ended += 1
            self._trial_seconds += self._clock() - start

    def patience(self, in_flight: int) -> float:
        """Time that the driver may wait for one proposal [s]."""
        if not self._ended:
            return 0.0
        mean = self._trial_seconds / self._ended
        return min(MOST_SECONDS, MOST_IDLE * mean, MOST_BUSY * mean / max(in_flight, 1))

    def take(self, finished: Finished, running: Running, seed: int) -> Values | None:
        """Return a proposal; None if none is ready and the driver cannot wait.

        Parameters
        ----------
        finished
            Parameters and loss of trials, at least one.
        running
            Parameters of trials whose loss is not known yet.
        seed
            Seed of the points at which the search for a proposal starts.

        Raises
        ------
        ProcessDied
            If the process has ended.
        """
        if self._background is None:
            self._background = self._make(self._space)
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
        """End the process, and drop its proposals."""
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
