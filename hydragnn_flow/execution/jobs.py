"""Jobs on the GCDs of a site: sent rank by rank, collected, and sent again after failures.

All that runs on nodes is a job: a segment (one stretch of a trial's or member's training), a
profile, or a call of a function that prepares data, predicts, or is the objective of a search. A
job on several GCDs has one rank (process) on each; all ranks of a job together are a gang.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from hydragnn_flow.errors import CampaignStopped, InputError, NoWorkers, StoreError
from hydragnn_flow.execution.site import Site
from hydragnn_flow.execution.workers.rank import Rank, merged
from hydragnn_flow.log import LastEpoch
from hydragnn_flow.placement import (
    Estimate,
    Fleet,
    Gcd,
    Host,
    Placeable,
    Placement,
    Resident,
    Spot,
    place,
)
from hydragnn_flow.segment import AGREED, Call, JobSpec, Kind, SegmentResult

# Work that fails this often on its own is more likely the cause than the victim.
MOST_TRIES = 3
# Losses of a node or batch job are not the fault of the work there, unless they never end.
MOST_LOSSES = 10
# Statuses for which the work is not to blame.
LOST = ("lost", "refused", "interrupted")


@dataclass(frozen=True)
class Retries:
    """Count of a job's failures since it last made progress.

    The count decides whether the job is sent again.
    """

    tries: int = 0
    """Number of failures that the job itself may have caused."""
    losses: int = 0
    """Number of failures caused by the node or batch job."""
    nodes: frozenset[str] = frozenset()
    """Names of nodes on which the job may have failed by its own fault."""

    def after(self, status: str, node: str = "", of_nodes: int = 1) -> Retries:
        """Return a new count of the job's failures that includes one more failure.

        Parameters
        ----------
        status
            Status with which the job ended, such as `killed` or `lost`.
        node
            Name of the node on which the job ran; empty if it reached no node.
        of_nodes
            Number of nodes that may run the job. A second failure on the same node is blamed on the
            node, until the job has failed on three nodes, or on all.
        """
        if status == "interrupted" and not node:
            return self  # it never came there: its node's job was ending
        on_others = node in self.nodes and len(self.nodes) < min(MOST_TRIES, of_nodes)
        if status in LOST or on_others:
            return replace(self, losses=self.losses + 1)
        return replace(self, tries=self.tries + 1, nodes=self.nodes | {node})

    @property
    def total(self) -> int:
        """Number of the job's failures, whatever their causes."""
        return self.tries + self.losses

    @property
    def pause(self) -> int:
        """Time to wait before the job is sent again, so that a disk may recover [s].

        All pauses of a job add up to five minutes.
        """
        return min(60, (1 << self.losses) - 1)

    @property
    def is_hopeless(self) -> bool:
        """True if the job is given up and not sent again.

        That is after 3 failures that the job itself may have caused, or 10 that its nodes caused.
        """
        return self.tries >= MOST_TRIES or self.losses >= MOST_LOSSES

    def __str__(self) -> str:
        return f"{self.tries} of {MOST_TRIES} failures, {self.losses} of {MOST_LOSSES} losses"


Event = TypeVar("Event")


class Clock:
    """Clock by which a campaign waits: the clock of this machine, or a subclass's simulated one."""

    def monotonic(self) -> float:
        """Return the monotonic time since an arbitrary moment [s]."""
        return time.monotonic()

    def next(self, events: SimpleQueue[Event], seconds: float) -> Event | None:
        """Return the next event of a queue, or None if none comes within ``seconds`` [s].

        A simulated clock advances here.
        """
        try:
            return events.get(timeout=seconds, block=seconds > 0)
        except Empty:
            return None


