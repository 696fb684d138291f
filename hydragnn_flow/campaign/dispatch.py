"""Sends segments to the workers of a site, and collects how they ended."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from queue import SimpleQueue

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.fusing import Fusing
from hydragnn_flow.campaign.machine import Workers
from hydragnn_flow.campaign.task import Task
from hydragnn_flow.execution import Rank, merged
from hydragnn_flow.log import tell
from hydragnn_flow.placement import (
    SURELY_BEFORE,
    Fleet,
    Placement,
    Resident,
    Spot,
    place,
    to_make_way,
    to_part,
    to_place_anew,
    widened,
)
from hydragnn_flow.segment import AGREED, APART, Kind, SegmentResult

SECONDS_BETWEEN_CHECKS = 0.5
# Least time between two records [s] where more than MANY segments run. On a large machine a hundred
# end in a second, and each record makes some requests of the shared file system.
SECONDS_BETWEEN_RECORDS = 0.2
MANY = 32
# Time between two looks for segments that could go on over more GCDs [s], where MANY run.
SECONDS_BETWEEN_LOOKS = 10.0
# Time for all ranks of a gang to end when one has, before they are ended [s].
SECONDS_TO_FOLLOW = 60.0
# Until it is known how segments on one GCD slow each other down, every fourth keeps its GCD to
# itself, sixteen at most at a time.
_ONE_ALONE_OF, _MOST_ALONE = 4, 16
# Segments that share a GCD and are stopped at a time, where sharing does not pay.
_MOST_PARTED = 4096
_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Sending:
    """A segment on its way: what each of its nodes runs, and how that ended."""

    task: Task
    resident: Resident
    parts: list[tuple[str, list[Spot]]]
    """Nodes, and the GCDs there, rank by rank."""
    ended: dict[int, list[SegmentResult]] = field(default_factory=dict)
    """Results of the ranks of each part."""
    is_released: bool = False
    """Whether it was asked to stop at a checkpoint."""
    is_awaited: bool = False
    """Whether its GCDs, or others, are promised until it has stopped."""

    @property
    def keeps_gcd(self) -> bool:
        """Whether it keeps its GCD to itself so as to be measured alone."""
        return self.task.keeps_gcd and self.resident.alone and not self.is_gang

    @property
    def is_gang(self) -> bool:
        return len(self.resident.spots) > 1

    @property
    def results(self) -> list[SegmentResult]:
        """Of all ranks, in their order."""
        return [result for part in range(len(self.parts)) for result in self.ended[part]]


_Ended = tuple[_Sending, int, Future[list[SegmentResult]]]
"""A segment that was sent, the number of one of its parts, and the results of that."""


class Dispatch:
    """The segments that a campaign has running.

    Parameters
    ----------
    context
        Of the campaign.
    workers
        Of its site.
    """

    def __init__(self, context: Context, workers: Workers) -> None:
        self._context, self._workers = context, workers
        self._clock = context.clock
        site = context.site
        self._fleet = Fleet(context.gcd, len(site.node.gcds), site.gcds_of_a_block)
        self._running: dict[_Sending, None] = {}  # in the order in which they were sent
        self._number = Counter[Kind]()
        # When the other ranks of a gang are to have ended too, by the campaign's clock [s].
        self._follow_by: dict[_Sending, float] = {}
        self._done: SimpleQueue[_Ended] = SimpleQueue()
        self._waited_for = ""
        self._recorded = self._looked = self._parted = -math.inf
        self._alone = 0
        self._told_apart = False
        self._fusing = Fusing(context.config, context.gcd)

    @property
    def running(self) -> int:
        """GCDs that have something to do."""
        return self._fleet.at_work

    def number(self, kind: Kind) -> int:
        """Number of segments at work, of trials or of members."""
        return self._number[kind]

    def tasks(self, kind: Kind) -> list[Task]:
        """Segments at work, of trials or of members, in the order in which they were sent."""
        return [task for _, sending in self._of(kind) for task in sending.task.members]

    def longest(self, kind: Kind) -> float:
        """Time until the last segment, of trials or of members, is expected to end [s]."""
        now = self._clock.monotonic()
        return max((resident.remaining(now) for resident, _ in self._of(kind)), default=0.0)

    @property
    def trials_at_once(self) -> int:
        """Trials that are worth asking for at a time for one GCD."""
        return self._fusing.trials_at_once

    @property
    def is_stopping(self) -> bool:
        """Whether a segment was asked to stop, whose GCDs are promised, and has not ended yet."""
        return any(sending.is_awaited for sending in self._running)

    @property
    def fleet(self) -> Fleet:
        """The GCDs of all nodes that take work now."""
        self._fleet.update(self._workers.hosts())
        self._fleet.sharing_pays = self._sharing_pays()
        return self._fleet

    def request_workers(self, more: int) -> None:
        """Ask the site for workers, ``more`` than are at work.

        Raises
        ------
        InputError, CampaignStopped
            If none can be got, or none that does any work.
        """
        self._workers.update(self.running + more)
        waits_for = self._workers.waiting() if more and not self._running else ""
        if waits_for and not self._waited_for:
            tell(_logger, "%s", waits_for)
        self._waited_for = waits_for

    def begin(
        self,
        ready: Sequence[Task],
        most: float = math.inf,
        to_come: int = 0,
        *,
        may_join: bool = True,
    ) -> list[Task]:
        """Send those for which there are GCDs now; returns the others.

        Where GCDs would idle, segments that are free to have more than one get several.

        Parameters
        ----------
        ready
            Segments that could run, all of trials or all of members.
        most
            GCDs with nothing to do that may be given work.
        to_come
            Number of segments that are yet to be asked for, which have a right to GCDs too.
        may_join
            Whether they may share a GCD with those at work.
        """
        fleet, now = self.fleet, self._clock.monotonic()
        process_gib = self._context.estimator.costs.process_gib
        ready = self._fusing.together(ready, int(min(fleet.free, most)), process_gib)
        ready = self._with_some_alone(ready)
        for_these = min(fleet.free, most) * len(ready) / (len(ready) + to_come)
        if for_these > len(ready) and any(task.is_flexible for task in ready):
            # Of their own kind: members that begin early are no reason for trials to take longer.
            enough = 0.0 if to_come else SURELY_BEFORE * self.longest(ready[0].spec.kind)
            ready = widened(ready, int(for_these), self._context.shapes, enough)
        placed, rest = place(ready, fleet, now, most, may_join=may_join)
        for placement in placed:
            self._send(placement)
        return [
            replace(task, wider=(), keeps_gcd=False) if task.wider or task.keeps_gcd else task
            for bundle in rest
            for task in bundle.members
        ]

    def stop(self, tasks: Collection[Task]) -> None:
        """Have segments at work stop at a checkpoint.

        They come back from :meth:`wait` as interrupted ones do, which is nobody's failure.
        """
        attempts = {task.spec.attempt for task in tasks}
        for sending in self._running:
            found = {task.spec.attempt for task in sending.task.members}
            if found & attempts and not sending.is_released:
                self._release(sending)

    def reshape(self, kind: Kind) -> None:
        """Have segments stop at a checkpoint that would go on much faster over idle GCDs.

        They come back from :meth:`wait` as interrupted ones do. To be called where nothing is ready
        that could use these GCDs. Trials go on over those of members that began early, too: these
        stop first.

        Parameters
        ----------
        kind
            Whether these are segments of trials or of members.
        """
        now, fleet = self._clock.monotonic(), self.fleet
        if len(self._running) > MANY and now - self._looked < SECONDS_BETWEEN_LOOKS:
            return
        self._looked = now
        if self.is_stopping:
            return  # what was promised to them is still to be given
        at_work = {
            resident: sending for resident, sending in self._of(kind) if sending.task.is_flexible
        }

        def times(resident: Resident) -> list[tuple[int, float]]:
            return [(t.width, t.seconds) for t in self._context.shapes(at_work[resident].task)]

        chosen = to_place_anew(at_work, times, fleet, now)
        for resident in chosen:
            _logger.info("%s is to go on over more GCDs", at_work[resident].task)
            self._release(at_work[resident])
        if not chosen and kind == "trial" and self._number["member"]:
            members = dict(self._of("member"))
            over_theirs = to_place_anew(at_work, times, fleet, now, members)
            self._clear({node for nodes in over_theirs.values() for node in nodes})

    def make_way(self, ready: Sequence[Task]) -> None:
        """Have members stop at a checkpoint whose GCDs one of the trials that are ready waits for.

        The others go on.
        """
        if self.is_stopping or not self._number["member"]:
            return
        members, fleet, now = dict(self._of("member")), self.fleet, self._clock.monotonic()
        for width in sorted({task.width for task in ready}):
            if stopped := to_make_way(width, fleet, now, members):
                for resident in stopped:
                    self._release(members[resident])
                return

    def _of(self, kind: Kind) -> Iterator[tuple[Resident, _Sending]]:
        return ((one.resident, one) for one in self._running if one.task.spec.kind == kind)

    def _clear(self, nodes: Collection[str]) -> None:
        for resident, sending in self._of("member"):
            if any(spot.node in nodes for spot in resident.spots):
                self._release(sending)

    def _release(self, sending: _Sending, *, is_awaited: bool = True) -> None:
        sending.is_released, sending.is_awaited = True, is_awaited
        _logger.info("%s is stopped at a checkpoint", sending.task)
        self._workers.release(sending.parts[0][0], sending.task.spec.attempt)

    def _send(self, placement: Placement[Task]) -> None:
        task, resident = placement.segment, placement.resident
        task = task.sent()
        spec, spots = task.spec, resident.spots
        if len(spots) > 1 or spec.kind == "member":
            _logger.info("%s gets a width of %d", task, len(spots))
        parts = [(node, list(there)) for node, there in groupby(spots, lambda spot: spot.node)]
        sending = _Sending(task, resident, parts)
        self._running[sending] = None
        self._number[spec.kind] += len(task.members)
        self._alone += sending.keeps_gcd
        now, number = self._clock.monotonic(), 0
        for part, (node, there) in enumerate(parts):
            left = self._fleet.ends(node) - now
            ranks = [
                Rank(
                    spec,
                    number + place,
                    len(spots),
                    gcd=spot.gcd,
                    nodes=len(parts),
                    memory_gib=task.estimate.memory_gib,
                    seconds=None if left == math.inf else left,
                    fused=tuple(other.spec for other in task.members[1:]),
                )
                for place, spot in enumerate(there)
            ]
            number += len(there)
            future = self._workers.run(ranks, node)
            future.add_done_callback(partial(self._ended, sending, part))

    def _ended(self, sending: _Sending, part: int, end: Future[list[SegmentResult]]) -> None:
        self._done.put((sending, part, end))  # called by a thread of Parsl's

    def wait(self, *, at_once: bool = False) -> list[tuple[Task, SegmentResult]]:
        """The segments that have ended, already on disk; none if that takes long.

        Parameters
        ----------
        at_once
            Whether not to wait at all.
        """
        pause = self._recorded + SECONDS_BETWEEN_RECORDS - self._clock.monotonic()
        if pause > 0 and not at_once and len(self._running) > MANY:
            self._clock.next(SimpleQueue(), pause)  # nothing is taken that might not be recorded
        finished = self._finished(0.0 if at_once else SECONDS_BETWEEN_CHECKS)
        for sending, _ in finished:
            del self._running[sending]
            self._number[sending.task.spec.kind] -= len(sending.task.members)
            self._alone -= sending.keeps_gcd
            if sending.is_awaited:
                self._looked = -math.inf  # what it was stopped for comes next
        now = self._clock.monotonic()
        ended = [end for sending, together in finished for end in _ends(sending, together, now)]
        self._fusing.learn(ended)
        self._context.record([result for _, result in ended])
        self._recorded = self._clock.monotonic() if ended else self._recorded
        self._judge_nodes([result for sending, _ in finished for result in sending.results])
        self._part()
        return ended

    def _sharing_pays(self) -> bool:
        """Whether segments may join others on a GCD; the user is told if not."""
        pays = self._fleet.gcd.most_segments == 1 or self._context.estimator.sharing.pays
        if not pays and not self._told_apart:
            self._told_apart = True
            told = "segments on one GCD get on faster one after the other: each has its own"
            tell(_logger, told)
        return pays

    def _with_some_alone(self, ready: Sequence[Task]) -> Sequence[Task]:
        """Let some keep their GCD, as long as it is not known how those get on that share one."""
        if self._fleet.gcd.most_segments == 1 or self._context.estimator.sharing.is_known:
            return ready
        site = self._context.site
        most = min(_MOST_ALONE, max(1, site.nodes * len(site.node.gcds) // _ONE_ALONE_OF))
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
        """Have segments that share a GCD go on apart, where that is faster."""
        now = self._clock.monotonic()
        if not self._fleet.packs or now - self._parted < SECONDS_BETWEEN_LOOKS:
            return
        if self._sharing_pays():
            return
        self._parted = now
        at_work = {one.resident: one for one in self._running if not one.is_released}
        for resident in to_part(at_work, now)[:_MOST_PARTED]:
            self._release(at_work[resident], is_awaited=False)

    def _judge_nodes(self, results: Sequence[SegmentResult]) -> None:
        """Tell the pool how nodes do; in a gang each rank counts for its own node.

        Successes come last: the node is good, whatever failed beside them.
        """
        for result in sorted(results, key=_has_worked):
            if result.status in ("interrupted", "lost") or not result.node:
                continue
            if result.status == "refused":
                self._workers.avoid(result.node, result.reason)
                continue
            segment = (result.kind, result.number, result.rung)
            self._workers.record(result.node, segment, _has_worked(result))

    def _finished(self, seconds: float) -> list[tuple[_Sending, float]]:
        """Segments that have ended, and how many were on their GCD on the average.

        A gang is called off when one of its ranks ends badly.
        """
        finished: list[tuple[_Sending, float]] = []
        while (end := self._clock.next(self._done, seconds)) is not None:
            seconds = 0.0
            sending, part, future = end
            results = sending.ended[part] = future.result()
            now = self._clock.monotonic()
            together = self._fleet.together(sending.resident, now)
            self._fleet.end(sending.resident, sending.parts[part][1], now)
            if len(sending.ended) == len(sending.parts):
                finished.append((sending, together))
                continue
            bad = next((r for r in results if r.status not in AGREED or _never_came(r)), None)
            if bad is not None:
                self._call_off(sending, bad.reason)
            elif results[0].status != "ok":
                self._follow_by.setdefault(sending, now + SECONDS_TO_FOLLOW)
        for sending, _ in finished:
            self._follow_by.pop(sending, None)
        now = self._clock.monotonic()
        for sending in [gang for gang, until in self._follow_by.items() if now > until]:
            del self._follow_by[sending]
            self._call_off(sending, next(iter(sending.ended.values()))[0].reason)
        return finished

    def _call_off(self, sending: _Sending, reason: str) -> None:
        """End the other ranks of a gang, which would wait in vain."""
        _logger.info("%s: its ranks are called off: %s", sending.task, reason)
        for part, (node, _) in enumerate(sending.parts):
            if part not in sending.ended:
                self._workers.call_off(node, sending.task.spec.attempt, reason)


def _has_worked(result: SegmentResult) -> bool:
    """Whether the end, good or bad, is the segment's own doing and not its node's."""
    return result.status in ("ok", "diverged", "out_of_memory")


def _never_came(result: SegmentResult) -> bool:
    """Whether a rank was not begun: its node took no more work."""
    return result.status == "interrupted" and not result.node


def _ends(sending: _Sending, together: float, now: float) -> Iterator[tuple[Task, SegmentResult]]:
    """The segment, or those that were fused, and how each has ended."""
    results, sent = sending.results, sending.resident.since
    if sending.is_gang:
        results = [merged(results)]
    for task, result in zip(sending.task.members, results, strict=True):
        is_released = sending.is_released
        if is_released and result.status == "lost":
            # A gang that was stopped while its ranks met each other; it is nobody's failure.
            result = replace(result, status="interrupted")
        # To go on separately is nobody's failure either.
        is_released = is_released or result.reason.startswith(APART)
        forecast = replace(
            task.forecast(together),
            waited_seconds=max(0.0, sent - task.ready_since),
            away_seconds=now - sent,
        )
        yield replace(task, is_released=is_released), result.expected(forecast)
