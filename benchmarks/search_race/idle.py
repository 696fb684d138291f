"""How much of a machine idles because its one driver is busy, simulated event by event."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

import numpy as np

GCDS = 8192
MEDIAN_SECONDS = 600.0
AFTER = (20_000, 50_000, 100_000)


def cost(points: Mapping[int, float]) -> Callable[[int], float]:
    """Seconds that the driver needs for a trial when so many have finished.

    Parameters
    ----------
    points
        Number finished → measured seconds; between them straight lines, and beyond them the last
        line goes on.
    """
    x, y = np.array(sorted(points)), np.array([points[n] for n in sorted(points)])
    slope = (y[-1] - y[-2]) / (x[-1] - x[-2]) if len(x) > 1 else 0.0

    def seconds(finished: int) -> float:
        if finished > x[-1]:
            return float(y[-1] + slope * (finished - x[-1]))
        return float(np.interp(finished, x, y))

    return seconds


def idle_fractions(
    seconds: Callable[[int], float], after: Sequence[int] = AFTER, gcds: int = GCDS
) -> list[float]:
    """Share of all GCD time, until so many trials have finished, in which a GCD had none to run.

    Every GCD waits for the driver when its trial ends, and the driver serves them one by one, all
    of them first. Trials last a lognormal time with sigma 1.

    Parameters
    ----------
    seconds
        Of the driver, for one trial when so many have finished.
    after
        Numbers of finished trials, rising.
    gcds
        Trials that run side by side.
    """
    rng = np.random.default_rng(0)
    durations = MEDIAN_SECONDS * rng.lognormal(size=after[-1] + gcds)
    starts = np.empty(len(durations))
    ends: list[float] = []
    free_at = 0.0
    for number in range(gcds):
        free_at += seconds(0)
        starts[number] = free_at
        ends.append(free_at + durations[number])
    heapq.heapify(ends)
    finishes = np.empty(after[-1])
    for finished in range(after[-1]):
        now = heapq.heappop(ends)
        finishes[finished] = now
        free_at = max(free_at, now) + seconds(finished + 1)
        starts[gcds + finished] = free_at
        heapq.heappush(ends, free_at + durations[gcds + finished])
    fractions = []
    for count in after:
        until = finishes[count - 1]
        busy = np.clip(until - starts, 0, durations).sum()
        fractions.append(float(1 - busy / (gcds * until)))
    return fractions
