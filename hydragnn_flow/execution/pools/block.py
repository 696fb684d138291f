"""Block: one batch job with its history. Patience: when a pool requests the next, or gives up."""

from __future__ import annotations

import logging
import math
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution.pools.parsl_executor import (
    BatchJob,
    Manager,
    NoAnswer,
    ParslExecutor,
    Refused,
)
from hydragnn_flow.execution.pools.scheduler import State
from hydragnn_flow.log import NOTICE


@dataclass
class Waits:
    """Waiting times of a pool, all in seconds."""

    start_here: float = 120.0
    """Longest time from the start of a batch job on this host to its first connected worker."""
    start: float = 900.0
    """Longest time from the start of a batch job on other nodes to its first connected worker."""
    connect: float = 120.0
    """Time after the first workers of a block until others that have not connected count as
    missing."""
    each_node: float = 0.1
    """Time added to the three above for each node of a block, since nodes connect one after
    another."""
    without_workers: float = 10.0
    """Time until a block that lost all workers is given up; its job may end on its own before."""
    idle: float = 20.0
    """Idle time before a block is given back. Between two phases there is no work for a moment, and
    a new block may wait for hours."""
    work: float = 600.0
    """Time of work after which there are checkpoints, even if no task has ended."""
    fruitless: float = 10.0
    """Pause after a block that did nothing; each further one in a row triples it, up to five
    minutes."""
    bad_nodes: float = 120.0
    """Pause after a block on bad nodes: the scheduler would give the same nodes again at once."""
    refusal: float = 10.0
    """Pause after a refused job; each further refusal doubles it, up to five minutes. Six of them
    take ten minutes in all: the scheduler may be in maintenance."""
    cancel: float = 2.0
    """Pause between attempts to cancel jobs."""
    checks: float = 1.0
    """Time between two looks at the connected workers."""
    questions: float = 15.0
    """Time between two queries of the scheduler: many centres ask users for at most one every few
    seconds."""
    readings: float = 30.0
    """Time between two readings of the nodes' energy."""
    word: float = 10.0
    """Shortest wait that is reported to the user."""
    writes: float = 2.0
    """Time between two writes of `workers.json`."""


WAITS = Waits()


def drain_seconds(job_seconds: float) -> float:
    """Return how long before the end of a batch job its nodes take no new tasks [s].

    Segments stop a little before the end, and would otherwise return to the same job.
    """
    return min(90, max(20, job_seconds / 10))


@dataclass(eq=False)
class Block:
    """Block: a batch job with its history since submission."""

    job: BatchJob
    state: State = "pending"
    ends: float = math.inf
    """Monotonic time at which its nodes end [s]; infinite if unknown."""
    reason: str = ""
    """Reason why it waits in the queue, in the scheduler's words."""
    since: float = field(default_factory=time.time)
    """Unix time at which it entered its state [s]."""
    entered: float = field(default_factory=time.monotonic)
    """Monotonic time at which it entered its state [s]."""
    submitted: float = field(default_factory=time.monotonic)
    """Monotonic time at which the scheduler accepted it [s]."""
    managers: list[Manager] = field(default_factory=list)
    """Connected worker pools of its nodes."""
    seen: set[str] = field(default_factory=set)
    """Identifiers of all worker pools that were ever connected."""
    connected: float | None = None
    """Monotonic time at which the first worker pool connected [s]; None before."""
    gone: float | None = None
    """Monotonic time at which the last worker pool was gone [s]; None while there are any."""
    held_back: float = -math.inf
    """Monotonic time at which it last got no tasks because the store was being copied to its nodes
    [s]."""
    leaving: bool = False
    """True while it is being given back."""
    was_given_work: bool = False
    has_worked: bool = False
    was_draining: bool = False
    was_incomplete: bool = False
    """True if the user was told that some of its nodes have not come."""
    not_listed: int = 0
    """Number of successive answers of the scheduler that did not list this job."""
    cancelling: Future[bool] | None = None

    def enter(self, state: State, reason: str = "") -> None:
        """Record the state of the job, and the scheduler's reason for it."""
        if state != self.state:
            self.since, self.entered = time.time(), time.monotonic()
        self.state, self.reason = state, reason

    @property
    def age(self) -> float:
        """Time since the scheduler accepted the job [s]."""
        return time.monotonic() - self.submitted

    @property
    def is_cancelled(self) -> bool:
        """True if the scheduler has cancelled its job."""
        answer = self.cancelling
        if answer is None or not answer.done() or answer.cancelled():
            return False
        return answer.exception() is None and answer.result()

    @property
    def tasks(self) -> int:
        """Number of tasks that run on its nodes."""
        return sum(manager.tasks for manager in self.managers)

    def is_idle(self, seconds: float) -> bool:
        """Return whether all its workers were idle for ``seconds``, and might have had work."""
        idle = min((manager.idle_seconds for manager in self.managers), default=0.0)
        idle = min(idle, time.monotonic() - self.held_back)
        return self.tasks == 0 and idle >= seconds

    @property
    def was_of_use(self) -> bool:
        """True if it was seen with tasks, or has returned a result."""
        return self.was_given_work or self.has_worked

    @property
    def is_fruitless(self) -> bool:
        """True if the block would have achieved nothing if it ended now.

        This is so if no worker connected, or if its tasks had no result, and too little time for a
        checkpoint.
        """
        if self.connected is None:
            return True
        seconds = (self.gone or time.monotonic()) - self.connected
        was_at_work = self.has_worked or self.was_draining or seconds > WAITS.work
        return self.was_given_work and not was_at_work


