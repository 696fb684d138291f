"""Rank of a job in a trainer process; a gang is all ranks of a job, with one result."""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from hydragnn_flow.execution.site import Node
from hydragnn_flow.execution.workers.trainer_process import (
    SECONDS_TO_BEGIN,
    Hung,
    TrainerProcess,
)
from hydragnn_flow.processes import ProcessDied
from hydragnn_flow.segment import (
    Call,
    JobSpec,
    Place,
    SegmentResult,
    SegmentSpec,
    Status,
    TrainingOutcome,
)

ANOTHER_RANK = "another rank of the gang ended"
"""First words of the reason in the result of a rank that was ended because another rank ended."""


def merged(results: Sequence[SegmentResult]) -> SegmentResult:
    """Merge the results of a job's ranks (processes) into one result of the job.

    Parameters
    ----------
    results
        Results in the order of the ranks. If the worker of a rank was lost, the result's `node` is
        empty.

    Returns
    -------
    SegmentResult
        Result of rank 0 or, if any rank failed, of the rank that is the root cause. CPU seconds and
        joules are sums over the ranks, peak memory is the largest of a rank. GCDs on another node
        than that of rank 0 are named `node/gcd`. Joules are None if a rank that ended well has not
        measured its energy.
    """
    bad = [result for result in results if result.status != "ok"]
    home = results[0].node
    return replace(
        min(bad, key=_rank_of_blame) if bad else results[0],
        node=home,
        gcds=[
            gcd if result.node == home else f"{result.node}/{gcd}"
            for result in results
            for gcd in result.gcds
        ],
        cpu_seconds=sum(result.cpu_seconds for result in results),
        joules=_energy(results, "joules"),
        steady_joules=_energy(results, "steady_joules"),
        peak_memory_gib=max(result.peak_memory_gib for result in results),
    )


def _energy(results: Sequence[SegmentResult], name: str) -> float | None:
    joules = [(result.status, getattr(result, name)) for result in results]
    counted = [value for status, value in joules if status == "ok" or value is not None]
    known = [value for value in counted if value is not None]
    return sum(known) if known and len(known) == len(counted) else None


def _rank_of_blame(result: SegmentResult) -> int:
    """Return a sort key, smallest for the root cause of a failed job.

    A dead rank breaks the connections of all other ranks, which then fail too.
    """
    if result.status in ("diverged", "out_of_memory"):
        return 0  # caused by the network, whichever rank reports it
    if not result.node:
        return 1  # its worker was lost
    if result.reason.startswith(ANOTHER_RANK):
        return 6
    return {"killed": 2, "refused": 2, "error": 3, "lost": 4}.get(result.status, 5)


# Longest time that ranks wait for each other before they start [s].
SECONDS_TO_MEET = 300.0
# Time for a result to reach the driver before the batch job ends [s]. It cuts off only a process
# that still imports torch, or an unusually long step; other segments have stopped by then.
SECONDS_TO_ANSWER = 3.0
_TIME_UP = "its time was up before it began, or before it could stop"


@dataclass(frozen=True)
class Rank:
    """Rank of a job: the process that does the job's part on one GCD."""

    spec: JobSpec
    number: int = 0
    """Index of this rank in the job, from 0."""
    world: int = 1
    """Number of ranks of the job."""
    gcd: int = 0
    """Index of the rank's GCD on the node, from 0."""
    nodes: int = 1
    """Number of nodes that have ranks of the job."""
    memory_gib: float = 0.0
    """Expected memory on the rank's GCD, process included [GiB]."""
    seconds: float | None = None
    """Time from sending the rank until the node ends [s]; None if unknown."""

    @property
    def segment(self) -> SegmentSpec:
        """Specification of the rank's job, which must be a segment (job of training)."""
        assert isinstance(self.spec, SegmentSpec)
        return self.spec

    @property
    def in_gang(self) -> bool:
        """True if the job has several ranks."""
        return self.world > 1


