"""Fusing: segments of one shape that are trained in one process."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hydragnn_flow.campaign.task import SegmentTask
from hydragnn_flow.config import SearchConfig
from hydragnn_flow.config.search import CRITERION, LOSSES
from hydragnn_flow.placement import MEMORY_FRACTION, Estimate, Gcd
from hydragnn_flow.segment import APART, SegmentResult
from hydragnn_flow.training.fused.shapes import is_of_member, refusal_of, shape_of

# Statuses of a fused process after which its segments are sent separately.
_BAD = ("killed", "error", "out_of_memory")
_logger = logging.getLogger(__name__)


class Fusing:
    """Groups segments of one shape, where there are more of them than free GCDs.

    Trials whose objectives are costs are not fused: costs of a shared process cannot be told apart.

    Parameters
    ----------
    most
        Most segments of a process, `resources.fused_members`.
    search
        Search whose trials are fused, or trained further as members.
    gcd
        Speed and memory of a GCD for segments.
    """

    def __init__(self, most: int, search: SearchConfig, gcd: Gcd) -> None:
        self._most, self._gcd = most, gcd
        judged = {*search.objectives, *search.constraints}
        errors = {CRITERION, *LOSSES}
        self._trials = all(name in errors or name.startswith("val.") for name in judged)
        # Shapes that are not fused any more.
        self._apart: set[str] = set()
        self._is_one_shape = all(is_of_member(path) for path in search.space)

    @property
    def trials_at_once(self) -> int:
        """Number of trials to request per free GCD; more than 1 if all trials have one shape and
        can be fused."""
        if self._most == 1 or not self._trials or not self._is_one_shape or self._apart:
            return 1
        return self._most

    def together(
        self, ready: Sequence[SegmentTask], free: int, process_gib: float
    ) -> list[SegmentTask]:
        """Group segments of one shape; each group becomes one segment.

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
        """Remember shapes that failed or separated when fused.

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
        """Shape of a segment; None if it is not to be fused."""
        spec = task.spec
        if task.width > 1 or task.is_batch_per_gcd or refusal_of(spec):
            return None
        if spec.kind == "trial" and not self._trials:
            return None
        shape = shape_of(spec)
        return None if shape in self._apart else shape

    def _fitting(self, tasks: Sequence[SegmentTask], process_gib: float) -> list[SegmentTask]:
        """Group segments of one shape into as few processes as fit the memory of a GCD."""
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
    """Combine segments into one, which takes at most the sum of their times, in one process."""
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
