"""Simulated workers: segments take their true costs, slowed down by others on the same GCD."""

from __future__ import annotations

import io
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch

from hydragnn_flow.config.search import WARM_UP_STEPS
from hydragnn_flow.execution import Rank, Site
from hydragnn_flow.execution.jobs import Workers
from hydragnn_flow.execution.workers.rank import ANOTHER_RANK
from hydragnn_flow.placement import Host, Spot
from hydragnn_flow.segment import Place, SegmentResult, SegmentSpec, Status, TrainingOutcome
from hydragnn_flow.simulation.blocks import Appointment, Blocks, Conditions, VirtualClock
from hydragnn_flow.simulation.truth import Cost, Curves, Truth, draws
from hydragnn_flow.training.checkpoints.checkpoint import VERSION, checkpoints


@dataclass(eq=False)
class Job:
    """Simulated segment that runs: its GCDs, its work [s], and how much of it is finished [s]."""

    spots: Sequence[Spot]
    """GCD of each rank."""
    seconds: float
    """Time that the segment would take with its GCDs to itself [s]."""
    busy: float
    """Fraction of ``seconds`` in which it keeps its GCDs busy, 0 to 1."""
    memory_gib: float
    """Memory on each GCD [GiB]."""
    ended: Callable[[], None]
    """Function called when all work is finished."""
    done: float = 0.0
    """Part of ``seconds`` that is finished [s]."""
    _rate: float = 0.0
    _since: float = 0.0
    _end: Appointment | None = field(default=None, repr=False)


class Gcds:
    """Simulated GCDs with the segments (jobs) that run on them and slow each other down.

    A job alone on its GCD runs at rate 1. Several on one GCD run at ``min(1, 1 / Σ busy)``, divided
    by ``1 + interference * others``. A job on several GCDs runs at the rate of the slowest.

    Parameters
    ----------
    clock
        Virtual clock of the campaign.
    interference
        Slowdown of a job by each other job on its GCD, as a fraction.
    """

    def __init__(self, clock: VirtualClock, interference: float = 0.0) -> None:
        self._clock, self._interference = clock, interference
        self._jobs: defaultdict[Spot, list[Job]] = defaultdict(list)
        self._occupied_since: dict[Spot, float] = {}
        self.occupied = 0.0
        """Time in which GCDs that are free now had jobs, summed over GCDs [s]."""
        self.busy = 0.0
        """Time in which ended jobs kept GCDs busy, summed over GCDs [s]."""

    def on(self, spots: Iterable[Spot]) -> list[Job]:
        """Return the simulated jobs that run on any of the GCDs ``spots``, each job once."""
        return list({id(job): job for spot in spots for job in self._jobs[spot]}.values())

    def memory(self, spot: Spot) -> float:
        """Return the memory that all jobs on a simulated GCD take together [GiB]."""
        return sum(job.memory_gib for job in self._jobs[spot])

    def done(self, job: Job) -> float:
        """Return how much of a job's work is finished by now, as a part of its ``seconds`` [s]."""
        self._advance(job)
        return job.done

    def begin(self, job: Job) -> None:
        """Start a simulated job on its GCDs, and adapt the speed of the jobs that run there."""
        now = job._since = self._clock.monotonic()
        for spot in job.spots:
            self._jobs[spot].append(job)
            self._occupied_since.setdefault(spot, now)
        self._refresh(job.spots)

    def end(self, job: Job) -> None:
        """Remove a job, finished or not, from its GCDs, and adapt the speed of the other jobs."""
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
        """Recompute when the jobs on the GCDs ``spots`` will end, after a job began or ended."""
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