class RankRun:
    """Run of one rank (process of a job) in a trainer process, which can be stopped or killed.

    Parameters
    ----------
    node
        Description of the site's nodes.
    rank
        Rank of a job to run.
    meeting
        Arguments for :func:`.rendezvous` with the other ranks; None if the rank is alone.
    """

    def __init__(self, node: Node, rank: Rank, meeting: Mapping[str, Any] | None = None) -> None:
        self._node, self._rank, self._meeting = node, rank, meeting
        left = _seconds_left(rank)
        deadline = None if left is None else time.monotonic() + left
        self.spec = replace(rank.spec, deadline=deadline)
        self._end_by = float("inf") if deadline is None else deadline - SECONDS_TO_ANSWER
        self._called_off = ""
        self._status_of_call_off: Status = "interrupted"
        self._is_released = False
        self._lock = threading.Lock()
        self._trainer: TrainerProcess | None = None
        self.last_epoch: list[float] = []
        """Fields of the :class:`~hydragnn_flow.log.LastEpoch` of a training; empty before."""

    def run(self, trainer: TrainerProcess) -> SegmentResult:
        """Run the rank's job to its end; return its result."""
        with self._lock:
            self._trainer = trainer
            if self._is_released:
                trainer.release(self.spec.attempt)
        outcome = self._ask(trainer)
        with self._lock:
            self._trainer = None
        if self._called_off and outcome.status == "lost":
            # It noticed the broken connection before it got the reason.
            outcome = replace(outcome, status="interrupted", reason=self._called_off)
        with suppress(OSError):  # a full disk truncates the log, but keeps the segment's result
            self._log(trainer.said())
        place = Place(node=socket.gethostname(), gcds=[self._node.gcds[self._rank.gcd]])
        return SegmentResult.of(self.spec, outcome, place)

    def stop(self) -> None:
        """Stop the rank's job and end its process: training at a checkpoint, a call at once."""
        if isinstance(self.spec, Call):
            self.call_off("its node ended")
            return
        with self._lock:
            if self._trainer is not None:
                self._trainer.stop()

    def release(self) -> None:
        """Stop the rank's segment at a checkpoint; its process can then run other jobs."""
        with self._lock:
            self._is_released = True
            if self._trainer is not None:
                self._trainer.release(self.spec.attempt)

    def call_off(self, reason: str, status: Status = "interrupted") -> None:
        """Kill the rank's process at once, without a checkpoint.

        This ends a rank that hangs, or that would wait for dead ranks of its job.

        ``reason`` and ``status`` go into the rank's result.
        """
        if not self._called_off:
            self._called_off = f"{ANOTHER_RANK}: {reason}" if self._rank.in_gang else reason
            self._status_of_call_off = status
        with self._lock:  # otherwise the process might already run another segment
            if self._trainer is not None:
                self._trainer.kill()

    def _ask(self, trainer: TrainerProcess) -> TrainingOutcome:
        """Return the outcome of the rank's job, also if its trainer process dies."""
        began = time.perf_counter()

        def cut_short(status: Status, reason: str) -> TrainingOutcome:
            return TrainingOutcome.cut_short(status, reason, began)

        if self._called_off:
            return cut_short("interrupted", self._called_off)
        # A function sends no heartbeats.
        patience = math.inf if isinstance(self.spec, Call) else SECONDS_TO_BEGIN
        try:
            answer = trainer.call(self._request(), patience, self._is_over, self._epoch_ended)
        except ProcessDied as death:
            if time.monotonic() >= self._end_by and trainer.was_killed:
                return cut_short("interrupted", _TIME_UP)
            if self._called_off and trainer.was_killed and not isinstance(death, Hung):
                return cut_short(self._status_of_call_off, self._called_off)
            return cut_short("killed", str(death))
        return TrainingOutcome(**answer)

    def _epoch_ended(self, epoch: list[float]) -> None:
        self.last_epoch = epoch

    def _is_over(self) -> bool:
        return bool(self._called_off) or time.monotonic() >= self._end_by

    def _request(self) -> dict[str, Any]:
        left = (self.spec.deadline or float("inf")) - time.monotonic()
        patience = min(SECONDS_TO_MEET, max(0.0, left))
        meeting = None if self._meeting is None else {**self._meeting, "patience": patience}
        return {
            "spec": self.spec.to_dict(),
            "rank": self._rank.number,
            "world": self._rank.world,
            "rendezvous": meeting,
            "device": "cuda" if self._node.device == "hip" else self._node.device,
        }

    def _log(self, words: str) -> None:
        """Append the process's output ``words`` to the log of its job."""
        if words and not self.spec.directory:
            print(words, file=sys.stderr, end="")
        elif words:
            self.spec.folder.mkdir(parents=True, exist_ok=True)
            with (self.spec.folder / "log").open("a", encoding="utf-8") as log:
                log.write(words)


def _seconds_left(rank: Rank) -> float | None:
    """Return the time until the node's batch job ends [s]; None if unknown.

    It comes from ``rank.seconds`` or, without that, from environment variables of the batch job.
    """
    if rank.seconds is not None:
        return rank.seconds
    for variable in ("HYDRAGNN_FLOW_JOB_END", "SLURM_JOB_END_TIME"):
        end = os.environ.get(variable, "")
        if end.isdigit() and int(end) > 0:
            return int(end) - time.time()
    return None
