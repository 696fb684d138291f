"""Pool of a site: a Parsl executor that starts a worker for each GCD and carries results."""

from __future__ import annotations

import logging
import os
import pickle
import re
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from parsl.executors import HighThroughputExecutor

from hydragnn_flow.energy_counters import Reading
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.parsl_internals import ManagerLost, make_rundir
from hydragnn_flow.execution.pools.block import NodeHealth
from hydragnn_flow.execution.pools.blocks import Blocks
from hydragnn_flow.execution.pools.calls import run_in_block
from hydragnn_flow.execution.pools.interchange import NeverCame, check_descriptors
from hydragnn_flow.execution.pools.node_energy import EnergyFile
from hydragnn_flow.execution.pools.parsl_executor import ParslExecutor
from hydragnn_flow.execution.pools.scheduler import JobState, State, number_of, scheduler_named
from hydragnn_flow.execution.pools.store_copies import StoreCopies
from hydragnn_flow.execution.pools.waits import WAITS
from hydragnn_flow.execution.pools.workers_file import (
    WorkersFile,
    count,
    elapsed,
    in_queue,
    remembered_nodes,
)
from hydragnn_flow.execution.site import Site
from hydragnn_flow.execution.workers.rank import Rank
from hydragnn_flow.execution.workers.worker import call_off, release, run_ranks
from hydragnn_flow.files import is_there, patiently
from hydragnn_flow.log import LastEpoch, tell
from hydragnn_flow.placement import Host
from hydragnn_flow.processes import leaving_in_order, undisturbed
from hydragnn_flow.segment import SegmentResult, SegmentSpec, TrainingOutcome

# Characters without a special meaning where Parsl puts a path: in shell commands, in format
# strings, and in lines of batch scripts. Slurm and LSF have patterns with %, PBS writes HOST:PATH.
_PLAIN = r"\w./@+=,-"
_ALSO_PLAIN = {None: ":%", "slurm": ":", "pbs": "", "lsf": ":"}

_logger = logging.getLogger(__name__)