@dataclass(eq=False)
class _Sending:
    """Segment as sent to workers (an attempt at it): its ranks on each node, and its progress."""

    spec: SegmentSpec
    parts: dict[str, tuple[Sequence[Rank], Future[list[SegmentResult]]]] = field(
        default_factory=dict
    )
    cost: Cost | None = None
    job: Job | None = None
    began: float = 0.0
    from_epoch: float = 0.0
    stretch: float = 1.0
    """Random ratio of the attempt's time to the true cost."""
    stop: Appointment | None = None

    @property
    def ranks(self) -> list[tuple[str, Rank]]:
        return [(node, rank) for node, (ranks, _) in self.parts.items() for rank in ranks]


class SimulatedWorkers(Workers):
    """Simulated workers of a site: segments pass on them in virtual time, without any training.

    Whether a segment succeeds does not depend on its node, and all its ranks end together.

    Parameters
    ----------
    site
        Site of the simulated machine.
    clock
        Virtual clock of the campaign.
    truth, curves
        True costs and learning curves of segments.
    conditions
        Properties of the machine other than its speed.
    seed
        Seed of the random numbers.
    targets
        Names of the targets whose errors segments report.
    gcd_watts
        Power of a GCD that has segments [W]; None to count no energy.
    """

    def __init__(
        self,
        site: Site,
        clock: VirtualClock,
        truth: Truth,
        curves: Curves,
        conditions: Conditions,
        seed: int,
        targets: Sequence[str] = (),
        gcd_watts: float | None = None,
    ) -> None:
        self._site, self._clock, self._truth, self._curves = site, clock, truth, curves
        self._conditions, self._unix_time = conditions, time.time()
        self._targets, self._gcd_watts = targets, gcd_watts
        self._drawn = draws(seed, "segments")
        self.gcds = Gcds(clock, conditions.interference)
        self.blocks = Blocks(site, clock, conditions, draws(seed, "nodes"), self._lose)
        self._sendings: dict[str, _Sending] = {}
        self._on: defaultdict[str, dict[str, _Sending]] = defaultdict(dict)
        self._reached: dict[tuple[str, int], float] = {}
        self._since: dict[tuple[str, int], int] = {}
        self.ended = self.search_ended = 0.0
        """Virtual times at which the last segment, and the last one of a trial, ended [s]."""

    def update(self, demand: int) -> None:
        """Request simulated batch jobs, or end idle ones, so that there are ``demand`` GCDs."""
        self.blocks.update(demand)

    def hosts(self) -> list[Host]:
        """Return the simulated nodes that take segments."""
        return self.blocks.hosts()

    def run(self, ranks: Sequence[Rank], node: str) -> Future[list[SegmentResult]]:
        """Simulate a segment's ranks (processes) on one node; return a future of their results.

        A segment on several nodes starts once this method was called for each of them.
        """
        future: Future[list[SegmentResult]] = Future()
        spec = ranks[0].segment
        sending = self._sendings.setdefault(spec.attempt, _Sending(spec))
        sending.parts[node] = ranks, future
        if len(sending.ranks) == ranks[0].world:
            self._begin(sending)
        return future

    def release(self, node: str, attempt: str) -> None:
        """Stop an attempt at a segment (one sending of it) early, with a checkpoint."""
        if (sending := self._sendings.get(attempt)) is not None:
            self._stop(sending)

    def _begin(self, sending: _Sending) -> None:
        now, spec = self._clock.monotonic(), sending.spec
        missing = [node for node in sending.parts if not self.blocks.begin_work(node)]
        if missing:
            self._answer(sending, "interrupted", f"{missing[0]} took it no more", gone=missing[0])
            return
        for node in sending.parts:
            self._on[node][spec.attempt] = sending
        _, rank = sending.ranks[0]
        cost = sending.cost = self._truth.cost(rank)
        sending.began = now
        sending.from_epoch = max(
            spec.epochs.after_epoch, self._reached.get((spec.kind, spec.number), 0.0)
        )
        sending.stretch = math.exp(self._conditions.noise * self._drawn.standard_normal())
        spots = [Spot(node, rank.gcd) for node, rank in sending.ranks]
        fits = all(
            self.gcds.memory(spot) + cost.memory_gib <= self._site.node.gcd.memory_gib
            for spot in spots
        )
        epochs = max(0.0, spec.epochs.until_epoch - sending.from_epoch)
        training = epochs * cost.epoch_seconds if fits else cost.step_seconds
        work = (cost.start_seconds + training) * sending.stretch
        end = partial(self._finish, sending, fits)
        sending.job = Job(spots, work, cost.busy, cost.memory_gib, end)
        self.gcds.begin(sending.job)
        left = min(
            (rank.seconds for _, rank in sending.ranks if rank.seconds is not None),
            default=math.inf,
        )
        if left < math.inf:
            # Ten seconds before the end of its batch job it has written its checkpoint.
            sending.stop = self._clock.at(now + left - 10.0, partial(self._stop, sending))

    def _finish(self, sending: _Sending, fits: bool) -> None:
        assert sending.cost is not None
        if fits:
            self._reached[sending.spec.kind, sending.spec.number] = sending.spec.epochs.until_epoch
            self._answer(sending, "ok", "")
        else:
            memory = f"{sending.cost.memory_gib:.1f} GiB"
            self._answer(sending, "out_of_memory", f"a step needs {memory} beside what is there")

    def _stop(self, sending: _Sending) -> None:
        """End an attempt with status ``interrupted`` and a checkpoint after its last whole step."""
        assert sending.cost is not None and sending.job is not None
        cost, spec, done = sending.cost, sending.spec, self.gcds.done(sending.job)
        started = cost.start_seconds * sending.stretch
        each = cost.epoch_seconds * sending.stretch
        got = max(0.0, done - started) / each if each > 0 else 0.0
        if steps := math.floor(got * cost.steps):
            epoch = min(sending.from_epoch + steps / cost.steps, spec.epochs.until_epoch)
            self._reached[spec.kind, spec.number] = epoch
        self._answer(sending, "interrupted", "stopped before its end, with a checkpoint")

    def _lose(self, node: str) -> None:
        """End the segments on a lost node without a result."""
        for sending in [*self._on[node].values()]:
            self._answer(sending, "lost", f"its node {node} was lost", gone=node)
        self._on.pop(node, None)

    def _answer(self, sending: _Sending, status: Status, reason: str, gone: str = "") -> None:
        """End an attempt: free its GCDs and set the results of its ranks.

        If the node ``gone`` is lost, the ranks on other nodes are ``interrupted``.
        """
        del self._sendings[sending.spec.attempt]
        if sending.stop is not None:
            sending.stop.call_off()
        if sending.job is not None:
            self.gcds.end(sending.job)
        for node in sending.parts:
            if self._on[node].pop(sending.spec.attempt, None) is not None:
                self.blocks.end_work(node)
        outcome = self._outcome(sending, status, reason)
        self.ended = self._clock.monotonic()
        if sending.spec.kind == "trial":
            self.search_ended = self.ended
        for node, (ranks, future) in sending.parts.items():
            if gone and node != gone:
                others = TrainingOutcome(status="interrupted", reason=f"{ANOTHER_RANK}: {reason}")
            future.set_result(
                [
                    SegmentResult.of(
                        rank.segment,
                        outcome if not gone or node == gone else others,
                        Place() if node == gone else self._place(node, rank),
                    )
                    for rank in ranks
                ]
            )

    def _place(self, node: str, rank: Rank) -> Place:
        return Place(node=node, gcds=[self._site.node.gcds[rank.gcd]])

    def _outcome(self, sending: _Sending, status: Status, reason: str) -> TrainingOutcome:
        cost, now = sending.cost, self._clock.monotonic()
        if cost is None:
            return TrainingOutcome(status=status, reason=reason)
        began = min(sending.began, now)
        seconds = now - began
        outcome = TrainingOutcome(
            status=status,
            reason=reason,
            from_epoch=math.floor(sending.from_epoch),
            to_epoch=math.floor(sending.from_epoch),
            from_step=round(sending.from_epoch % 1 * cost.steps),
            seconds=seconds,
            cpu_seconds=seconds,
            peak_memory_gib=max(0.0, cost.memory_gib - self._site.node.uncounted_gib),
            joules=self._joules(sending),
            started=self._unix_time + began,
            ended=self._unix_time + now,
        )
        return outcome if status not in ("ok", "interrupted") else self._trained(sending, outcome)

    def _joules(self, sending: _Sending) -> float | None:
        """Return the energy of each rank [J]; None if no energy is counted.

        It covers the finished part of the time that the segment takes alone on its GCDs.
        """
        if self._gcd_watts is None or sending.job is None:
            return None
        return self._gcd_watts * sending.job.done

    def _trained(self, sending: _Sending, outcome: TrainingOutcome) -> TrainingOutcome:
        """Return the outcome of a trained segment with progress, errors and speed added."""
        spec, cost, job = sending.spec, sending.cost, sending.job
        assert cost is not None and job is not None
        name = spec.kind, spec.number
        reached = self._reached.get(name, sending.from_epoch)
        epochs = math.floor(reached)
        errors = self._curves.errors(spec)[:epochs]
        since = self._since.setdefault(name, math.floor(sending.from_epoch))
        best = min(range(since, epochs), key=errors.__getitem__, default=None)
        slower = outcome.seconds / max(job.done, 1e-9)
        taken = round((reached - sending.from_epoch) * cost.steps)
        each = cost.step_seconds * sending.stretch * slower
        if reached > 0:
            _leave_checkpoint(spec)
        return replace(
            outcome,
            to_epoch=epochs,
            best_val_error=None if best is None else errors[best],
            best_val_loss=None if best is None else errors[best],
            best_epoch=None if best is None else best + 1,
            history=[
                [epoch, errors[epoch - 1], errors[epoch - 1], errors[epoch - 1]]
                for epoch in range(spec.epochs.after_epoch + 1, epochs + 1)
            ],
            metrics={}
            if best is None
            else {
                **{f"{target}_mae": errors[best] for target in self._targets},
                **dict.fromkeys(spec.validation.functions, errors[best]),
            },
            checkpoint=spec.checkpoint.name if reached > 0 else "",
            steps=taken,
            step_seconds=each,
            graphs_per_step=cost.graphs_per_step,
            **_steady(taken, cost, each, outcome),
        )