# Numbers of fruitless blocks, and of refusals, in a row before the campaign stops.
MOST_FRUITLESS, MOST_REFUSALS = 3, 6

_logger = logging.getLogger(__name__)


class Patience:
    """Pauses before a pool requests its next block, after refusals or blocks that did no work.

    Parameters
    ----------
    site
        Name of the site, for messages.
    parsl
        Parsl executor of the pool.
    """

    def __init__(self, site: str, parsl: ParslExecutor) -> None:
        self._site, self._parsl = site, parsl
        self.trouble = ""
        """Reason why the next block has to wait, in words; empty if it need not."""
        self.was_granted = self.was_refused = False
        """True if the scheduler has ever accepted a job; and if it has refused one or given no
        answer."""
        self._not_before = 0.0
        self._fruitless = self._refused = 0

    @property
    def may_request(self) -> bool:
        """True if the next block may be requested."""
        return time.monotonic() >= self._not_before

    @property
    def is_wary(self) -> bool:
        """True if the scheduler refused the last block, or has not accepted one yet."""
        return not self.was_granted or bool(self._refused)

    def grant(self) -> None:
        """Record that the scheduler accepted a job, which ends the pauses for refusals."""
        self._refused, self.was_granted, self.trouble = 0, True, ""

    def worked(self) -> None:
        """Record that a task was done, which ends the pauses for useless blocks."""
        self._fruitless, self.trouble = 0, ""

    def fruitless(self, said: str, is_anything_at_work: bool, least_wait: float = 0.0) -> None:
        """Record that a block ended without a result or a checkpoint.

        Parameters
        ----------
        said
            Last words of the batch job's standard error.
        is_anything_at_work
            True if another block runs tasks, so that there is hope; False otherwise.
        least_wait
            Least time before the next block [s].

        Raises
        ------
        CampaignStopped
            If three blocks in a row ended like this, and no other works.
        """
        self._fruitless += 1
        if self._fruitless >= MOST_FRUITLESS and not is_anything_at_work:
            raise CampaignStopped(
                f"site {self._site}: {MOST_FRUITLESS} blocks in a row ended without a result or a "
                f"checkpoint ({said}); see {self._parsl.scripts}, and give the same command again"
            )
        seconds = max(least_wait, WAITS.fruitless * 3 ** min(self._fruitless - 1, 9))
        self._put_off(seconds, f"the last block ended without a result or a checkpoint ({said})")

    def refuse(self, refusal: Refused, has_blocks: bool) -> None:
        """Record that the scheduler refused a job, or gave no answer.

        Parameters
        ----------
        refusal
            Exception with the scheduler's reason.
        has_blocks
            True if the pool has other blocks: a queue may limit their number.

        Raises
        ------
        InputError
            If the scheduler has not accepted any job yet, so account or queue may be wrong.
        CampaignStopped
            If the scheduler keeps refusing, and the pool has no blocks.
        """
        self._refused += 1
        sentence = f"site {self._site}: gets no workers: {refusal}; see {self._parsl.scripts}"
        is_silent = isinstance(refusal, NoAnswer)
        if not is_silent and not self.was_granted:
            raise InputError(sentence)
        if self._refused > MOST_REFUSALS and not has_blocks:
            raise CampaignStopped(f"{sentence}, and give the same command again")
        did = "does not answer" if is_silent else "refused a block"
        self._put_off(
            WAITS.refusal * 2 ** min(self._refused - 1, 9),
            f"the scheduler {did} ({refusal})",
            logging.INFO if has_blocks else NOTICE,
        )

    def _put_off(self, seconds: float, trouble: str, level: int = logging.INFO) -> None:
        seconds = min(seconds, 300.0)
        self.trouble, self._not_before = trouble, time.monotonic() + seconds
        _logger.log(level, "%s; the next is asked for in %.0f s", trouble, seconds)