class Workers(Protocol):
    """Interface to the workers of a site (machine), one worker per GCD (device).

    `Pool` implements it with Parsl. A subclass may leave out the methods that concern workers that
    fail or wait.
    """

    def update(self, demand: int) -> None:
        """Adapt the number of workers to ``demand``; call it about twice a second.

        Parameters
        ----------
        demand
            Number of workers that could be used now, busy ones included.

        Raises
        ------
        InputError, CampaignStopped
            If no workers will come, or the nodes can do no work.
        """
        ...

    def hosts(self) -> Sequence[Host]:
        """Return the nodes that take jobs now, with the times at which their batch jobs end."""
        ...

    def waiting(self) -> str:
        """Return the reason why jobs wait for workers, as a sentence; empty if no job waits."""
        return ""

    def run(self, ranks: Sequence[Rank], node: str) -> Future[list[SegmentResult]]:
        """Start the ranks (processes) of a job on one node; return a future of their results.

        If the node is lost, the future returns results that say so.

        Parameters
        ----------
        ranks
            Ranks of the job that run on this node.
        node
            Name of the node, from :meth:`hosts`.
        """
        ...

    def call_off(self, node: str, attempt: str, reason: str) -> None:
        """End the ranks (processes) of a job on a node at once, without a checkpoint.

        ``attempt`` identifies the attempt at the job, ``reason`` goes into the results.
        """
        return

    def release(self, node: str, attempt: str) -> None:
        """Stop a segment (job of training) at a checkpoint, so that it can continue elsewhere.

        ``node`` is a node on which it runs, ``attempt`` identifies the attempt at the segment.
        """
        ...

    def last_epochs(self) -> Mapping[str, LastEpoch]:
        """Return the last epoch of running segments, by attempt; on many nodes of some only."""
        return {}

    def record(self, node: str, work: Hashable, worked: bool) -> None:
        """Record whether a job, named by ``work``, succeeded on a node."""
        return

    def avoid(self, node: str, reason: str) -> None:
        """Send no further jobs to a node that refused a job; ``reason`` is for the user."""
        return


SECONDS_BETWEEN_CHECKS = 0.5
# Time for the other ranks of a gang to end after the first, before they are killed [s].
SECONDS_TO_FOLLOW = 60.0
# Time for a network file system to show a file written on a node [s].
SECONDS_TO_SEE = 90.0
_ANY = Estimate(0.0, 0.0, uncorrected_seconds=0.0, busy=1.0)
_logger = logging.getLogger(__name__)


_Task = TypeVar("_Task", bound="Task")


@dataclass(frozen=True, kw_only=True)
class Task(Placeable):
    """Job to run on a site, with its predicted cost and its failures so far."""

    estimate: Estimate = _ANY
    spec: JobSpec
    retries: Retries = field(default_factory=Retries)
    """Failures since the job last made progress."""
    is_released: bool = False
    """True if the job was stopped to continue on other GCDs, which is not a failure."""

    def sent(self: _Task) -> _Task:
        """Return a copy of the task with a new attempt identifier, 12 random hexadecimal digits."""
        return replace(self, spec=replace(self.spec, attempt=uuid.uuid4().hex[:12]))

    def again(self: _Task, end: SegmentResult, nodes: int = 1) -> _Task:
        """Return a copy of the task for its next attempt, with the failed attempt counted.

        Parameters
        ----------
        end
            Result of the failed attempt.
        nodes
            Number of nodes of the site.
        """
        retries = self.retries.after(end.status, end.node, nodes)
        return replace(self, retries=retries, is_urgent=True)

    def __str__(self) -> str:
        spec = self.spec
        return str(spec) if isinstance(spec, Call) else f"{spec.kind} {spec.number}"


