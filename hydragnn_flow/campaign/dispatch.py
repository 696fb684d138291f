"""Dispatch of segments (jobs of training) to workers, and their results."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from queue import SimpleQueue

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.task import SegmentTask
from hydragnn_flow.execution.jobs import SECONDS_BETWEEN_CHECKS, Jobs, Sending, Workers
from hydragnn_flow.log import Running, tell
from hydragnn_flow.placement import (
    SURELY_BEFORE,
    Fleet,
    Placement,
    Resident,
    place,
    to_part,
    to_place_anew,
    widened,
)
from hydragnn_flow.segment import SegmentResult

# Least time between two records [s] where more than MANY segments run. On a large machine a hundred
# end in a second, and each record makes some requests to the shared file system.
SECONDS_BETWEEN_RECORDS = 0.2
MANY = 32
# Time between two searches for segments that could continue on more GCDs [s], where MANY run.
SECONDS_BETWEEN_LOOKS = 10.0
# Until the slowdown of co-located segments is known, one in four has a GCD to itself.
_ONE_ALONE_OF = 4
_logger = logging.getLogger(__name__)


class Dispatch(Jobs[SegmentTask]):
    """Dispatch of a campaign's segments: sends them to workers, and records results at their end.

    Parameters
    ----------
    context
        Context of the campaign.
    workers
        Workers of the site.
    """

    def __init__(self, context: Context, workers: Workers) -> None:
        super().__init__(workers, context.site, context.clock, context.gcd)
        self._context = context
        self._waited_for = ""
        self._recorded = self._looked = self._parted = -math.inf
        self._alone = 0
        self._told_apart = False

    @property
    def segments(self) -> int:
        """Number of running segments."""
        return len(self._running)

    @property
    def fleet(self) -> Fleet:
        """GCDs of all nodes that take jobs now, with the segments that run on each."""
        self._fleet.sharing_pays = self._sharing_pays()
        return super().fleet

    def request_workers(self, more: int) -> None:
        """Ask the site for workers on all busy GCDs and ``more`` others; tell the user of a wait.

        Raises
        ------
        InputError, CampaignStopped
            If no workers will come, or the nodes can do no work.
        """
        super().request_workers(more)
        waits_for = self.waiting if more and not self._running else ""
        if waits_for and not self._waited_for:
            tell(_logger, "%s", waits_for)
        self._waited_for = waits_for

    def begin(
        self,
        ready: Sequence[SegmentTask],
        most: float = math.inf,
        to_come: int = 0,
        *,
        may_join: bool = True,
    ) -> list[SegmentTask]:
        """Send as many ready segments to GCDs as fit there now; return the segments that are left.

        If GCDs would stay idle, a segment gets several, where its number of GCDs is not fixed.

        Parameters
        ----------
        ready
            Segments that could run, either all of trials or all of members.
        most
            Maximum number of idle GCDs to give work.
        to_come
            Number of segments yet to be requested, which will need GCDs too.
        may_join
            True if ``ready`` segments may share a GCD with running segments; False if not.
        """
        fleet, now = self.fleet, self._clock.monotonic()
        ready = self._with_some_alone(ready)
        for_these = min(fleet.free, most) * len(ready) / (len(ready) + to_come)
        if for_these > len(ready) and any(task.is_flexible for task in ready):
            ends = (one.resident.remaining(now) for one in self._running)
            enough = 0.0 if to_come else SURELY_BEFORE * max(ends, default=0.0)
            ready = widened(ready, int(for_these), self._context.shapes, enough)
        placed, rest = place(ready, fleet, now, most, may_join=may_join)
        for placement in placed:
            self.send(placement)
        return [
            replace(task, wider=(), keeps_gcd=False) if task.wider or task.keeps_gcd else task
            for task in rest
        ]

    def reshape(self) -> None:
        """Stop running segments that would end much earlier with the idle GCDs added.

        The segments stop at a checkpoint, and :meth:`wait` returns them as interrupted. Call this
        only if no ready segment could use the idle GCDs.
        """
        now, fleet = self._clock.monotonic(), self.fleet
        if len(self._running) > MANY and now - self._looked < SECONDS_BETWEEN_LOOKS:
            return
        self._looked = now
        if any(sending.is_awaited for sending in self._running):
            return  # GCDs promised earlier are still to be given
        at_work = {one.resident: one for one in self._running if one.task.is_flexible}

        def times(resident: Resident) -> list[tuple[int, float]]:
            return [(t.width, t.seconds) for t in self._context.shapes(at_work[resident].task)]

        for resident in to_place_anew(at_work, times, fleet, now):
            _logger.info("%s is to go on over more GCDs", at_work[resident].task)
            self.release(at_work[resident])

    def send(self, placement: Placement[SegmentTask]) -> Sending[SegmentTask]:
        """Send a segment to the GCDs where it was placed; return the attempt."""
        sending = super().send(placement)
        task, width = sending.task, len(placement.resident.spots)
        if sending.is_gang or task.spec.kind == "member":
            _logger.info("%s gets a width of %d", task, width)
        self._alone += sending.keeps_gcd
        return sending

    def wait(self, *, at_once: bool = False) -> list[tuple[SegmentTask, SegmentResult]]:
        """Wait for segments to end; record their results, and return each segment with its result.

        The list is empty if no segment ends within half a second.

        Parameters
        ----------
        at_once
            True to return without waiting.
        """
        pause = self._recorded + SECONDS_BETWEEN_RECORDS - self._clock.monotonic()
        if pause > 0 and not at_once and len(self._running) > MANY:
            self._clock.next(SimpleQueue(), pause)  # takes no results that might not be recorded
        finished = self.finished(0.0 if at_once else SECONDS_BETWEEN_CHECKS)
        self._show()
        for sending in finished:
            self._alone -= sending.keeps_gcd
            if sending.is_awaited:
                self._looked = -math.inf  # the segment that it made way for comes next
        now = self._clock.monotonic()
        ended = [_end(sending, now) for sending in finished]
        self._context.record([result for _, result in ended])
        self.judge_nodes(finished)
        self._recorded = self._clock.monotonic() if ended else self._recorded
        self._part()
        return ended

    def _show(self) -> None:
        """Show running segments; of thousands those that were sent first."""
        known = self._workers.last_epochs()
        # Nothing is ever known of simulated ones, of which there are many rounds.
        specs = (sending.task.spec for sending in islice(self._running, 512 if known else 5))
        shown = [
            Running(spec.kind, spec.number, spec.epochs.until_epoch, known.get(spec.attempt))
            for spec in specs
        ]
        self._context.view.running(shown, len(self._running))
        self._context.trackers.running(shown)

    def _sharing_pays(self) -> bool:
        """Return whether segments may share a GCD; tell the user once if they may not."""
        pays = self._fleet.gcd.most_segments == 1 or self._context.estimator.costs.sharing.pays
        if not pays and not self._told_apart:
            self._told_apart = True
            told = "segments on one GCD get on faster one after the other: each has its own"
            tell(_logger, told)
        return pays

    def _with_some_alone(self, ready: Sequence[SegmentTask]) -> Sequence[SegmentTask]:
        """Return ``ready`` segments, some marked to have a GCD alone until sharing is measured."""
        if self._fleet.gcd.most_segments == 1 or self._context.estimator.costs.sharing.is_known:
            return ready
        site = self._context.site
        most = min(16, max(1, site.gcds // _ONE_ALONE_OF))
        candidates = (
            position
            for position, task in enumerate(ready)
            if task.spec.number % _ONE_ALONE_OF == 0 and task.width == 1
        )
        with_some = [*ready]
        for position in islice(candidates, max(0, most - self._alone)):
            with_some[position] = replace(ready[position], keeps_gcd=True)
        return with_some

    def _part(self) -> None:
        """Stop segments that share a GCD at a checkpoint, if one after the other is faster."""
        now = self._clock.monotonic()
        if not self._fleet.packs or now - self._parted < SECONDS_BETWEEN_LOOKS:
            return
        if self._sharing_pays():
            return
        self._parted = now
        at_work = {one.resident: one for one in self._running if not one.is_released}
        # More than some thousand at a time would keep the driver from its results.
        for resident in to_part(at_work, now)[:4096]:
            self.release(at_work[resident], is_awaited=False)


def _end(sending: Sending[SegmentTask], now: float) -> tuple[SegmentTask, SegmentResult]:
    """Return the segment of an ended attempt with its completed result.

    ``now`` is the time by the campaign's clock [s].
    """
    sent, task, result = sending.resident.since, sending.task, sending.result
    if sending.is_released and result.status == "lost":
        # A gang that was stopped while its ranks met each other did not fail.
        result = replace(result, status="interrupted")
    forecast = replace(
        task.forecast(sending.together),
        waited_seconds=max(0.0, sent - task.ready_since),
        away_seconds=now - sent,
    )
    return replace(task, is_released=sending.is_released), result.expected(forecast)