def _steady(steps: int, cost: Cost, each: float, outcome: TrainingOutcome) -> dict[str, Any]:
    """Return the `steady_…` fields of an outcome: measurements of steps after the first five.

    ``steps`` is the number of steps taken, ``each`` the time of a step [s].
    """
    counted, joules = max(0, steps - WARM_UP_STEPS), outcome.joules
    share = counted * each / outcome.seconds if outcome.seconds else 0.0
    return {
        "steady_joules": None if joules is None else joules * min(share, 1.0),
        "steady_steps": counted,
        "steady_graphs": round(counted * cost.graphs_per_step),
        "steady_seconds": counted * each,
    }


def _leave_checkpoint(spec: SegmentSpec) -> None:
    """Replace the earlier checkpoints of a segment by one that is readable but has no weights."""
    folder = spec.folder
    before = folder / spec.start.begin_with if spec.start.begin_with else None
    if before is not None and not spec.start.may_have_begun:
        before.replace(spec.checkpoint)
        return
    folder.mkdir(parents=True, exist_ok=True)
    others = checkpoints(folder) if spec.start.may_have_begun else []
    spec.checkpoint.write_bytes(_empty_checkpoint())
    for other in others:
        other.unlink()


@cache
def _empty_checkpoint() -> bytes:
    file = io.BytesIO()
    progress = {"epoch": 0, "step": 0, "best_val_error": math.nan}
    torch.save({"version": VERSION, "progress": progress, "network": {}}, file)
    return file.getvalue()
