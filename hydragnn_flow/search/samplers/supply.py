"""Supply of proposals from a separate process to the driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from hydragnn_flow.search.samplers.background import Background, Proposals
from hydragnn_flow.search.samplers.encoding import Finished, Running, Space, Values

MOST_IDLE = 0.01
"""Largest fraction of a trial's time to wait for a proposal that knows all results."""
MOST_BUSY = 0.25
"""Largest fraction of its time that the driver may wait."""
MOST_SECONDS = 2.0
"""Longest single wait of the driver [s]: it has results to record and segments to send."""
IN_FLIGHT_PER_PROPOSAL = 16
"""Number of trials in flight for each proposal made ahead: more would soon be outdated."""
FEWEST_AHEAD = 2
"""Least number of proposals kept ready, so that two trials can start together."""


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
            ahead = max(FEWEST_AHEAD, len(running) // IN_FLIGHT_PER_PROPOSAL)
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
