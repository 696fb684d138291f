"""Sends segments to the workers of a pool, and collects how they ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Any

from parsl.executors.high_throughput.errors import ManagerLost, WorkerLost

from hydragnn_flow.campaign.segments import Context, Task
from hydragnn_flow.execution import Job, abort, run_jobs, whole
from hydragnn_flow.execution.pools.pools import PoolName, Pools
from hydragnn_flow.segment import AGREED, SegmentResult, SegmentSpec, Status, TrainingOutcome

SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(eq=False)
class _Sending:
    """Segments side by side on one worker, or one segment as a gang on several."""

    tasks: list[Task]
    jobs: list[list[Job]]
    """Of each worker."""
    bundle: str
    """Its name in the records."""
    started: float = field(default_factory=time.monotonic)
    ended: dict[int, list[SegmentResult]] = field(default_factory=dict)

    @property
    def is_gang(self) -> bool:
        return len(self.jobs) > 1

    def remaining(self) -> float:
        """Expected time until its GCDs are free [s]; one that is late counts its delay."""
        expected = max(task.estimate.seconds / task.width for task in self.tasks)
        return abs(self.started + expected - time.monotonic())


class Dispatch:
    """The segments that one phase has running.

    Parameters
    ----------
    context
        Of the campaign.
    pools
        Of its site.
    pool
        The one to use.
    """

    def __init__(self, context: Context, pools: Pools, pool: PoolName) -> None:
        self._context, self._pools, self._pool = context, pools, pool
        self._running: set[_Sending] = set()
        self._done: SimpleQueue[tuple[_Sending, int, Future[Any]]] = SimpleQueue()
        self._waited_for = ""

    @property
    def running(self) -> int:
        """Workers that have something to do."""
        return sum(len(sending.jobs) - len(sending.ended) for sending in self._running)

    @property
    def free(self) -> int:
        """Workers that could begin something now."""
        return self._pools.free(self._pool)

    def busy(self) -> list[float]:
        """For each worker at work, how long it is expected to be so [s]."""
        return [
            sending.remaining()
            for sending in self._running
            for _ in range(len(sending.jobs) - len(sending.ended))
        ]

    def want(self, more: int) -> None:
        """Have the site look for workers, ``more`` than are at work.

        Raises
        ------
        InputError, CampaignStopped
            If none can be got, or none that does any work.
        """
        wanted = {self._pool: self.running + more}
        self._pools.tend(**wanted)
        waits_for = self._pools.waiting() if more and not self._running else ""
        if waits_for and not self._waited_for:
            self._context.view.say(waits_for)
        self._waited_for = waits_for

    def send(self, jobs: Sequence[tuple[Task, Job]]) -> None:
        """Run segments side by side on one worker."""
        bundle = self._context.bundle()
        self._send(_Sending([task for task, _ in jobs], [[job for _, job in jobs]], bundle))

    def send_gang(self, task: Task, jobs: Sequence[Job]) -> None:
        """Run one segment on several workers, whose ranks the jobs share out."""
        self._send(_Sending([task], [[job] for job in jobs], self._context.bundle()))

    def _send(self, sending: _Sending) -> None:
        self._running.add(sending)
        for position, jobs in enumerate(sending.jobs):
            future = self._pools.submit(self._pool, run_jobs, self._context.site.node, jobs)
            future.add_done_callback(partial(self._note_end, sending, position))

    def _note_end(self, sending: _Sending, position: int, future: Future[Any]) -> None:
        self._done.put((sending, position, future))  # called by a thread of Parsl's

    def wait(self) -> list[tuple[Task, SegmentResult]]:
        """Put what has ended on disk; nothing where that takes long, so that others get a look."""
        finished = self._finished()
        self._running.difference_update(finished)
        ended = [each for sending in finished for each in _results(sending)]
        self._context.record([result for _, result in ended])
        for sending in finished:
            self._note_health(sending)
        return ended

    def _note_health(self, sending: _Sending) -> None:
        """Tell the pools how a node does; of a gang each part speaks for its own.

        What worked comes last: the node is good, whatever failed beside it.
        """
        results = chain.from_iterable(_answers(sending))
        for result in sorted(results, key=_has_worked):
            if result.status in ("interrupted", "lost") or not result.node:
                continue
            if result.status == "refused":
                if self._pools.avoid(result.node, result.reason):
                    self._context.view.say(f"{result.node} gets no more work: {result.reason}")
                continue
            segment = (result.kind, result.number, result.rung)
            self._pools.note(result.node, segment, _has_worked(result))

    def _finished(self) -> list[_Sending]:
        """Sendings that have ended whole; a gang is called off when one of its parts ends badly."""
        finished: list[_Sending] = []
        timeout: float | None = SECONDS_BETWEEN_LOOKS
        while True:
            try:
                sending, position, future = self._done.get(timeout=timeout, block=bool(timeout))
            except Empty:
                return finished
            timeout = None
            specs = [job.spec for job in sending.jobs[position]]
            end = sending.ended[position] = results_of(future, specs)
            if len(sending.ended) == len(sending.jobs):
                finished.append(sending)
            elif end[0].status not in AGREED:
                self._call_off(specs[0], end[0].reason)

    def _call_off(self, spec: SegmentSpec, reason: str) -> None:
        self._context.write(lambda: abort(spec, reason))


def _has_worked(result: SegmentResult) -> bool:
    """Whether a segment ended by itself, well or not, so that its node is innocent."""
    return result.status in ("ok", "diverged", "out_of_memory")


def _answers(sending: _Sending) -> list[list[SegmentResult]]:
    """The results of each worker, in the order of their jobs."""
    return [sending.ended[position] for position in range(len(sending.jobs))]


def _results(sending: _Sending) -> list[tuple[Task, SegmentResult]]:
    lists = _answers(sending)
    results = [whole([answer for (answer,) in lists])] if sending.is_gang else lists[0]
    return [
        (task, result.expected(task.forecast(sending.bundle)))
        for task, result in zip(sending.tasks, results, strict=True)
    ]


def results_of(future: Future[Any], specs: Sequence[SegmentSpec]) -> list[SegmentResult]:
    """Results of a worker; if it was lost, results that say so."""
    error = future.exception()
    if error is None:
        results: list[SegmentResult] = future.result()
        return results
    status: Status = "killed"
    reason = f"its worker was lost ({type(error).__name__}: {error})"
    if isinstance(error, ManagerLost):
        # The node went, or its whole batch job: nothing that a segment does.
        status, reason = "lost", f"its node {error.hostname} was lost"
    elif isinstance(error, WorkerLost):
        reason = f"its worker on {error.hostname} was killed"
    outcome = TrainingOutcome.cut_short(status, reason)
    return [SegmentResult.of(spec, outcome) for spec in specs]
