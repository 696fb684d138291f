"""Processor sharing: the speed of co-located segments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hydragnn_flow.placement import Spot
from hydragnn_flow.simulation.clock import Appointment, VirtualClock


@dataclass(eq=False)
class Job:
    """Work of a segment on its GCDs."""

    spots: Sequence[Spot]
    seconds: float
    """Time it would take with its GCDs to itself [s]."""
    busy: float
    """Fraction of that time in which it keeps its GCDs busy."""
    memory_gib: float
    """Memory on each GCD [GiB]."""
    ended: Callable[[], None]
    """Function called when all is done."""
    done: float = 0.0
    """Finished amount of ``seconds`` [s]."""
    _rate: float = 0.0
    _since: float = 0.0
    _end: Appointment | None = field(default=None, repr=False)


class Gcds:
    """GCDs with jobs, each at a rate of at most one, and together at most at a GCD's rate.

    The rate is ``min(1, 1 / Σ busy)``, less a little for each other job on the GCD. Jobs on several
    GCDs run at the rate of the slowest.

    Parameters
    ----------
    clock
        Virtual clock of the campaign.
    interference
        Slowdown of a job by each co-located one, as a fraction.
    """

    def __init__(self, clock: VirtualClock, interference: float = 0.0) -> None:
        self._clock, self._interference = clock, interference
        self._jobs: defaultdict[Spot, list[Job]] = defaultdict(list)
        self._occupied_since: dict[Spot, float] = {}
        self.occupied = 0.0
        """Time in which idle GCDs were occupied, summed over them [s]."""
        self.busy = 0.0
        """Busy GCD time of ended jobs [s]."""

    def on(self, spots: Iterable[Spot]) -> list[Job]:
        """List the jobs on any of the GCDs."""
        return list({id(job): job for spot in spots for job in self._jobs[spot]}.values())

    def memory(self, spot: Spot) -> float:
        """Total memory of the jobs on a GCD [GiB]."""
        return sum(job.memory_gib for job in self._jobs[spot])

    def done(self, job: Job) -> float:
        """Finished amount of a job [s]."""
        self._advance(job)
        return job.done

    def begin(self, job: Job) -> None:
        """Start a job on its GCDs."""
        now = job._since = self._clock.monotonic()
        for spot in job.spots:
            self._jobs[spot].append(job)
            self._occupied_since.setdefault(spot, now)
        self._refresh(job.spots)

    def end(self, job: Job) -> None:
        """Remove a job from its GCDs, finished or not."""
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
        """Recompute the ends of the jobs on some GCDs."""
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
