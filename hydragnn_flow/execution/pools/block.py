"""Block: one batch job with its history. Patience: when a pool requests a new block, or gives up.

An agent measures its node's energy from its start on. The driver gets it with every result, and
with the heartbeats of an idle node.

Without copies, every node of a machine reads the store from the shared file system when its first
segment starts. Slurm's `sbcast` passes each file on from node to node.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Set
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
from hydragnn_flow.execution.pools.waits import WAITS
from hydragnn_flow.log import NOTICE


@dataclass(eq=False)
class Block:
    """Batch job of a pool (block, in Parsl), with its state and history since submission."""

    job: BatchJob
    state: State = "pending"
    ends: float = math.inf
    """Monotonic time at which the batch job ends [s]; infinite if unknown."""
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
    """Monotonic time at which the block last got no tasks because the store was being copied to its
    nodes [s]; -inf if that never happened."""
    leaving: bool = False
    """True once the block is being given back."""
    was_given_work: bool = False
    has_worked: bool = False
    was_draining: bool = False
    was_incomplete: bool = False
    """True if the user was told that some of its nodes have not come."""
    not_listed: int = 0
    """Number of successive answers of the scheduler that did not list this job."""
    cancelling: Future[bool] | None = None

    def enter(self, state: State, reason: str = "") -> None:
        """Record a new state of the batch job, and the scheduler's reason for the state."""
        if state != self.state:
            self.since, self.entered = time.time(), time.monotonic()
        self.state, self.reason = state, reason

    @property
    def age(self) -> float:
        """Time since the scheduler accepted the batch job [s]."""
        return time.monotonic() - self.submitted

    @property
    def is_cancelled(self) -> bool:
        """True if the scheduler has cancelled the block's batch job."""
        answer = self.cancelling
        if answer is None or not answer.done() or answer.cancelled():
            return False
        return answer.exception() is None and answer.result()

    @property
    def tasks(self) -> int:
        """Number of tasks that run on the block's nodes."""
        return sum(manager.tasks for manager in self.managers)

    def is_idle(self, seconds: float) -> bool:
        """Return whether all workers of the batch job have been idle for ``seconds`` [s].

        Time in which a store of graphs was copied to its nodes does not count.
        """
        idle = min((manager.idle_seconds for manager in self.managers), default=0.0)
        idle = min(idle, time.monotonic() - self.held_back)
        return self.tasks == 0 and idle >= seconds

    @property
    def was_of_use(self) -> bool:
        """True if the block (batch job) has had tasks or has returned a result."""
        return self.was_given_work or self.has_worked

    @property
    def is_fruitless(self) -> bool:
        """True if the block (batch job) would have achieved nothing if it ended now.

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
    """Pauses before a pool requests its next batch job, after refusals or jobs that did no work.

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
        """``was_granted`` is True if the scheduler has ever accepted a job, ``was_refused`` if it
        has ever refused a job or given no answer."""
        self._not_before = 0.0
        self._fruitless = self._refused = 0

    @property
    def may_request(self) -> bool:
        """True if the pool may request its next block (batch job) now."""
        return time.monotonic() >= self._not_before

    @property
    def is_wary(self) -> bool:
        """True if the scheduler refused the last batch job, or has not accepted one yet."""
        return not self.was_granted or bool(self._refused)

    def grant(self) -> None:
        """Record that the scheduler accepted a batch job, which ends the pauses for refusals."""
        self._refused, self.was_granted, self.trouble = 0, True, ""

    def worked(self) -> None:
        """Record that a task was done, which ends the pauses for useless batch jobs."""
        self._fruitless, self.trouble = 0, ""

    def fruitless(self, said: str, is_anything_at_work: bool, least_wait: float = 0.0) -> None:
        """Record that a block (batch job) ended without a result or a checkpoint.

        Parameters
        ----------
        said
            Last words of the batch job's standard error.
        is_anything_at_work
            True if another block runs tasks, so that there is hope; False otherwise.
        least_wait
            Shortest pause before the next block [s].

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
        """Record that the scheduler refused a batch job, or gave no answer.

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


