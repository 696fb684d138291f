"""How much of a machine idles because its one driver is busy, simulated event by event."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from results import Line, Number, Table

from search_race.latency import Latency

GCDS = 8192
MEDIAN_SECONDS = 600.0
AFTER = (20_000, 50_000, 100_000)
_AT_RANDOM = 10
"""Results before which every engine proposes at random, which costs next to nothing."""


@dataclass(frozen=True)
class Idle:
    """Of one engine: shares of GCD time lost while the driver was busy."""

    engine: str
    fractions: tuple[float, ...]
    """After the numbers of trials in `AFTER`."""

    def lines(self) -> list[Line]:
        """Ours are to lose at most a hundredth."""
        if self.engine not in ("auto", "batched_tpe"):
            return []
        return [Line("idle", f"idle, {self.engine}", self.fractions[-1], "", at_most=0.01)]


def simulate(
    latencies: Sequence[Latency], driver: Sequence[float], say: Callable[[str], None]
) -> list[Idle]:
    """Simulate the engines whose latencies were measured; ours with the rest of the driver's work.

    Parameters
    ----------
    latencies
        Of every engine.
    driver
        Seconds that the simulated campaign needed for a trial, all of it: with few networks first,
        with every trial's network new last; empty where that was not measured. Of the peers only
        asking and telling counts.
    say
        Told what is being done.
    """
    rows = []
    start = min(one.milliseconds for one in latencies if one.engine == "random") / 1e3
    for engine in dict.fromkeys(one.engine for one in latencies):
        say(f"a campaign by {engine}")
        points = {one.finished: one.milliseconds / 1e3 for one in latencies if one.engine == engine}
        shown = {engine: 0.0}
        if engine in ("auto", "batched_tpe") and driver:
            shown[engine] = driver[0]
        if engine == "batched_tpe" and driver:
            shown[f"{engine}, every network new"] = driver[-1]
        for name, more in shown.items():
            whole = {finished: seconds + more for finished, seconds in points.items()}
            rows.append(Idle(name, tuple(idle_fractions(cost(whole, start + more)))))
    return rows


def table(rows: Sequence[Idle]) -> Table:
    """Shares of GCD time in which the driver kept GCDs waiting."""
    columns = ("GCD time lost to the driver", *(f"up to {n:,} trials" for n in AFTER), "target", "")
    shown = []
    for row in rows:
        target = row.lines()
        verdict = "" if not target else "met" if target[0].met else "MISSED"
        values = [Number(100 * fraction, "%") for fraction in row.fractions]
        shown.append([row.engine, *values, "≤ 1 %" if target else "", verdict])
    title = f"{GCDS:,} GCDs, one driver, lognormal trials of median {MEDIAN_SECONDS:g} s, σ = 1"
    return Table(columns, shown, "idle", title)


def cost(points: Mapping[int, float], start: float) -> Callable[[int], float]:
    """Seconds that the driver needs for a trial, by the number of finished trials.

    Parameters
    ----------
    points
        Number finished → measured seconds; between them straight lines, and beyond them the last
        line continues.
    start
        Seconds while trials are drawn at random.
    """
    x, y = np.array(sorted(points)), np.array([points[n] for n in sorted(points)])
    slope = (y[-1] - y[-2]) / (x[-1] - x[-2]) if len(x) > 1 else 0.0

    def seconds(finished: int) -> float:
        if finished < _AT_RANDOM:
            return start
        if finished > x[-1]:
            return float(y[-1] + slope * (finished - x[-1]))
        return float(np.interp(finished, x, y))

    return seconds


def idle_fractions(
    seconds: Callable[[int], float], after: Sequence[int] = AFTER, gcds: int = GCDS
) -> list[float]:
    """Share of all GCD time in which a GCD had no trial to run, until a number of trials have
    finished.

    Every GCD waits for the driver when its trial ends, and the driver serves them one by one, all
    of them first. Trials last a lognormal time with sigma 1.

    Parameters
    ----------
    seconds
        Of the driver, for one trial, by the number of finished trials.
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
