"""Fusing: segments of one shape that are sent together, to be trained in one process."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hydragnn_flow.campaign.task import SegmentTask
from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.search import CRITERION, LOSSES
from hydragnn_flow.placement import MEMORY_FRACTION, Estimate, Gcd
from hydragnn_flow.segment import APART, SegmentResult
from hydragnn_flow.training.fused.shapes import is_of_member, refusal_of, shape_of

# Ends of a fused process after which its segments are sent separately.
_BAD = ("killed", "error", "out_of_memory")
_logger = logging.getLogger(__name__)


class Fusing:
    """Puts segments of one shape together, where there are more of them than free GCDs.

    Trials that are judged by what they cost are left alone: of a process that they share it is not
    known whose that is.

    Parameters
    ----------
    config
        Of the run; its `resources.fused_members` is the most segments of a process.
    gcd
        What each GCD has for segments.
    """

    def __init__(self, config: RunConfig, gcd: Gcd) -> None:
        self._most, self._gcd = config.resources.fused_members, gcd
        judged = {*config.search.objectives, *config.search.constraints}
        errors = {CRITERION, *LOSSES}
        self._trials = all(name in errors or name.startswith("val.") for name in judged)
        # Shapes that go on separately.
        self._apart: set[str] = set()
        self._is_one_shape = all(is_of_member(path) for path in config.search.space)

    @property
    def trials_at_once(self) -> int:
        """Trials that are worth asking for at a time for one GCD: several, if all are of one shape
        and get on fused."""
        if self._most == 1 or not self._trials or not self._is_one_shape or self._apart:
            return 1
        return self._most

    def together(
        self, ready: Sequence[SegmentTask], free: int, process_gib: float
    ) -> list[SegmentTask]:
        """The segments, some of them as one.

        Parameters
        ----------
        ready
            Segments that could run, all of trials or all of members.
        free
            GCDs with nothing to do.
        process_gib
            Memory of a process beside that of its networks [GiB].
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
        """Remember shapes that are to go on separately.

        Parameters
        ----------
        ended
            Segments that were fused with others, and how they have ended.
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
        """Shape of a segment; None if it is to be sent by itself."""
        spec = task.spec
        if task.width > 1 or task.is_batch_per_gcd or refusal_of(spec):
            return None
        if spec.kind == "trial" and not self._trials:
            return None
        shape = shape_of(spec)
        return None if shape in self._apart else shape

    def _fitting(self, tasks: Sequence[SegmentTask], process_gib: float) -> list[SegmentTask]:
        """Segments of one shape in as few bundles as fit the memory of a GCD."""
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
    """Some segments as one: they take as long as separately, or less, and share a process."""
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
