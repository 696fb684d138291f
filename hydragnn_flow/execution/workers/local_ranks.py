"""Local ranks: those of a segment that one worker runs, all of them or a group of a gang's."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

from hydragnn_flow.execution.fence import Fence
from hydragnn_flow.execution.site import Node
from hydragnn_flow.execution.workers.gang import ANOTHER_GROUP, abort, abort_reason, merged
from hydragnn_flow.execution.workers.trainer_process import SECONDS_TO_BEGIN, Hung, TrainerProcess
from hydragnn_flow.processes import ProcessDied
from hydragnn_flow.segment import AGREED, Place, SegmentResult, SegmentSpec, TrainingOutcome

SECONDS_BETWEEN_CHECKS = 1.0
# Longest time that ranks wait for each other before they begin [s].
SECONDS_TO_MEET = 300.0
# Time for ranks to end by themselves, with a checkpoint, before they are killed [s].
SECONDS_TO_FOLLOW = 30.0
# Time for a result to reach the driver before the batch job ends [s]. Only a process that still
# imports torch, or a step longer than any before, is cut off by it; other segments have stopped.
SECONDS_TO_ANSWER = 3.0
_TIME_UP = "its time was up before it began, or before it could stop"


@dataclass(frozen=True)
class RankGroup:
    """The ranks of one segment that one worker runs."""

    spec: SegmentSpec
    gcds: tuple[int, ...] | None = None
    """Positions on the node, one rank each; None is the worker's own GCD, on the `gcd` pool."""
    first_rank: int = 0
    world: int | None = None
    """Ranks of the whole gang; None if this group is all of it."""

    def __post_init__(self) -> None:
        if self.world is not None and not self.spec.attempt:
            raise ValueError("rank groups of a gang need an attempt, by which they know each other")


class LocalRanks:
    """Runs a rank group in its trainer processes.

    Parameters
    ----------
    node
        What the site's nodes have.
    group
        Rank group to run.
    positions, trainers
        GCD, by its position on the node, and process of each rank.
    energy_fractions
        The segment's fraction of the energy that each rank's counters see.
    """

    def __init__(
        self,
        node: Node,
        group: RankGroup,
        positions: Sequence[int],
        trainers: Sequence[TrainerProcess],
        energy_fractions: Sequence[float],
    ) -> None:
        self._node, self._group, self._spec = node, group, group.spec
        self._gcds = [node.gcds[position] for position in positions]
        self._trainers, self._energy_fractions = trainers, energy_fractions
        self._in_gang = group.world is not None and group.world > len(trainers)
        self._over = threading.Event()
        self._end_by = float("inf")
        self._why_ended = ANOTHER_GROUP

    def run(self) -> SegmentResult:
        """Run the ranks to their end; when one ends badly the others are ended as well."""
        alone = len(self._trainers) == 1 or self._in_gang
        with (
            nullcontext("") if alone else tempfile.TemporaryDirectory() as folder,
            ThreadPoolExecutor(len(self._trainers) + 1) as pool,
        ):
            if self._has_others or self._spec.deadline is not None:
                pool.submit(self._watch_or_end)
            try:
                return merged(list(pool.map(lambda rank: self._run(rank, folder), self._ranks)))
            finally:
                self._over.set()

    @property
    def _ranks(self) -> range:
        return range(len(self._trainers))

    @property
    def _has_others(self) -> bool:
        """Whether a rank here may wait for another, here or elsewhere."""
        return len(self._trainers) > 1 or self._in_gang

    def _run(self, rank: int, folder: str) -> SegmentResult:
        """Have a trainer process run a rank, counted within this group."""
        outcome = self._ask(rank, folder)
        called_off = abort_reason(self._spec) if self._in_gang else None
        if outcome.status == "lost" and called_off is not None:
            # It saw the connection break before it saw the abort file.
            reason = f"{ANOTHER_GROUP}: {called_off}"
            outcome = replace(outcome, status="interrupted", reason=reason)
        if outcome.status not in AGREED:
            self._end_badly(outcome.reason)
        elif outcome.status != "ok":
            self._end_by = time.monotonic() + SECONDS_TO_FOLLOW
            self._why_ended = f"{ANOTHER_GROUP}: {outcome.reason}"
        place = Place(node=socket.gethostname(), gcds=[self._gcds[rank]])
        return SegmentResult.of(self._spec, outcome, place)

    def _ask(self, rank: int, folder: str) -> TrainingOutcome:
        """The outcome of a rank, whose process may die of it."""
        trainer, started = self._trainers[rank], time.time()
        try:
            return TrainingOutcome(**trainer.call(self._request(rank, folder), SECONDS_TO_BEGIN))
        except ProcessDied as death:
            if trainer.was_killed and not isinstance(death, Hung):
                return TrainingOutcome.cut_short("interrupted", self._why_ended, started)
            return TrainingOutcome.cut_short("killed", str(death), started)

    def _request(self, rank: int, folder: str) -> dict[str, Any]:
        world = self._group.world or len(self._trainers)
        left = (self._spec.deadline or float("inf")) - time.time()
        rendezvous = {
            "folder": str(self._spec.folder) if self._in_gang else folder,
            "key": self._spec.attempt,
            "interface": self._node.interface if self._in_gang else None,
            "patience": min(SECONDS_TO_MEET, max(0.0, left)),
        }
        return {
            "spec": self._spec.to_dict(),
            "rank": self._group.first_rank + rank,
            "world": world,
            "energy_fraction": self._energy_fractions[rank],
            "rendezvous": rendezvous if world > 1 else None,
            "device": "cuda" if self._node.device == "hip" else self._node.device,
        }

    def _watch_or_end(self) -> None:
        """Watch; ranks that cannot be watched are ended, or they might not end at all."""
        try:
            self._watch()
        except Exception as error:
            reason = f"it could not be watched ({type(error).__name__}: {error})"
            self._tell_others(reason)
            self._kill(reason)

    def _watch(self) -> None:
        """End the ranks where they would otherwise wait for what does not come, or too long."""
        fence = Fence(self._spec)
        end = (self._spec.deadline or float("inf")) - SECONDS_TO_ANSWER
        while not self._over.wait(min(SECONDS_BETWEEN_CHECKS, max(0.0, end - time.time()))):
            if time.time() >= end:
                self._tell_others(_TIME_UP)
                self._kill(_TIME_UP)
                return
            if not self._has_others:
                continue
            reason = abort_reason(self._spec) if self._in_gang else None
            if reason is not None:
                self._kill(f"{ANOTHER_GROUP}: {reason}")
            elif time.monotonic() > self._end_by:
                self._kill(self._why_ended)
            elif self._end_by == float("inf") and fence.deposed():
                self._end_by = time.monotonic() + SECONDS_TO_FOLLOW
                self._why_ended = "the segment was sent again"

    def _end_badly(self, reason: str) -> None:
        """End all ranks of the segment, here and elsewhere; what they say is the consequence."""
        if self._has_others:
            self._tell_others(reason)
            self._kill(f"{ANOTHER_GROUP}: {reason}")

    def _tell_others(self, reason: str) -> None:
        """Say why, before they see their connections break."""
        if self._in_gang:
            with suppress(OSError):  # they end when their connections time out
                abort(self._spec, reason)

    def _kill(self, why: str) -> None:
        self._why_ended = why
        for trainer in self._trainers:
            trainer.kill()
