"""Blocks of a pool: the batch jobs on whose nodes its workers run.

Parsl starts blocks for the tasks it was given, and gives a pool up for good when the first block
fails. A campaign knows the tasks that will follow, and outlives its batch jobs. So Parsl only
submits and cancels batch jobs, and this module decides when.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from hydragnn_flow.execution.pools.block import Block, NodeHealth, Patience
from hydragnn_flow.execution.pools.parsl_executor import (
    BatchJob,
    Manager,
    NoAnswer,
    ParslExecutor,
    Refused,
    last_words,
)
from hydragnn_flow.execution.pools.scheduler import JobState, State
from hydragnn_flow.execution.pools.waits import WAITS, drain_seconds
from hydragnn_flow.execution.pools.workers_file import count
from hydragnn_flow.log import tell
from hydragnn_flow.placement import Host

_logger = logging.getLogger(__name__)


class Blocks:
    """Parsl blocks (batch jobs) of one pool: requested, watched, and given back.

    Parameters
    ----------
    site
        Name of the site, for messages.
    parsl
        Parsl executor of the pool.
    scheduler_thread
        Executor with one thread that talks to the scheduler, so that the campaign need not wait.
    workers_per_node
        Number of workers on a node of the pool.
    first_state
        State of a new block: `pending` if it waits in a queue, `running` if it starts at once.
    ends
        Monotonic time at which all blocks end [s]; infinite with a scheduler, which reports the end
        of each block.
    """

    def __init__(
        self,
        site: str,
        parsl: ParslExecutor,
        scheduler_thread: Executor,
        workers_per_node: int,
        first_state: State,
        ends: float = math.inf,
    ) -> None:
        self._site, self.parsl, self._scheduler_thread = site, parsl, scheduler_thread
        self._first_state, self._ends = first_state, ends
        self._workers_per_block = workers_per_node * parsl.nodes_per_block
        self.blocks: list[Block] = []
        """Blocks that hold nodes or wait for nodes."""
        self.ended: list[Block] = []
        self.demand = 0
        """Number of workers that the campaign could use."""
        self.events = deque[tuple[float, str]](maxlen=10)
        """Last faults of blocks and nodes: (Unix time [s], sentence)."""
        self.patience = Patience(site, parsl)
        self._requested: list[Future[BatchJob]] = []
        self._has_excluded = False
        self._surplus_since: float | None = None
        self._managers: list[Manager] = []
        # Nodes that take tasks, and the pools, identifiers and ends that they were made from.
        self._hosts: list[Host] = []
        self._hosts_of: tuple[list[Manager], list[str], dict[str, float]] = ([], [], {})
        # Number of tasks sent to each worker pool, and the pools of returned tasks.
        self._given: Counter[str] = Counter()
        self._back: deque[str] = deque()
        self._gone: deque[str] = deque()

    # State of the pool.

    @property
    def total(self) -> int:
        """Number of blocks (batch jobs) that hold nodes, wait for some, or are being submitted."""
        return len(self.blocks) + len(self._requested)

    @property
    def standing(self) -> int:
        """Number of blocks (batch jobs) that take tasks, now or later."""
        return len(self._requested) + sum(self._capacity(block) > 0 for block in self.blocks)

    @property
    def needed(self) -> int:
        """Number of blocks (batch jobs) that :attr:`demand` workers need in total.

        Blocks that count in :attr:`standing` are included.
        """
        capacity = len(self._requested) * self._workers_per_block
        capacity += sum(self._capacity(block) for block in self.blocks)
        if self.demand > capacity:
            missing = self.demand - capacity
            return self.standing + math.ceil(missing / self._workers_per_block)
        return min(self.standing, math.ceil(self.demand / self._workers_per_block))

    @property
    def usable(self) -> list[Manager]:
        """Worker pools (one on each node) that take tasks now."""
        self._collect_back()
        staying = self._staying
        return [m for m in self._managers if m.usable and m.block in staying]

    @property
    def at_work(self) -> set[str]:
        """Names of the nodes on which tasks run."""
        return {manager.node for manager in self._managers if manager.tasks > 0}

    @property
    def workers(self) -> int:
        """Number of workers, one for each GCD (device), that take tasks now."""
        return sum(manager.workers for manager in self.usable)

    def summary(self) -> dict[str, Any]:
        """Return the pool's workers, tasks and blocks (batch jobs) as values for `workers.json`.

        The last ten blocks that ended are included.
        """
        return {
            "events": [list(event) for event in self.events],
            "trouble": self.patience.trouble,
            "workers": self.workers,
            "tasks": self.parsl.outstanding,
            "blocks": [
                {
                    "block": block.job.block,
                    "job": block.job.number,
                    "name": block.job.name,
                    "state": block.state,
                    "reason": block.reason,
                    "since": block.since,
                    "workers": sum(manager.workers for manager in block.managers),
                }
                for block in [*self.ended[-10:], *self.blocks]
            ],
        }

    def hosts(self) -> Sequence[Host]:
        """Return the nodes that take tasks, named by the identifiers of their worker pools."""
        self._collect_back()
        managers, names, ends = self._hosts_of
        staying = self._staying
        if managers is self._managers and ends == staying:
            return self._hosts
        # Few of thousands of nodes have changed, if any, and comparing them is cheaper than making
        # new objects.
        usable = self.usable
        if (found := [manager.id for manager in usable]) != names or ends != staying:
            self._hosts = [Host(m.id, m.block, staying[m.block]) for m in usable]
        self._hosts_of = self._managers, found, staying
        return self._hosts

    @property
    def _staying(self) -> dict[str, float]:
        """Monotonic time at which each block ends [s], by its identifier.

        Blocks that are being given back are left out.
        """
        return {block.job.block: block.ends for block in self.blocks if not block.leaving}

    def _capacity(self, block: Block) -> int:
        """Return the number of a block's workers that take tasks, now or later."""
        if block.leaving or block.was_draining:
            return 0
        since, now = block.connected, time.monotonic()
        if since is None or now - since < self._for_all(WAITS.connect):
            return self._workers_per_block
        return sum(manager.workers for manager in block.managers if manager.usable)

    def _for_all(self, seconds: float) -> float:
        """Return ``seconds`` plus the time in which a block's nodes connect one by one [s]."""
        return seconds + WAITS.each_node * self.parsl.nodes_per_block

    def was_lost_alone(self, manager: str) -> bool:
        """Return whether a worker pool was lost while the rest of its batch job was not."""
        block = next((b for b in [*self.blocks, *self.ended] if manager in b.seen), None)
        return block is not None and (len(block.seen) == 1 or bool(block.managers))

    @property
    def may_have_others(self) -> bool:
        """True if there may be batch jobs that the scheduler accepted without answering."""
        unheard = [job for job in self._requested if job.done() and not job.cancelled()]
        return self.patience.was_refused or any(job.exception() is not None for job in unheard)

    # Tasks.

    def submit(
        self, manager: str | None, function: Any, *arguments: Any, may_be_held: bool = False
    ) -> Future[Any]:
        """Send a task, a call ``function(*arguments)``, to a worker pool; return its future.

        ``manager`` identifies the worker pool; None takes any free one. With ``may_be_held`` the
        task is also sent to a pool that gets no further tasks.

        Raises
        ------
        InputError, CampaignStopped
            If the task would not reach a worker.
        """
        task = self.parsl.submit(manager, function, *arguments, may_be_held=may_be_held)
        if manager is not None:
            self._given[manager] += 1
            task.add_done_callback(lambda _: self._back.append(manager))  # in a thread of Parsl
        return task

    def _collect_back(self) -> None:
        """Count off the ended tasks and lost worker pools that other threads have reported."""
        while self._back:
            self._given[self._back.popleft()] -= 1
        if self._gone:
            gone = {self._gone.popleft() for _ in range(len(self._gone))}
            self._managers = [each for each in self._managers if each.id not in gone]

    # Reports from Parsl.

    def worked(self, place: str) -> None:
        """Record that a block or worker pool, given by its identifier, has returned a result."""
        self.patience.worked()
        for block in self.blocks:
            block.has_worked |= place == block.job.block or place in block.seen

    def lost(self, manager: str) -> None:
        """Send no further tasks to a lost worker pool; may be called from any thread."""
        self._gone.append(manager)

    def refresh(self) -> None:
        """Update the list of connected workers, and give up batch jobs that have no workers.

        Raises
        ------
        InputError, CampaignStopped
            If the pool cannot have workers any more.
        """
        self._collect_back()
        self._managers = self.parsl.managers()
        # The interchange may not know a task yet that was just sent.
        given = self._given
        self._managers = [
            m if m.tasks >= given[m.id] else m._replace(tasks=given[m.id]) for m in self._managers
        ]
        self._hold_strangers()
        now, of_block = time.monotonic(), defaultdict[str, list[Manager]](list)
        for manager in self._managers:
            of_block[manager.block].append(manager)
        for block in [*self.blocks]:
            before, block.managers = block.managers, of_block[block.job.block]
            left = block.ends - drain_seconds(block.ends - block.entered) - now
            # At that time idle nodes leave, which is not a loss.
            is_leaving = left <= 10.0
            if not is_leaving:
                self._miss(block, before, now)
            if not block.leaving and left < 0:
                self._release(block, "its batch job is about to end")
            if block.managers:
                self._see_workers(block, now)
            elif block.connected is not None and block.cancelling is None:
                if block.gone is None:
                    block.gone = now
                    self._log(block, "has no workers any more")
                    if not is_leaving:
                        why = f" (the scheduler says: {block.reason})" if block.reason else ""
                        self._tell(block, f"is lost: none of its nodes gives a sign of life{why}")
                if now - block.gone > WAITS.without_workers:
                    self._end(block)
            elif block.state == "running" and block.cancelling is None:
                is_here = self._first_state == "running" and self.parsl.is_here
                seconds = self._for_all(WAITS.start_here if is_here else WAITS.start)
                if now - block.entered > seconds:
                    self._end(block, f"no worker came within {seconds / 60:.0f} min of its start: ")

    def _miss(self, block: Block, before: Sequence[Manager], now: float) -> None:
        """Report nodes of a block that no longer answer, or have never connected.

        Parameters
        ----------
        block
            Block whose worker pools were just updated.
        before
            Worker pools of the block before the update.
        now
            Current monotonic time [s].
        """
        if block.leaving or block.was_draining or not block.managers:
            return
        there = {manager.id for manager in block.managers}
        lost = sorted(m.node for m in before if m.id not in there and not m.held)
        if lost:
            self._tell(block, f"has lost nodes, which give no sign of life: {_named(lost)}")
        seconds = self._for_all(WAITS.connect)
        missing = self.parsl.nodes_per_block - len(block.seen)
        is_late = block.connected is not None and now - block.connected > seconds
        if is_late and missing > 0 and not block.was_incomplete:
            block.was_incomplete = True
            some = f"{missing} of its {self.parsl.nodes_per_block} nodes"
            when = f"within {seconds / 60:.0f} min of the first"
            why = f"{block.job.errors} may say why"
            self._tell(block, f"is not whole: {some} did not connect {when}; {why}")

    def _hold_strangers(self) -> None:
        """Send no tasks to workers of a batch job that was given up and is about to end."""
        if self._requested:
            return  # they may belong to a job whose number is not known yet
        known = {block.job.block for block in self.blocks}
        strangers = [m for m in self._managers if m.usable and m.block not in known]
        for manager in strangers:
            _logger.info("%s gets no tasks: its block was given up", manager.node)
        self.hold(strangers)

    def _see_workers(self, block: Block, now: float) -> None:
        if block.connected is None:
            nodes = ", ".join(sorted(manager.node for manager in block.managers))
            self._log(block, f"has its first workers, {block.age:.0f} s old, on {nodes}")
        if block.state != "running":
            block.enter("running")
        block.seen.update(manager.id for manager in block.managers)
        block.connected, block.gone = block.connected or now, None
        block.was_given_work |= block.tasks > 0
        is_draining = all(manager.draining for manager in block.managers)
        if is_draining and not block.was_draining:
            self._log(block, "takes no new tasks: its batch job is about to end")
        block.was_draining = is_draining
        if all(manager.held for manager in block.managers):
            came_for_nothing = not block.leaving and not block.was_of_use
            block.leaving = True
            if block.tasks == 0 and block.cancelling is None:
                self._cancel(block)
            if came_for_nothing:
                nodes = ", ".join(sorted({manager.node for manager in block.managers}))
                self._count_fruitless(f"it was on bad nodes: {nodes}", WAITS.bad_nodes)
        elif block.leaving:
            self._release(block, "")  # workers that came later

    def hold(self, managers: Sequence[Manager]) -> None:
        """Send no further tasks to these worker pools, for good."""
        if managers:
            held = {manager.id for manager in managers}
            self.parsl.hold(sorted(held))
            self._managers = [m._replace(held=m.held or m.id in held) for m in self._managers]

    # Reports from the scheduler.

    def collect(self) -> bool:
        """Collect the scheduler's answers on submitted and cancelled jobs; return whether any came.

        Raises
        ------
        InputError, CampaignStopped
            If the scheduler refuses the first block, or keeps refusing.
        """
        submitted = [job for job in self._requested if job.done()]
        self._requested = [job for job in self._requested if not job.done()]
        for job in submitted:
            try:
                block = Block(job.result(), self._first_state, self._ends)
            except Refused as refusal:
                self._refuse(refusal)
            else:
                self.blocks.append(block)
                self.patience.grant()
                self._log(block, "is submitted")
        cancelled = [block for block in self.blocks if block.is_cancelled]
        for block in cancelled:
            self._file(block, "is cancelled")
        return bool(submitted or cancelled)

    def record_states(self, states: Mapping[str, JobState]) -> None:
        """Record the states of batch jobs, by job number.

        A job that is missing in ``states`` has an unknown state.

        Raises
        ------
        CampaignStopped
            If block after block ends without a result or a checkpoint.
        """
        for block in [*self.blocks]:
            if block.cancelling is not None and block.cancelling.done():
                self._cancel(block)  # again, as the first attempt had no effect
            known = states.get(block.job.number)
            if known is None:
                continue
            # A queue may not list a new job at once: two answers without it prove its end.
            block.not_listed = block.not_listed + 1 if known.state == "ended" else 0
            # The time left is in whole seconds, and the answer takes a while.
            if known.ends != math.inf and abs(known.ends - block.ends) > 2.0:
                block.ends = known.ends
            if block.managers:
                block.reason = known.reason
                continue  # workers that answer are more reliable than a queue
            if known.state != "ended":
                if known.state != block.state:
                    self._log(block, f"is {known.state}, {block.age:.0f} s old")
                block.enter(known.state, known.reason)
            elif block.not_listed >= 2:
                self._end(block)

    # Actions.

    def request(self, blocks: int) -> None:
        """Submit ``blocks`` batch jobs, or fewer after trouble with the previous ones."""
        if not self.patience.may_request:
            return
        # If the scheduler refuses, one refusal is enough, or eight.
        most = 1 if self.patience.is_wary else 8
        number = min(blocks, most - len(self._requested))
        if number > 0:
            _logger.info(
                "asks for %s: work for %d workers, %d blocks work or wait",
                *(count(number), self.demand, self.standing),
            )
        for _ in range(number):
            self._requested.append(self._scheduler_thread.submit(self.parsl.launch))

    def shrink(self, surplus: int) -> None:
        """Give back up to ``surplus`` batch jobs that were idle for a while, least useful first."""
        if surplus <= 0:
            self._surplus_since = None
            return
        now = time.monotonic()
        self._surplus_since = self._surplus_since or now
        is_lasting = now - self._surplus_since >= WAITS.idle
        standing = [block for block in self.blocks if self._capacity(block) > 0]
        standing.sort(key=lambda block: (block.connected is not None, block.tasks))
        for block in standing[:surplus]:
            is_unused = block.connected is None or block.is_idle(WAITS.idle)
            if is_lasting and is_unused:
                self._release(block, f"there is work for {self.demand} workers")

    def renew(self) -> None:
        """Give back idle batch jobs that lost nodes, if a task needs more nodes than they have.

        Raises
        ------
        CampaignStopped
            If block after block comes without some of its nodes.
        """
        staying = [block for block in self.blocks if not block.leaving]
        are_idle = all(block.is_idle(WAITS.idle) for block in staying)
        if self._requested or self.demand <= self.workers or not are_idle:
            return
        for block in staying:
            nodes = self._capacity(block) // (self._workers_per_block // self.parsl.nodes_per_block)
            if 0 < nodes < (of := self.parsl.nodes_per_block):
                self._release(block, f"work waits for more than {nodes} of its {of} nodes")
                if not block.was_of_use:
                    self._count_fruitless(f"only {nodes} of its {of} nodes were of use")

    def keep_off(self, health: NodeHealth) -> list[str]:
        """Send no further tasks to nodes that cannot work or are suspect; return their names.

        If all nodes are suspect, only nodes that are known to be unable to work are kept off.
        """
        usable = self.usable
        suspect = [manager for manager in usable if health.is_suspect(manager.node)]
        if len(suspect) == len(usable):
            suspect = [manager for manager in suspect if health.is_of_no_use(manager.node)]
        self.hold(suspect)
        return [manager.node for manager in suspect]

    def exclude(self, nodes: Sequence[str]) -> None:
        """Exclude nodes, by name, from the next batch jobs; for Slurm only.

        An empty sequence excludes none.
        """
        self._has_excluded = bool(nodes)
        self.parsl.exclude(nodes)

    def cancel_all(self) -> None:
        """Cancel every batch job of the pool that exists or may exist."""
        ended = {block.job.number for block in self.ended if block.is_cancelled}
        # Parsl's own list, which also has a job that is just being submitted.
        jobs = [job for job in self.parsl.submitted() if job not in ended]
        for _ in range(3):
            if not jobs or self.parsl.cancel(jobs):
                break
            time.sleep(WAITS.cancel)
        else:
            _logger.error(
                "site %s: the scheduler did not cancel the jobs %s; cancel them yourself",
                *(self._site, " ".join(jobs)),
            )
            return
        for block in [*self.blocks]:
            self._file(block, "is cancelled with all others")

    def _release(self, block: Block, why: str) -> None:
        if not block.leaving:
            self._log(block, f"is given back: {why}")
        block.leaving = True
        self.hold([manager for manager in block.managers if not manager.held])
        if not block.managers and block.cancelling is None:
            self._cancel(block)

    def _cancel(self, block: Block) -> None:
        block.cancelling = self._scheduler_thread.submit(self.parsl.cancel, [block.job.number])

    def _file(self, block: Block, how: str) -> None:
        self._log(block, f"{how}, {block.age:.0f} s old")
        block.enter("ended")
        block.managers = []
        self.blocks.remove(block)
        self.ended.append(block)

    def _end(self, block: Block, why: str = "") -> None:
        """Give up a block whose batch job or workers have ended; ``why`` is for the user."""
        self._file(block, f"has ended: {why}".rstrip(": "))
        self._cancel(block)  # in case it still exists after all
        if block.leaving or not block.is_fruitless:
            return
        said = why + last_words(block.job.errors)
        self._tell(block, f"ended without a result or a checkpoint: {said}")
        self._count_fruitless(said)

    def _log(self, block: Block, event: str) -> None:
        _logger.info("block %s (job %s) %s", block.job.block, block.job.number, event)

    def _tell(self, block: Block, event: str) -> None:
        """Report a fault to the user, the log and `status`."""
        sentence = f"block {block.job.block} (job {block.job.number}) {event}"
        tell(_logger, "%s", sentence)
        self.events.append((time.time(), sentence))

    def _count_fruitless(self, said: str, least_wait: float = 0.0) -> None:
        is_anything_at_work = any(block.tasks for block in self.blocks)
        self.patience.fruitless(said, is_anything_at_work, least_wait)

    def _refuse(self, refusal: Refused) -> None:
        self.patience.was_refused = True
        if self._has_excluded and not isinstance(refusal, NoAnswer):
            self.exclude(())  # the exclusion may have left fewer nodes than a block needs
        else:
            self.patience.refuse(refusal, bool(self.blocks))


def _named(nodes: Sequence[str]) -> str:
    names, more = ", ".join(nodes[:8]), len(nodes) - 8
    return f"{names} and {more} more nodes" if more > 0 else names