@dataclass(eq=False)
class Sending(Generic[_Task]):
    """Attempt at a job: the ranks (processes) that were sent to each node, and their results."""

    task: _Task
    resident: Resident
    parts: list[tuple[str, list[Spot]]]
    """Name of each node, and the job's GCDs on that node in the order of the ranks."""
    ended: dict[int, list[SegmentResult]] = field(default_factory=dict)
    """Results of the ranks on each node that has answered, by the node's index in ``parts``."""
    together: float = 1.0
    """Mean number of jobs on the GCD while the job ran, this job included."""
    is_released: bool = False
    """True if the job was asked to stop at a checkpoint."""
    is_awaited: bool = False
    """True if the job was asked to stop so that a job, itself or another, can start on GCDs that
    are kept free for it."""

    @property
    def keeps_gcd(self) -> bool:
        """True if the job runs on one GCD (device) that no other job may join.

        Such a job is measured without neighbours.
        """
        return self.task.keeps_gcd and self.resident.alone and not self.is_gang

    @property
    def is_gang(self) -> bool:
        """True if the job has several ranks (processes, one on each of its GCDs)."""
        return len(self.resident.spots) > 1

    @property
    def ranks(self) -> list[SegmentResult]:
        """Results of all ranks (processes) of the job, in the order of the ranks."""
        return [result for part in range(len(self.parts)) for result in self.ended[part]]

    @property
    def result(self) -> SegmentResult:
        """Result of the job, merged from those of all its ranks."""
        return merged(self.ranks)