# Number of failures on a node, with no success since, that make it suspect. If one trial in ten is
# faulty, eight GCDs that start together seldom see this many.
MOST_BAD_ENDS = 4.0
# Weight of the loss of a node's worker pool, which loses all its work.
BLAME_FOR_LOSS = 2.0
# Number of nodes that refuse work in a row before the campaign stops, as they are not to blame.
MOST_REFUSING = 3


class NodeHealth:
    """Health of nodes, judged by the results of their jobs.

    A broken GPU or a full disk ends every job within seconds, so a single bad node spoils a
    campaign's segments faster than all the good ones train them. A bad segment fails wherever it is
    sent, and is sent several times. So a node is judged by the number of different segments that
    failed on it, and those that failed elsewhere as well count little.
    """

    def __init__(self) -> None:
        self._nodes: defaultdict[Hashable, set[str]] = defaultdict(set)
        self._failures: defaultdict[str, set[Hashable]] = defaultdict(set)
        self._losses: Counter[str] = Counter()
        self._of_no_use: set[str] = set()
        self._refusals: dict[str, str] = {}

    def record(self, node: str, work: Hashable, worked: bool) -> None:
        """Record whether a job succeeded on a node.

        Parameters
        ----------
        node
            Name of the node.
        work
            Name of the job; the same for all its attempts.
        worked
            True if the job succeeded, which clears the node; False if it failed.
        """
        if worked:
            self._failures.pop(node, None)
            self._losses.pop(node, None)
            self._refusals.clear()
        else:
            self._nodes[work].add(node)
            self._failures[node].add(work)

    def record_loss(self, node: str) -> None:
        """Record that a node lost its worker pool while other nodes did not."""
        self._losses[node] += 1

    def suspect(self, node: str) -> None:
        """Record that an earlier driver took a node out of use; a success there clears the node."""
        self._losses[node] = math.ceil(MOST_BAD_ENDS / BLAME_FOR_LOSS)

    def condemn(self, node: str, reason: str) -> bool:
        """Record that a node cannot do any job; return True if that was not known before.

        ``reason`` is the node's error message, which :meth:`check` may raise.
        """
        is_news = node not in self._of_no_use
        self._of_no_use.add(node)
        self._refusals[node] = reason
        return is_news

    def check(self, nodes: int, at_work: Set[str]) -> None:
        """Raise an error if none of the nodes can be expected to do a job.

        Parameters
        ----------
        nodes
            Largest number of nodes of the campaign at a time.
        at_work
            Names of nodes with jobs; a node that is not condemned may yet succeed.

        Raises
        ------
        InputError
            If several nodes in a row were condemned, and no job has succeeded since or still may.
        """
        if len(self._refusals) >= min(MOST_REFUSING, nodes) and at_work <= self._of_no_use:
            raise InputError([*self._refusals.values()][-1])

    def reason(self, node: str) -> str:
        """Return the reasons why a node is suspect, in words; empty if there are none."""
        if node in self._of_no_use:
            return "it refuses work"
        failed = sorted(map(_in_words, self._failures.get(node, ())))
        reasons = [f"failed there: {', '.join(failed)}"] if failed else []
        if self._losses[node]:
            reasons.append(f"its workers alone were lost {self._losses[node]} times")
        return "; ".join(reasons)

    def is_of_no_use(self, node: str) -> bool:
        """Return whether the node is known to be unable to do any job."""
        return node in self._of_no_use

    def is_suspect(self, node: str) -> bool:
        """Return whether the node cannot do jobs, or failed so often that it probably cannot."""
        blame = BLAME_FOR_LOSS * self._losses[node]
        for work in self._failures.get(node, ()):
            # What failed on several nodes is hardly their fault, but two bad nodes must not excuse
            # each other.
            blame += 1.0 if len(self._nodes[work]) == 1 else 0.25
        return self.is_of_no_use(node) or blame >= MOST_BAD_ENDS


def _in_words(work: Hashable) -> str:
    return " ".join(map(str, work)) if isinstance(work, tuple) else str(work)
