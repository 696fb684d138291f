"""Sends segments to the workers of a pool, and collects how they ended."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from queue import SimpleQueue

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.machine import Workers
from hydragnn_flow.campaign.task import Task
from hydragnn_flow.execution import PoolName, RankGroup, abort, merged
from hydragnn_flow.log import tell
from hydragnn_flow.segment import AGREED, SegmentResult, SegmentSpec

SECONDS_BETWEEN_CHECKS = 0.5
_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Sending:
    """Segments side by side on one worker, or one segment as a gang on several."""

    tasks: list[Task]
    groups: list[list[RankGroup]]
    """Rank groups of each worker."""
    bundle: str
    """Its name in the records."""
    started: float
    """Start by the campaign's clock [s]."""
    ended: dict[int, list[SegmentResult]] = field(default_factory=dict)

    @property
    def is_gang(self) -> bool:
        return len(self.groups) > 1

    def remaining(self, now: float) -> float:
        """Expected time until its GCDs are free [s].

        An overdue one is assumed to need as long again as it is late.
        """
        return abs(self.started + max(task.seconds for task in self.tasks) - now)


_Ended = tuple[_Sending, int, Future[list[SegmentResult]]]
"""A bundle that was sent, the position of one of its workers, and the results of that worker."""


class Dispatch:
    """The segments that one phase has running.

    Parameters
    ----------
    context
        Of the campaign.
    workers
        Of its site.
    pool
        The pool to use.
    """

    def __init__(self, context: Context, workers: Workers, pool: PoolName) -> None:
        self._context, self._workers, self._pool = context, workers, pool
        self._clock = context.clock
        self._running: set[_Sending] = set()
        self._done: SimpleQueue[_Ended] = SimpleQueue()
        self._waited_for = ""

    @property
    def running(self) -> int:
        """Workers that have something to do."""
        return sum(len(sending.groups) - len(sending.ended) for sending in self._running)

    @property
    def free(self) -> int:
        """Workers that could begin something now."""
        return self._workers.free(self._pool)

    def busy(self) -> list[float]:
        """Expected remaining time of each worker at work [s]."""
        now = self._clock.monotonic()
        return [
            sending.remaining(now)
            for sending in self._running
            for _ in range(len(sending.groups) - len(sending.ended))
        ]

    def request_workers(self, more: int) -> None:
        """Ask the site for workers, ``more`` than are at work.

        Raises
        ------
        InputError, CampaignStopped
            If none can be got, or none that does any work.
        """
        self._workers.update(**{self._pool: self.running + more})
        waits_for = self._workers.waiting() if more and not self._running else ""
        if waits_for and not self._waited_for:
            tell(_logger, "%s", waits_for)
        self._waited_for = waits_for

    def send(self, groups: Sequence[tuple[Task, RankGroup]]) -> None:
        """Run segments side by side on one worker."""
        self._send([task for task, _ in groups], [[group for _, group in groups]])

    def send_gang(self, task: Task, groups: Sequence[RankGroup]) -> None:
        """Run one segment on several workers, a rank group on each."""
        self._send([task], [[group] for group in groups])

    def _send(self, tasks: list[Task], groups: list[list[RankGroup]]) -> None:
        bundle = self._context.ledger.next_bundle()
        sending = _Sending(tasks, groups, bundle, self._clock.monotonic())
        self._running.add(sending)
        for position, together in enumerate(groups):
            future = self._workers.run(self._pool, together)
            future.add_done_callback(partial(self._ended, sending, position))

    def _ended(self, sending: _Sending, position: int, end: Future[list[SegmentResult]]) -> None:
        self._done.put((sending, position, end))  # called by a thread of Parsl's

    def wait(self) -> list[tuple[Task, SegmentResult]]:
        """The segments that have ended, already on disk; none if that takes long."""
        finished = self._finished()
        self._running.difference_update(finished)
        ended = [each for sending in finished for each in _results(sending)]
        self._context.record([result for _, result in ended])
        for sending in finished:
            self._judge_nodes(sending)
        return ended

    def _judge_nodes(self, sending: _Sending) -> None:
        """Tell the pools how a node does; in a gang each group counts for its own node.

        Successes come last: the node is good, whatever failed beside them.
        """
        results = chain.from_iterable(_answers(sending))
        for result in sorted(results, key=_has_worked):
            if result.status in ("interrupted", "lost") or not result.node:
                continue
            if result.status == "refused":
                self._workers.avoid(result.node, result.reason)
                continue
            segment = (result.kind, result.number, result.rung)
            self._workers.record(result.node, segment, _has_worked(result))

    def _finished(self) -> list[_Sending]:
        """Sendings that have ended; a gang is called off when one of its groups ends badly."""
        finished: list[_Sending] = []
        seconds = SECONDS_BETWEEN_CHECKS
        while (end := self._clock.next(self._done, seconds)) is not None:
            seconds = 0.0
            sending, position, future = end
            results = sending.ended[position] = future.result()
            if len(sending.ended) == len(sending.groups):
                finished.append(sending)
            elif results[0].status not in AGREED:
                self._call_off(sending.groups[0][0].spec, results[0].reason)
        return finished

    def _call_off(self, spec: SegmentSpec, reason: str) -> None:
        self._context.ledger.write(lambda: abort(spec, reason))


def _has_worked(result: SegmentResult) -> bool:
    """Whether the end, good or bad, is the segment's own doing and not its node's."""
    return result.status in ("ok", "diverged", "out_of_memory")


def _answers(sending: _Sending) -> list[list[SegmentResult]]:
    """The results of each worker, in the order of their rank groups."""
    return [sending.ended[position] for position in range(len(sending.groups))]


def _results(sending: _Sending) -> list[tuple[Task, SegmentResult]]:
    lists = _answers(sending)
    results = [merged([answer for (answer,) in lists])] if sending.is_gang else lists[0]
    return [
        (task, result.expected(task.forecast(sending.bundle)))
        for task, result in zip(sending.tasks, results, strict=True)
    ]