class Jobs(Generic[_Task]):
    """Jobs on a site (machine): sends them to the site's workers and collects their results.

    Parameters
    ----------
    workers
        Workers of the site.
    site
        Site that runs the jobs.
    clock
        Clock of the campaign; by default the wall clock.
    gcd
        Speed and memory of each GCD (device); by default those that the site states.
    """

    def __init__(
        self, workers: Workers, site: Site, clock: Clock | None = None, gcd: Gcd | None = None
    ) -> None:
        self._workers, self.site, self._clock = workers, site, clock or Clock()
        gcds = len(site.node.gcds)
        self._fleet = Fleet(gcd or site.node.gcd, gcds, site.gcds_of_a_block)
        self._running: dict[Sending[_Task], None] = {}  # in the order in which they were sent
        # Time by which the other ranks of a gang must have ended too [s].
        self._follow_by: dict[Sending[_Task], float] = {}
        self._done: SimpleQueue[tuple[Sending[_Task], int, Future[list[SegmentResult]]]] = (
            SimpleQueue()
        )

    @property
    def now(self) -> float:
        """Current time by the campaign's clock [s]."""
        return self._clock.monotonic()

    @property
    def waiting(self) -> str:
        """Reason why jobs wait for workers, as a sentence; empty if no job waits."""
        return self._workers.waiting()

    @property
    def running(self) -> int:
        """Number of GCDs (devices) on which jobs run."""
        return self._fleet.at_work

    @property
    def fleet(self) -> Fleet:
        """GCDs (devices) of the site's nodes and the jobs on them, updated to the present nodes."""
        self._fleet.update(self._workers.hosts())
        return self._fleet

    def request_workers(self, more: int) -> None:
        """Ask the site for workers for all busy GCDs (devices) and for ``more`` further GCDs.

        Raises
        ------
        InputError, CampaignStopped
            If no workers will come, or the nodes can do no work.
        """
        self._workers.update(self.running + more)

    def send(self, placement: Placement[_Task]) -> Sending[_Task]:
        """Send a job to the GCDs (devices) that it was placed on; return this attempt at the job.

        The fleet already counts these GCDs as busy with the job.
        """
        task, resident = placement.segment.sent(), placement.resident
        spots = resident.spots
        parts = [(node, list(there)) for node, there in groupby(spots, lambda spot: spot.node)]
        sending = Sending(task, resident, parts)
        self._running[sending] = None
        now, number = self._clock.monotonic(), 0
        for part, (node, there) in enumerate(parts):
            left = self._fleet.ends(node) - now
            ranks = [
                Rank(
                    task.spec,
                    number + place,
                    len(spots),
                    gcd=spot.gcd,
                    nodes=len(parts),
                    memory_gib=task.estimate.memory_gib,
                    seconds=None if left == math.inf else left,
                )
                for place, spot in enumerate(there)
            ]
            number += len(there)
            future = self._workers.run(ranks, node)
            # Called by a thread of Parsl.
            future.add_done_callback(partial(self._put, sending, part))
        return sending

    def send_to(self, task: _Task, spots: Sequence[Spot]) -> Sending[_Task]:
        """Send a job to the idle GCDs ``spots``, to run there alone; return the attempt."""
        now = self.now
        until = now + task.seconds
        resident = self.fleet.begin(spots, task.estimate, until, now, alone=True)
        return self.send(Placement(task, resident))

    def _put(self, sending: Sending[_Task], part: int, end: Future[list[SegmentResult]]) -> None:
        self._done.put((sending, part, end))

    def release(self, sending: Sending[_Task], *, is_awaited: bool = True) -> None:
        """Ask a running segment (job of training) to stop at a checkpoint.

        Parameters
        ----------
        sending
            Attempt at the segment, which is running.
        is_awaited
            True if a job, the segment itself or another, waits to start on GCDs kept free for it.
        """
        sending.is_released, sending.is_awaited = True, is_awaited
        _logger.info("%s is stopped at a checkpoint", sending.task)
        self._workers.release(sending.parts[0][0], sending.task.spec.attempt)

    def call_off(self, sending: Sending[_Task], reason: str) -> None:
        """End at once all ranks (processes) of a job that still run.

        ``reason`` goes into their results.
        """
        _logger.info("%s is called off: %s", sending.task, reason)
        for part, (node, _) in enumerate(sending.parts):
            if part not in sending.ended:
                self._workers.call_off(node, sending.task.spec.attempt, reason)

    def finished(self, seconds: float) -> list[Sending[_Task]]:
        """Return the attempts at jobs that have ended; empty if none ends within ``seconds``.

        If a rank (process) of a job fails, the job's other ranks are ended.

        Parameters
        ----------
        seconds
            Time to wait for the first attempt to end [s].
        """
        finished: list[Sending[_Task]] = []
        while (end := self._clock.next(self._done, seconds)) is not None:
            seconds = 0.0
            sending, part, future = end
            results = sending.ended[part] = future.result()
            now = self._clock.monotonic()
            sending.together = self._fleet.together(sending.resident, now)
            self._fleet.end(sending.resident, sending.parts[part][1], now)
            if len(sending.ended) == len(sending.parts):
                finished.append(sending)
                continue
            bad = next((r for r in results if r.status not in AGREED or _never_came(r)), None)
            if bad is not None:
                self.call_off(sending, bad.reason)
            elif results[0].status != "ok":
                self._follow_by.setdefault(sending, now + SECONDS_TO_FOLLOW)
        for sending in finished:
            self._follow_by.pop(sending, None)
            del self._running[sending]
        now = self._clock.monotonic()
        for sending in [gang for gang, until in self._follow_by.items() if now > until]:
            del self._follow_by[sending]
            self.call_off(sending, next(iter(sending.ended.values()))[0].reason)
        return finished

    def judge_nodes(self, finished: Sequence[Sending[_Task]]) -> None:
        """Report to the workers' pool on which nodes ended jobs worked, and on which they failed.

        Each rank of a job counts for its own node. Call this after the results are recorded, since
        taking a node out of use takes time, in which the driver may be ended. Successes are
        reported last: a node with a success is healthy, whatever else failed on it.
        """
        results = [result for sending in finished for result in sending.ranks]
        for result in sorted(results, key=_has_worked):
            if result.status in ("interrupted", "lost") or not result.node:
                continue
            if result.status == "refused":
                self._workers.avoid(result.node, result.reason)
                continue
            segment = (result.kind, result.number, result.rung)
            self._workers.record(result.node, segment, _has_worked(result))


