"""Dispatch of segments (jobs of training) to workers, alone or fused, and their results."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from queue import SimpleQueue

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.task import SegmentTask
from hydragnn_flow.config import SearchConfig
from hydragnn_flow.config.search import CRITERION, LOSSES
from hydragnn_flow.execution.jobs import SECONDS_BETWEEN_CHECKS, Jobs, Sending, Workers
from hydragnn_flow.log import tell
from hydragnn_flow.placement import (
    MEMORY_FRACTION,
    SURELY_BEFORE,
    Estimate,
    Fleet,
    Gcd,
    Placement,
    Resident,
    place,
    to_part,
    to_place_anew,
    widened,
)
from hydragnn_flow.segment import APART, SegmentResult
from hydragnn_flow.training.fused.shapes import is_of_member, refusal_of, shape_of

# Statuses of a fused process after which its segments are sent separately.
_BAD = ("killed", "error", "out_of_memory")


class Fusing:
    """Grouping of segments into fused tasks: each task trains several segments in one process.

    Fused segments take their training steps in common. Segments of one shape (equal but for
    weights, epochs and settings such as the learning rate) are grouped if there are more of them
    than idle GCDs. Trials whose objectives are costs are not fused, as the costs of a shared
    process cannot be divided.

    Parameters
    ----------
    search
        Section `search` of the run.
    most
        Largest number of segments in a process, from `resources.fused_members`.
    gcd
        Speed and memory of a GCD for segments.
    """

    def __init__(self, search: SearchConfig, most: int, gcd: Gcd) -> None:
        self._most, self._gcd = most, gcd
        judged = {*search.objectives, *search.constraints}
        errors = {CRITERION, *LOSSES}
        self._trials = all(name in errors or name.startswith("val.") for name in judged)
        # Shapes that are not fused any more.
        self._apart: set[str] = set()
        self._is_one_shape = all(is_of_member(path) for path in search.space)

    @property
    def trials_at_once(self) -> int:
        """Number of trials to request for each idle GCD; above 1 only if trials can be fused.

        Fused trials train together in one process.
        """
        if self._most == 1 or not self._trials or not self._is_one_shape or self._apart:
            return 1
        return self._most

    def together(
        self, ready: Sequence[SegmentTask], free: int, process_gib: float
    ) -> list[SegmentTask]:
        """Group ready segments of one shape into fused tasks; return these and the other segments.

        Segments of one shape are equal but for weights, epochs and settings such as the learning
        rate.

        Parameters
        ----------
        ready
            Segments that could run, either all of trials or all of members.
        free
            Number of idle GCDs.
        process_gib
            Memory of a process without its networks [GiB].
        """
        each = min(self._most, math.ceil(len(ready) / free)) if free > 0 else 1
        if each < 2:
            return [*ready]
        found: list[SegmentTask] = []
        alike: defaultdict[str, list[SegmentTask]] = defaultdict(list)
        for task in ready:
            shape = self._shape(task)
            if shape is None:
                found.append(task)
            else:
                alike[shape].append(task)
        for tasks in alike.values():
            bundles = math.ceil(len(tasks) / each)
            for number in range(bundles):
                found += self._fitting(tasks[number::bundles], process_gib)
        return found

    def learn(self, ended: Iterable[tuple[SegmentTask, SegmentResult]]) -> None:
        """Note shapes of fused segments that failed or left their group; fuse these shapes no more.

        A shape is all that fused segments must have in common, such as the layers of the network.

        Parameters
        ----------
        ended
            Segments that ended, with their results.
        """
        for task, result in ended:
            is_apart = result.reason.startswith(APART)
            if result.fused == 1 or not (is_apart or result.status in _BAD):
                continue
            shape = shape_of(task.spec)
            if shape not in self._apart:
                self._apart.add(shape)
                _logger.info("%s and others like it are not fused: %s", task, result.reason)

    def _shape(self, task: SegmentTask) -> str | None:
        """Return a name of the shape of a segment; None if the segment is not to be fused."""
        spec = task.spec
        if task.width > 1 or task.is_batch_per_gcd or refusal_of(spec):
            return None
        if spec.kind == "trial" and not self._trials:
            return None
        shape = shape_of(spec)
        return None if shape in self._apart else shape

    def _fitting(self, tasks: Sequence[SegmentTask], process_gib: float) -> list[SegmentTask]:
        """Group segments of one shape into processes that each fit the memory of a GCD.

        Returns one task for each process; ``process_gib`` is a process without networks [GiB].
        """
        bundles: list[list[SegmentTask]] = []
        room = 0.0
        for task in tasks:
            mine = max(0.0, task.estimate.memory_gib - process_gib)
            if not bundles or mine > room:
                bundles.append([])
                room = MEMORY_FRACTION * self._gcd.memory_gib - process_gib
            bundles[-1].append(task)
            room -= mine
        return [_bundle(found, process_gib) if len(found) > 1 else found[0] for found in bundles]


def _bundle(tasks: Sequence[SegmentTask], process_gib: float) -> SegmentTask:
    """Return one task that trains all segments in one process.

    Its estimated time is the sum of theirs, an upper limit; ``process_gib`` is the memory of a
    process without networks [GiB].
    """
    each = [task.estimate for task in tasks]
    estimate = Estimate(
        seconds=sum(one.seconds for one in each),
        memory_gib=process_gib + sum(max(0.0, one.memory_gib - process_gib) for one in each),
        uncorrected_seconds=sum(one.uncorrected_seconds for one in each),
        busy=min(1.0, sum(one.busy for one in each)),
    )
    return replace(
        tasks[0],
        fused=tuple(tasks),
        estimate=estimate,
        ready_since=min(task.ready_since for task in tasks),
        is_urgent=any(task.is_urgent for task in tasks),
        is_flexible=False,
        wider=(),
    )


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
        self.segments = 0
        """Number of running segments, each segment of a fused group counted."""
        self._waited_for = ""
        self._recorded = self._looked = self._parted = -math.inf
        self._alone = 0
        self._told_apart = False
        config = context.config
        self._fusing = Fusing(config.search, config.resources.fused_members, context.gcd)

    @property
    def trials_at_once(self) -> int:
        """Number of trials to request for each idle GCD; above 1 only if trials can be fused.

        Fused trials train together in one process.
        """
        return self._fusing.trials_at_once

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
        process_gib = self._context.estimator.costs.process_gib
        ready = self._fusing.together(ready, int(min(fleet.free, most)), process_gib)
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
            for bundle in rest
            for task in bundle.members
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
        """Send a segment, or a fused group, to the GCDs where it was placed; return the attempt."""
        sending = super().send(placement)
        task, width = sending.task, len(placement.resident.spots)
        if sending.is_gang or task.spec.kind == "member":
            _logger.info("%s gets a width of %d", task, width)
        self.segments += len(task.members)
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
        for sending in finished:
            self.segments -= len(sending.task.members)
            self._alone -= sending.keeps_gcd
            if sending.is_awaited:
                self._looked = -math.inf  # the segment that it made way for comes next
        now = self._clock.monotonic()
        ended = [end for sending in finished for end in _ends(sending, now)]
        self._fusing.learn(ended)
        self._context.record([result for _, result in ended])
        self.judge_nodes(finished)
        self._recorded = self._clock.monotonic() if ended else self._recorded
        self._part()
        return ended

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
            if task.spec.number % _ONE_ALONE_OF == 0 and task.width == 1 and not task.fused
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


def _ends(sending: Sending[SegmentTask], now: float) -> Iterator[tuple[SegmentTask, SegmentResult]]:
    """Yield each segment of an ended attempt (several if fused) with its completed result.

    ``now`` is the time by the campaign's clock [s].
    """
    sent = sending.resident.since
    for task, result in zip(sending.task.members, sending.results, strict=True):
        is_released = sending.is_released
        if is_released and result.status == "lost":
            # A gang that was stopped while its ranks met each other did not fail.
            result = replace(result, status="interrupted")
        # Leaving a fused group is not a failure either.
        is_released = is_released or result.reason.startswith(APART)
        forecast = replace(
            task.forecast(sending.together),
            waited_seconds=max(0.0, sent - task.ready_since),
            away_seconds=now - sent,
        )
        yield replace(task, is_released=is_released), result.expected(forecast)
