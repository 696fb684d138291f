"""Processor sharing: how fast segments get on that are on a GCD together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hydragnn_flow.placement import Spot
from hydragnn_flow.simulation.clock import Appointment, VirtualClock


@dataclass(eq=False)
class Job:
    """Work that a segment has for its GCDs."""

    spots: Sequence[Spot]
    seconds: float
    """Time it would take if it had its GCDs to itself [s]."""
    busy: float
    """Fraction of that time in which it keeps them busy."""
    memory_gib: float
    """Memory on each [GiB]."""
    ended: Callable[[], None]
    """Called when all is done."""
    done: float = 0.0
    """Of ``seconds``."""
    _rate: float = 0.0
    _since: float = 0.0
    _end: Appointment | None = field(default=None, repr=False)


class Gcds:
    """GCDs on which jobs get on at a rate of at most one, together at no more than a GCD can do.

    The rate is ``min(1, 1 / Σ busy)``, less a little for each other job on the GCD; jobs on several
    GCDs go at the pace of the slowest.

    Parameters
    ----------
    clock
        Whose time it is.
    interference
        How much longer a job takes beside each other one, as a fraction.
    """

    def __init__(self, clock: VirtualClock, interference: float = 0.0) -> None:
        self._clock, self._interference = clock, interference
        self._jobs: defaultdict[Spot, list[Job]] = defaultdict(list)
        self._occupied_since: dict[Spot, float] = {}
        self.occupied = 0.0
        """Time in which GCDs had something to do, added up over those that have nothing now [s]."""
        self.busy = 0.0
        """Time in which they were busy, added up over jobs that have ended [s]."""

    def on(self, spots: Iterable[Spot]) -> list[Job]:
        """Jobs on any of some GCDs."""
        return list({id(job): job for spot in spots for job in self._jobs[spot]}.values())

    def memory(self, spot: Spot) -> float:
        """Memory that the jobs on a GCD take together [GiB]."""
        return sum(job.memory_gib for job in self._jobs[spot])

    def done(self, job: Job) -> float:
        """How much of a job is done [s]."""
        self._advance(job)
        return job.done

    def begin(self, job: Job) -> None:
        """Put a job on its GCDs."""
        now = job._since = self._clock.monotonic()
        for spot in job.spots:
            self._jobs[spot].append(job)
            self._occupied_since.setdefault(spot, now)
        self._refresh(job.spots)

    def end(self, job: Job) -> None:
        """Take a job off its GCDs, whether or not all is done."""
        self._advance(job)
        if job._end is not None:
            job._end.call_off()
        self.busy += job.done * job.busy * len(job.spots)
        now = self._clock.monotonic()
        for spot in job.spots:
            self._jobs[spot].remove(job)
            if not self._jobs[spot]:
                self.occupied += now - self._occupied_since.pop(spot)
        self._refresh(job.spots)

    def _refresh(self, spots: Sequence[Spot]) -> None:
        """Work out anew when the jobs on some GCDs end."""
        for job in self.on(spots):
            rate = min(map(self._rate, job.spots))
            if rate == job._rate:
                continue
            self._advance(job)
            job._rate = rate
            if job._end is not None:
                job._end.call_off()
            left = max(0.0, job.seconds - job.done)
            job._end = self._clock.at(self._clock.monotonic() + left / rate, job.ended)

    def _advance(self, job: Job) -> None:
        now = self._clock.monotonic()
        job.done = min(job.seconds, job.done + job._rate * (now - job._since))
        job._since = now

    def _rate(self, spot: Spot) -> float:
        jobs = self._jobs[spot]
        others = len(jobs) - 1
        together = sum(job.busy for job in jobs)
        return min(1.0, 1.0 / together if together > 0 else 1.0) / (1 + self._interference * others)