def run_all(
    jobs: Jobs[_Task],
    tasks: Iterable[_Task],
    work: str,
    waits: Callable[[str], None] = lambda why: None,
) -> Iterator[tuple[_Task, SegmentResult]]:
    """Generator: run jobs, each on GCDs of its own; yield each job that ends, with its result.

    A failed job is yielded too, and is run again until it succeeds or repeatedly fails.

    Parameters
    ----------
    jobs
        Jobs of the site that runs them.
    tasks
        Jobs to run, in the order in which they start.
    work
        Activity that is the subject of an error message, such as "preparing the store".
    waits
        Function called in each round with the reason why no workers have come, or with an empty
        text.

    Raises
    ------
    InputError
        If the input of a job is wrong.
    NoWorkers
        If no worker will come.
    CampaignStopped
        If a job repeatedly fails.
    """
    ready, gcds = deque(tasks), jobs.site.gcds
    while ready or jobs.running:
        with _no_workers():
            jobs.request_workers(sum(task.width for task in islice(ready, gcds)))
        waits(jobs.waiting)
        first = [ready.popleft() for _ in range(min(jobs.fleet.free, len(ready)))]
        placed, rest = place(first, jobs.fleet, jobs.now, may_join=False)
        ready.extendleft(reversed(rest))
        with _no_workers():
            for placement in placed:
                jobs.send(placement)
        finished = jobs.finished(SECONDS_BETWEEN_CHECKS)
        with _no_workers():
            jobs.judge_nodes(finished)
        for sending in finished:
            task, result = sending.task, sending.result
            if result.status == "wrong_input":
                raise (StoreError if result.answer["is_store"] else InputError)(result.reason)
            yield task, result
            if result.status != "ok":
                ready.append(_once_more(task, result, jobs.site.nodes, work))


@contextmanager
def _no_workers() -> Iterator[None]:
    """Context manager: turn an InputError raised inside it, about the site, into NoWorkers."""
    try:
        yield
    except InputError as error:
        raise NoWorkers(str(error)) from error


def _once_more(task: _Task, end: SegmentResult, nodes: int, work: str) -> _Task:
    task = task.again(end, nodes)
    if task.retries.is_hopeless:
        on = ", ".join(sorted(task.retries.nodes - {""})) or "nodes not known"
        remedy = "see whether these nodes are in order and have enough memory"
        if end.reason.startswith("ModuleNotFoundError"):
            remedy = "put the module's folder into PYTHONPATH, on the nodes too"
        raise CampaignStopped(
            f"{work} failed {task.retries.total} times at {task}, on {on}: {end.reason}; {remedy}, "
            "then start again"
        )
    _logger.info("%s is sent again (%s): %s", task, task.retries, end.reason)
    return task


def run_calls(
    jobs: Jobs[Task],
    kind: Kind,
    function: str,
    requests: Mapping[int, Mapping[str, Any]],
    work: str,
    waits: Callable[[str], None] = lambda why: None,
) -> Iterator[int]:
    """Generator: call a function on a site once per request; yield the number of each ended call.

    Parameters
    ----------
    jobs, work, waits
        Arguments of :func:`run_all`, which sends the calls.
    kind
        Kind of the jobs for the ledger, such as `preparation`.
    function
        Name of the function, `module:function`.
    requests
        Argument of each call by the number of the call: a dict of JSON values, whose key ``what``
        names the subject of the call in messages.
    """
    specs = (
        Call(
            kind=kind,
            number=number,
            directory="",
            function=function,
            argument=request,
            what=request["what"],
        )
        for number, request in requests.items()
    )
    for task, end in run_all(jobs, (Task(spec=spec) for spec in specs), work, waits):
        if end.status == "ok":
            yield task.spec.number


def wait_until_seen(unseen: Callable[[], Sequence[Path]], remedy: str) -> None:
    """Wait for files that nodes wrote: a network file system shows them only after a while.

    Parameters
    ----------
    unseen
        Function that returns the paths of the files that are still missing.
    remedy
        Advice to the user if a file does not come.

    Raises
    ------
    CampaignStopped
        If a file is still missing after 90 s.
    """
    give_up = time.monotonic() + SECONDS_TO_SEE
    while missing := unseen():
        if time.monotonic() > give_up:
            raise CampaignStopped(
                f"{min(missing)}: a node has written it, and it is not there; {remedy}"
            )
        time.sleep(1.0)


def _has_worked(result: SegmentResult) -> bool:
    """Return whether the result, good or bad, is due to the job and not to its node."""
    return result.status in ("ok", "diverged", "out_of_memory", "wrong_input")


def _never_came(result: SegmentResult) -> bool:
    """Return whether a rank did not start, because its node took no further jobs."""
    return result.status == "interrupted" and not result.node