class Pool:
    """Workers of a site (machine), which Parsl starts in batch jobs, for a ``with`` block.

    Parameters
    ----------
    site
        Site that runs the workers.
    directory
        Directory for Parsl's logs and certificates, next to `workers.json`.

    Raises
    ------
    InputError
        If Parsl cannot handle the name of the directory, this host cannot be connected with that
        many nodes, or the site's Parsl configuration has no such executor; nothing is started then.
    """

    def __init__(self, site: Site, directory: Path) -> None:
        self._site = site
        _check_name(site, directory)
        check_descriptors(site.name, site.nodes)
        self._config = config = site.parsl_config(directory)
        executor = config.executors[0]
        if len(config.executors) > 1 or not isinstance(executor, HighThroughputExecutor):
            kinds = ", ".join(type(one).__name__ for one in config.executors)
            raise InputError(
                f"site {site.name}: its Parsl configuration has {kinds}; it needs one "
                "HighThroughputExecutor"
            )
        self._file = WorkersFile(directory.parent)
        self._energy = EnergyFile(directory.parent)
        self._scheduler = scheduler_named(site.scheduler)
        self._scheduler_thread = ThreadPoolExecutor(1, thread_name_prefix="scheduler")
        first_state: State = "pending" if self._scheduler is not None else "running"
        self._blocks = Blocks(
            *(site.name, ParslExecutor(site.name, executor), self._scheduler_thread),
            *(len(site.node.gcds), first_state, site.ends),
        )
        self._health, self._bad_nodes = NodeHealth(), remembered_nodes(directory.parent)
        for node in self._bad_nodes:
            self._health.suspect(node)
        self._at_work = set[str]()
        self._last_epochs: dict[str, LastEpoch] = {}
        self._strays = set[str]()
        self._is_scheduler_silent = False
        # Filled by the threads that receive results.
        self._worked: deque[str] = deque()
        self._used: deque[tuple[str, Reading]] = deque()
        self._lost: dict[str, tuple[str, float]] = {}
        # Worker pools that lost segments, with functions that look for checkpoints of these.
        self._cut_off: deque[tuple[str, Callable[[], bool]]] = deque()
        self._checked = self._next_question = self._energy_read = float("-inf")
        self._states: Future[dict[str, JobState]] | None = None
        self._copies: StoreCopies | None = None
        self._until_the_end = ExitStack()

    def __enter__(self) -> Pool:
        logging.getLogger("parsl").setLevel(logging.ERROR)
        # Parsl finds its own programs on the PATH; an environment that was called by path rather
        # than activated has not put them there.
        programs = str(Path(sys.executable).parent)
        if programs not in os.environ.get("PATH", "").split(os.pathsep):
            os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", "")])
        self._until_the_end.enter_context(leaving_in_order())
        self._until_the_end.callback(self._stop)
        try:
            self._start()
        except BaseException:
            self._until_the_end.close()
            raise
        return self

    def _start(self) -> None:
        site, run = self._site, str(uuid.uuid4())
        _logger.info("site %s: at most %d nodes, %d blocks", site.name, site.nodes, site.blocks)
        if self._bad_nodes:
            _logger.info("avoided, as for an earlier driver: %s", ", ".join(self._bad_nodes))
        self._directory = Path(make_rundir(self._config.run_dir))
        if self._scheduler is not None:
            self._scheduler_thread.submit(self._cancel_strays)
        self._blocks.parsl.start(run, self._directory)
        self._exclude()

    def __exit__(self, *_: object) -> None:
        self._until_the_end.close()

    def _stop(self) -> None:
        """Give back all nodes and end all processes, whatever happens; may take minutes."""
        with undisturbed():
            # The scheduler thread finishes its current request: a job that is being submitted has
            # no number yet by which it could be cancelled.
            self._scheduler_thread.shutdown(cancel_futures=True)
            blocks = self._blocks
            steps: list[Callable[[], object]] = [
                blocks.cancel_all,
                self._read_energy,
                blocks.parsl.shut_down,
            ]
            if blocks.may_have_others:
                steps.append(self._cancel_strays)
            for step in steps:
                try:
                    step()
                except Exception as error:
                    _logger.error("%s: %s", type(error).__name__, error)
            self._file.write(self._blocks.summary(), self._bad_nodes, {}, at_once=True)

    def update(self, demand: int | None = None) -> None:
        """Request or give back batch jobs to meet the demand for workers.

        Call it about twice a second.

        Parameters
        ----------
        demand
            Number of workers that could be used now, busy ones included; by default the number of
            tasks that were sent and have not returned.

        Raises
        ------
        InputError
            If the scheduler refuses the first block, or several nodes refuse their work: they
            cannot read the store, or have fewer devices than the site says.
        CampaignStopped
            If there is no hope for workers: blocks end without a result or a checkpoint, or the
            scheduler keeps refusing them.
        """
        self._blocks.demand = self._blocks.parsl.outstanding if demand is None else demand
        news = self._collect()
        now = time.monotonic()
        if now - self._checked < WAITS.checks and not news:
            return
        self._checked = now
        self._blocks.refresh()
        self._keep_off_bad_nodes(now)
        before = self._at_work  # results of these may not be recorded yet
        self._at_work = self._blocks.at_work
        self.hosts()  # marks blocks that wait for the store as not idle
        self._health.check(self._site.nodes, self._at_work | before)
        self._grow_and_shrink()
        self._last_epochs = self._blocks.parsl.last_epochs()
        self.describe(self._file, at_once=news)
        if now - self._energy_read > WAITS.readings:
            self._energy_read = now
            self._read_energy()

    @property
    def gcds(self) -> Sequence[str]:
        """Names of the GCDs (devices) on each node."""
        return self._site.node.gcds

    def describe(self, file: WorkersFile, *, at_once: bool = False) -> None:
        """Write the state of the pool's blocks (batch jobs) to the `workers.json` of a user.

        ``at_once`` is True to write even if the last write was moments ago.
        """
        file.write(self._blocks.summary(), self._bad_nodes, self._last_epochs, at_once=at_once)

    def last_epochs(self) -> Mapping[str, LastEpoch]:
        """Return the last epochs of running segments, as :meth:`.Workers.last_epochs` does."""
        return self._last_epochs

    def _read_energy(self) -> None:
        """Record the energy of the nodes so far; later energy is lost if the driver is killed."""
        told = [self._used.popleft() for _ in range(len(self._used))]
        self._energy.record([*told, *self._blocks.parsl.readings().items()])

    def workers(self) -> int:
        """Return the number of connected workers that take tasks."""
        return self._blocks.workers

    def hosts(self) -> Sequence[Host]:
        """Return the nodes that take jobs, named by the identifiers of their Parsl managers.

        Nodes to which the store is being copied are left out.
        """
        hosts = self._blocks.hosts()
        if self._copies is None:
            return hosts
        waiting = self._hold_back(self._copies, {host.block for host in hosts})
        return [host for host in hosts if host.block not in waiting] if waiting else hosts

    def _hold_back(self, copies: StoreCopies, blocks: Set[str]) -> set[str]:
        """Return the blocks to whose nodes the store is being copied, and mark them as not idle.

        Blocks are given by Parsl's identifiers; those without connected nodes are left out.
        """
        waiting = set[str]()
        for block in self._blocks.blocks:
            if block.job.block in blocks and not copies.are_there(block.job.number):
                block.held_back = time.monotonic()
                waiting.add(block.job.block)
        return waiting

    def bring(self, store: Path) -> None:
        """Copy a store of graphs to each node's own disk from now on, before the node gets jobs.

        Nothing happens if the site does not send stores. ``store`` is the path of the store.
        """
        scratch = self._site.node.scratch
        if self._site.sends_store and scratch is not None:
            self._copies = StoreCopies(store, scratch)
            self._until_the_end.callback(self._copies.close)

    def submit(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        manager: str | None = None,
        may_be_held: bool = False,
    ) -> Future[Any]:
        """Call ``function(*arguments)`` on a node; return a future of the result.

        Parameters
        ----------
        function, *arguments
            Function to call on the node, and its arguments.
        manager
            Identifier of the Parsl manager of the node; None for any free node.
        may_be_held
            True to send the call even to a manager that gets no further tasks otherwise.

        Raises
        ------
        CampaignStopped
            If the process that forwards tasks has ended.
        """
        answer: Future[Any] = Future()
        answer.set_running_or_notify_cancel()  # a task cannot be cancelled
        call = pickle.dumps((function, arguments))
        task = self._blocks.submit(manager, run_in_block, call, may_be_held=may_be_held)
        task.add_done_callback(partial(self._answered, answer))
        return answer

    def run(self, ranks: Sequence[Rank], node: str) -> Future[list[SegmentResult]]:
        """Start some ranks (processes) of a job on a node, as :meth:`.Workers.run` says.

        Raises
        ------
        CampaignStopped
            If the process that forwards tasks has ended.
        """
        answer: Future[list[SegmentResult]] = Future()
        answer.set_running_or_notify_cancel()
        self._file.begin(answer, ranks, node, self.gcds)

        def has_checkpoint() -> bool:
            specs = (rank.spec for rank in ranks)
            return any(isinstance(one, SegmentSpec) and is_there(one.checkpoint) for one in specs)

        def pass_on(task: Future[Any]) -> None:
            if isinstance(task.exception(), ManagerLost):
                self._cut_off.append((node, has_checkpoint))
            answer.set_result(results_of(task, ranks))

        self.submit(run_ranks, self._site.node, ranks, manager=node).add_done_callback(pass_on)
        return answer

    def call_off(self, node: str, attempt: str, reason: str) -> None:
        """End the ranks (processes) of a job on a node at once, without a checkpoint.

        ``attempt`` identifies the attempt at the job.

        Raises
        ------
        CampaignStopped
            If the process that forwards tasks has ended.
        """
        self.submit(call_off, attempt, reason, manager=node, may_be_held=True)

    def release(self, node: str, attempt: str) -> None:
        """Stop a segment (job of training) at a checkpoint, so that it can continue on other GCDs.

        ``node`` is a node on which it runs, ``attempt`` identifies the attempt at the segment.

        Raises
        ------
        CampaignStopped
            If the process that forwards tasks has ended.
        """
        self.submit(release, attempt, manager=node, may_be_held=True)

    def _answered(self, answer: Future[Any], task: Future[Any]) -> None:
        error = task.exception()
        if error is None:
            back = task.result()
            self._worked.append(back.block)
            if back.used is not None:
                self._used.append((back.manager, back.used))
            try:
                answer.set_result(pickle.loads(back.result))
            except Exception as unreadable:  # otherwise it would never be reported
                answer.set_exception(unreadable)
            return
        if isinstance(error, ManagerLost):
            lost = error.manager_id.decode()
            self._blocks.lost(lost)
            if isinstance(error, NeverCame):
                _logger.info("%s takes no tasks any more: one came back", error.hostname)
            else:
                if lost not in self._lost:
                    _logger.info("the workers on %s are lost", error.hostname)
                self._lost[lost] = (error.hostname, time.monotonic())
        else:
            _logger.info("a task has failed: %s: %s", type(error).__name__, error)
        answer.set_exception(error)

    def record(self, node: str, work: Hashable, worked: bool) -> None:
        """Record whether a job, named by ``work``, succeeded on a node.

        A node on which several segments fail that succeed elsewhere gets no further jobs.
        """
        self._health.record(node, work, worked)
        if worked:
            self._bad_nodes.pop(node, None)

    def avoid(self, node: str, reason: str) -> None:
        """Send no further jobs to a node that refused a job; ``reason`` is for the user."""
        if self._health.condemn(node, reason):
            tell(_logger, "%s gets no more work: %s", node, reason)
        self._keep_off_bad_nodes(time.monotonic())

    def waiting(self) -> str:
        """Return the reason why jobs wait for workers, in words; empty if no job waits."""
        if self._blocks.workers and not self.hosts():
            return "waiting until nodes have their copies of the store"
        if self._blocks.demand <= self._blocks.workers:
            return ""
        blocks = [block for block in self._blocks.blocks if block.connected is None]
        blocks = [b for b in blocks if time.monotonic() - b.entered > WAITS.word]
        queued = [block for block in blocks if block.state == "pending"]
        if queued:
            first = min(queued, key=lambda block: block.since)
            return f"waiting for {in_queue(len(queued), first.since, first.reason)}"
        if blocks:
            since = elapsed(min(block.since for block in blocks))
            return f"waiting for the workers of {count(len(blocks))}, started {since} ago"
        trouble = self._blocks.patience.trouble
        return f"{trouble}; trying again" if trouble else ""

    def _collect(self) -> bool:
        """Collect answers of other threads; return whether blocks came or went."""
        while self._worked:
            self._blocks.worked(self._worked.popleft())
        while self._cut_off:
            manager, has_checkpoint = self._cut_off.popleft()
            if patiently(has_checkpoint):
                self._blocks.worked(manager)
        news = self._blocks.collect()
        if self._states is not None and self._states.done():
            states, self._states = self._states.result(), None
            self._blocks.record_states(states)
        jobs = [block.job.number for block in self._blocks.blocks]
        now = time.monotonic()
        has_jobs = bool(jobs) or self._blocks.patience.was_refused
        if self._states is None and has_jobs and now >= self._next_question:
            self._next_question = now + self._seconds_between_questions
            self._states = self._scheduler_thread.submit(self._ask_states, jobs)
        if news:  # the scheduler soon knows why a block waits
            self._next_question = min(self._next_question, now + WAITS.word / 2)
        return news

    @property
    def _seconds_between_questions(self) -> float:
        if self._scheduler is not None:
            return WAITS.questions
        return self._blocks.parsl.seconds_between_questions

    def _ask_states(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """Return the state of each batch job by number, without jobs whose state is unknown.

        Called in the scheduler thread.
        """
        if self._scheduler is None:
            return self._blocks.parsl.states(jobs)
        listed = self._cancel_strays()
        if (listed is None) != self._is_scheduler_silent:
            self._is_scheduler_silent = listed is None
            _logger.info("the scheduler %s", "is silent" if listed is None else "answers again")
        if listed is None:
            return {}
        return {job: listed.get(number_of(job), JobState("ended")) for job in jobs}

    def _cancel_strays(self) -> dict[str, JobState] | None:
        """Cancel batch jobs of this run that no driver waits for; return all jobs listed.

        A killed driver leaves such jobs. A scheduler that did not answer in time may still have
        accepted a job, or not cancelled a job that was given up. Jobs are recognised by the paths
        of their scripts: their names may also occur in a run of which this directory is a copy.
        None is returned if the scheduler does not answer.
        """
        if self._scheduler is None or (listed := self._scheduler.jobs()) is None:
            return None
        known = {number_of(job) for job in self._blocks.parsl.submitted()}
        known -= {number_of(block.job.number) for block in [*self._blocks.ended]}
        strays = [j for j, job in listed.items() if j not in known and self._is_ours(job.script)]
        if new := {*strays} - self._strays:
            _logger.info("jobs that no driver waits for are cancelled: %s", " ".join(sorted(new)))
        self._strays |= new
        self._scheduler.cancel(strays)
        return listed

    def _is_ours(self, script: str) -> bool:
        """Return whether this start of the driver, or an earlier one, wrote the batch script.

        ``script`` is its path. A script of a later start means that this driver was replaced.
        """
        start = Path(script).parent.parent
        return (
            start.parent == self._directory.parent
            and start.name.isdigit()
            and int(start.name) <= int(self._directory.name)
        )

    def _keep_off_bad_nodes(self, now: float) -> None:
        seconds = self._blocks.parsl.seconds_to_miss + 2 * WAITS.checks
        for lost, (node, when) in [*self._lost.items()]:
            # By then, all workers that were lost together are known to be lost.
            if now - when > seconds:
                del self._lost[lost]
                if self._blocks.was_lost_alone(lost):
                    self._health.record_loss(node)
        held = set(self._blocks.keep_off(self._health))
        new = held - self._bad_nodes.keys()
        self._bad_nodes |= dict.fromkeys(sorted(new), time.time())
        for node in sorted(new):
            _logger.info("%s is taken out of use: %s", node, self._health.reason(node))
        if new:
            self._exclude()

    def _exclude(self) -> None:
        """Exclude bad nodes from the next blocks (Slurm only)."""
        if self._bad_nodes and self._site.scheduler == "slurm":
            self._blocks.exclude([*self._bad_nodes])

    def _grow_and_shrink(self) -> None:
        blocks, most = self._blocks, self._site.blocks
        needed, standing = min(blocks.needed, most), blocks.standing
        room = most - blocks.total
        blocks.request(min(max(0, needed - standing), room))
        blocks.shrink(standing - needed)
        if room <= 0:
            blocks.renew()


def _check_name(site: Site, directory: Path) -> None:
    """Refuse a directory whose name has a special meaning in a shell or a batch script."""
    strange = re.search(
        rf"[^{_PLAIN}{_ALSO_PLAIN.get(site.scheduler, '')}]", str(directory.absolute())
    )
    if strange is not None:
        raise InputError(
            f"{directory.absolute().parent}: Parsl, which starts the workers, takes no "
            f"{strange[0]!r} in a path; choose a directory without it"
        )


def results_of(task: Future[Any], ranks: Sequence[Rank]) -> list[SegmentResult]:
    """Return the results of a job's ranks (processes) from the future of their ended task.

    If the task's worker was lost, the results say so.
    """
    error = task.exception()
    if error is None:
        return list(task.result())
    if isinstance(error, NeverCame):
        outcome = TrainingOutcome.cut_short("interrupted", f"{error.hostname} took it no more")
    elif isinstance(error, ManagerLost):
        # The node or its whole batch job failed, for which no segment is to blame.
        outcome = TrainingOutcome.cut_short("lost", f"its node {error.hostname} was lost")
    else:
        reason = f"its worker was lost ({type(error).__name__}: {error})"
        outcome = TrainingOutcome.cut_short("killed", reason)
    return [SegmentResult.of(rank.spec, outcome) for rank in ranks]
