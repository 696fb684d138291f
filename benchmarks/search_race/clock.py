"""Simulated time, in which trials last and proposals are computed."""

from __future__ import annotations

import time
from concurrent.futures import Future

import numpy as np
import optuna

from hydragnn_flow.search.samplers.background import Proposals
from hydragnn_flow.search.samplers.encoding import Finished, Running, Space
from hydragnn_flow.search.samplers.proposer import MOST_FITTED, MOST_KNOWN, Proposer
from search_race.development import DEVELOPMENT


class Clock:
    """The time of a simulated search [s]."""

    def __init__(self) -> None:
        self.now = 0.0

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
    """A `BackgroundProposer` whose proposals take the time that they would take on a quiet core.

    Parameters
    ----------
    clock
        Of the search.
    space
        Dotted path -> domain, conditions after the parameters they name.
    """

    def __init__(self, clock: Clock, space: Space) -> None:
        self._clock, self._proposer = clock, Proposer(space)

    def propose(
        self, finished: Finished, running: Running, count: int, seed: int
    ) -> Future[Proposals]:
        """As `BackgroundProposer.propose`."""
        before = self._proposer.fits
        proposals = self._proposer.propose(finished, running, count, seed)
        seconds = _MESSAGE + count * _proposing(len(finished), len(running))
        if self._proposer.fits > before:
            seconds += _fitting(len(finished))
        return Awaited(self._clock, self._clock.now + seconds, Proposals(proposals, seconds))

    def close(self) -> None:
        """There is nothing to end."""


# CPU seconds for a space of twenty parameters
# (`python -m search_race.clock` measures them).
_MESSAGE = 0.01


def _proposing(known: int, pending: int) -> float:
    return 0.055 + 3.6e-7 * (min(known, MOST_KNOWN) + pending) ** 2


def _fitting(known: int) -> float:
    return 0.65 * (min(known, MOST_FITTED) / MOST_FITTED) ** 3


def measure() -> None:
    """Print the time of proposals, beside the time that the simulation assumes."""
    function = DEVELOPMENT["types"]
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    trials = [function.suggest(study.ask()) for _ in range(1800)]
    known = [(params, function.value(params)) for params in trials]
    for finished, running in ((20, 3), (60, 3), (100, 31), (200, 31), (300, 255), (1500, 255)):
        proposer, times = Proposer(function.space), [time.process_time()]
        for seed in range(2):
            proposer.propose(known[:finished], trials[-running:], 1, seed)
            times.append(time.process_time())
        proposing, fitting = _proposing(finished, running), _fitting(finished)
        first, second = np.diff(times)
        print(f"{finished} + {running} trials:", end=" ")
        print(f"with a fit {first:.3f} s ({proposing + fitting:.3f})", end=", ")
        print(f"without {second:.3f} s ({proposing:.3f})")


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    measure()
