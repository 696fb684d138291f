"""The pools of a site: Parsl executors that start workers and carry results."""

from __future__ import annotations

import logging
import os
import pickle
import re
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from parsl.dataflow.rundirs import make_rundir
from parsl.executors import HighThroughputExecutor
from parsl.executors.high_throughput.errors import ManagerLost

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.pools.apportion import apportion
from hydragnn_flow.execution.pools.blocks import Blocks
from hydragnn_flow.execution.pools.interchange import check_descriptors
from hydragnn_flow.execution.pools.lost_workers import results_of
from hydragnn_flow.execution.pools.node_health import NodeHealth
from hydragnn_flow.execution.pools.parsl_executor import ParslExecutor
from hydragnn_flow.execution.pools.scheduler import JobState, State, number_of, scheduler_named
from hydragnn_flow.execution.pools.worker_pool import run_in_block
from hydragnn_flow.execution.pools.workers_file import (
    WorkersFile,
    count,
    elapsed,
    in_queue,
    remembered_nodes,
)
from hydragnn_flow.execution.site import PoolName, Site
from hydragnn_flow.execution.workers.local_ranks import RankGroup
from hydragnn_flow.execution.workers.worker import run_rank_groups
from hydragnn_flow.log import tell
from hydragnn_flow.segment import SegmentResult
from hydragnn_flow.signals import leaving_in_order, undisturbed

SECONDS_BETWEEN_CHECKS = 1.0
# Schedulers are shared: many centres ask users for at most one query every few seconds.
SECONDS_BETWEEN_QUESTIONS = 15.0
# Waits shorter than this are not reported to the user.
SECONDS_BEFORE_A_WORD = 10.0

# Characters without a special meaning where Parsl puts a path: in shell commands, in format
# strings, and in lines of batch scripts. Slurm has patterns with %, PBS writes HOST:PATH.
_PLAIN = r"\w./@+=,-"
_ALSO_PLAIN = {None: ":%", "slurm": ":", "pbs": ""}

_logger = logging.getLogger(__name__)


class Pools:
    """A site's workers, from entering a ``with`` block to leaving it.

    Parameters
    ----------
    site
        The machine.
    directory
        Where Parsl keeps its logs and certificates; `workers.json` is beside it.

    Raises
    ------
    InputError
        If the directory has a name that Parsl cannot take, this host cannot be connected with that
        many nodes, or the site's Parsl configuration lacks a pool; nothing has been started then.
    """

    def __init__(self, site: Site, directory: Path) -> None:
        self._site = site
        _check_name(site, directory)
        check_descriptors(site.name, site.nodes)
        self._config = config = site.parsl_config(directory)
        executors = {
            executor.label: ParslExecutor(site.name, executor)
            for executor in config.executors
            if isinstance(executor, HighThroughputExecutor)
        }
        if not {"gcd", "node"} <= set(executors):
            labels = sorted(executor.label for executor in config.executors)
            raise InputError(
                f"site {site.name}: its Parsl configuration has the executors {labels}; it needs "
                "'gcd' and 'node', both a HighThroughputExecutor"
            )
        self._file = WorkersFile(directory.parent)
        self._scheduler = scheduler_named(site.scheduler)
        self._scheduler_thread = ThreadPoolExecutor(1, thread_name_prefix="scheduler")
        first_state: State = "pending" if self._scheduler is not None else "running"
        self._pools = {
            label: Blocks(site.name, executors[label], self._scheduler_thread, workers, first_state)
            for label, workers in (("gcd", len(site.node.gcds)), ("node", 1))
        }
        self._health, self._bad_nodes = NodeHealth(), remembered_nodes(directory.parent)
        for node in self._bad_nodes:
            self._health.suspect(node)
        self._at_work = set[str]()
        self._strays = set[str]()
        self._is_scheduler_silent = False
        # Written by the threads that receive results.
        self._worked: deque[tuple[str, str]] = deque()
        self._lost: dict[str, tuple[str, str, float]] = {}
        self._checked = self._next_question = float("-inf")
        self._states: Future[dict[str, JobState]] | None = None
        self._until_the_end = ExitStack()

    def __enter__(self) -> Pools:
        logging.getLogger("parsl").setLevel(logging.ERROR)
        # Parsl finds its own programs on the PATH, where an environment that was called by path
        # rather than activated has not put them.
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
        for pool in self._pools.values():
            pool.parsl.start(run, self._directory)
        self._exclude()

    def __exit__(self, *_: object) -> None:
        self._until_the_end.close()

    def _stop(self) -> None:
        """Give everything back, whatever happens meanwhile; takes seconds, at worst minutes."""
        with undisturbed():
            # The scheduler thread ends what it is at: a job that is being submitted has no number
            # yet by which it could be cancelled.
            self._scheduler_thread.shutdown(cancel_futures=True)
            pools = [*self._pools.values()]
            steps: list[Callable[[], object]] = [pool.cancel_all for pool in pools]
            steps += [pool.parsl.shut_down for pool in pools]
            if any(pool.may_have_others for pool in pools):
                steps.append(self._cancel_strays)
            for step in steps:
                try:
                    step()
                except Exception as error:
                    _logger.error("%s: %s", type(error).__name__, error)
            self._file.write([*self._pools.values()], self._bad_nodes, at_once=True)

    def update(self, gcd: int = 0, node: int = 0) -> None:
        """Have the blocks that the work needs; to be called about twice a second.

        Parameters
        ----------
        gcd, node
            Workers that each pool could use now, those at work among them. Tasks that have been
            sent count in any case.

        Raises
        ------
        InputError
            If the scheduler refuses the first block, or node after node refuses its work: none
            can read the store, or each has fewer devices than the site says.
        CampaignStopped
            If there is no hope for workers: blocks end without having done anything, or the
            scheduler keeps refusing them.
        """
        for label, demand in (("gcd", gcd), ("node", node)):
            pool = self._pools[label]
            pool.demand = max(demand, pool.parsl.outstanding)
        news = self._collect()
        now = time.monotonic()
        if now - self._checked < SECONDS_BETWEEN_CHECKS and not news:
            return
        self._checked = now
        for pool in self._pools.values():
            pool.refresh()
        self._keep_off_bad_nodes(now)
        before = self._at_work  # the end of what was at work may not be recorded yet
        self._at_work = {node for pool in self._pools.values() for node in pool.at_work}
        self._health.check(self._site.nodes, self._at_work | before)
        self._grow_and_shrink()
        self._file.write([*self._pools.values()], self._bad_nodes, at_once=news)

    def workers(self, pool: PoolName) -> int:
        """Workers that are connected and take tasks."""
        return self._pools[pool].workers

    def free(self, pool: PoolName) -> int:
        """Workers that wait for a task."""
        return self._pools[pool].free

    def submit(self, pool: PoolName, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run ``function(*arguments)`` on a worker of a pool.

        Raises
        ------
        CampaignStopped
            If the process that would pass it on is gone.
        """
        answer: Future[Any] = Future()
        answer.set_running_or_notify_cancel()  # a task cannot be called back
        self._pools[pool].sent()
        task = self._pools[pool].parsl.submit(run_in_block, pickle.dumps((function, arguments)))
        task.add_done_callback(partial(self._answered, pool, answer))
        return answer

    def run(self, pool: PoolName, groups: Sequence[RankGroup]) -> Future[list[SegmentResult]]:
        """Run segments side by side on a worker of a pool; a lost worker is a result too.

        Raises
        ------
        CampaignStopped
            As :meth:`submit`.
        """
        answer: Future[list[SegmentResult]] = Future()
        answer.set_running_or_notify_cancel()
        task = self.submit(pool, run_rank_groups, self._site.node, groups)
        task.add_done_callback(lambda ended: answer.set_result(results_of(ended, groups)))
        return answer

    def _answered(self, pool: str, answer: Future[Any], task: Future[Any]) -> None:
        error = task.exception()
        if error is None:
            block, result = task.result()
            self._worked.append((pool, block))
            try:
                answer.set_result(pickle.loads(result))
            except Exception as unreadable:  # nobody else would ever report it
                answer.set_exception(unreadable)
            return
        if isinstance(error, ManagerLost):
            lost = error.manager_id.decode()
            if lost not in self._lost:
                _logger.info("the workers of pool %s on %s are lost", pool, error.hostname)
            self._lost[lost] = (pool, error.hostname, time.monotonic())
            self._pools[pool].lost(lost)
        else:
            _logger.info("a task of pool %s has failed: %s: %s", pool, type(error).__name__, error)
        answer.set_exception(error)

    def record(self, node: str, work: Hashable, worked: bool) -> None:
        """Record how work on a node ended; see :meth:`NodeHealth.record`.

        A node on which one segment after the other ends badly, and well elsewhere, gets no more.
        """
        self._health.record(node, work, worked)
        if worked:
            self._bad_nodes.pop(node, None)

    def avoid(self, node: str, reason: str) -> None:
        """Send nothing more to a node that refuses work."""
        if self._health.condemn(node, reason):
            tell(_logger, "%s gets no more work: %s", node, reason)
        self._keep_off_bad_nodes(time.monotonic())

    def waiting(self) -> str:
        """Reason why work waits for workers, in words; empty if none waits."""
        pools = [pool for pool in self._pools.values() if pool.demand > pool.workers]
        blocks = [block for pool in pools for block in pool.blocks if block.connected is None]
        blocks = [b for b in blocks if time.time() - b.since > SECONDS_BEFORE_A_WORD]
        queued = [block for block in blocks if block.state == "pending"]
        if queued:
            first = min(queued, key=lambda block: block.since)
            return f"waiting for {in_queue(len(queued), first.since, first.reason)}"
        if blocks:
            since = elapsed(min(block.since for block in blocks))
            return f"waiting for the workers of {count(len(blocks))}, started {since} ago"
        troubles = [pool.patience.trouble for pool in pools]
        return next((f"{trouble}; trying again" for trouble in troubles if trouble), "")

    def _collect(self) -> bool:
        """Collect what others have answered meanwhile; returns whether blocks came or went."""
        while self._worked:
            label, block = self._worked.popleft()
            self._pools[label].worked(block)
        pools = [*self._pools.values()]
        # A scheduler that has taken one job knows account and queue.
        news = [pool.collect(any(each.patience.was_granted for each in pools)) for pool in pools]
        if self._states is not None and self._states.done():
            states, self._states = self._states.result(), None
            for pool in pools:
                pool.record_states(states)
        jobs = {pool.parsl.label: [block.job.number for block in pool.blocks] for pool in pools}
        now = time.monotonic()
        has_jobs = any(jobs.values()) or any(pool.patience.was_refused for pool in pools)
        if self._states is None and has_jobs and now >= self._next_question:
            self._next_question = now + self._seconds_between_questions
            self._states = self._scheduler_thread.submit(self._ask_states, jobs)
        if any(news):  # what waits, and why, is soon known
            self._next_question = min(self._next_question, now + SECONDS_BEFORE_A_WORD / 2)
        return any(news)

    @property
    def _seconds_between_questions(self) -> float:
        if self._scheduler is not None:
            return SECONDS_BETWEEN_QUESTIONS
        return min(pool.parsl.seconds_between_questions for pool in self._pools.values())

    def _ask_states(self, jobs: dict[str, list[str]]) -> dict[str, JobState]:
        """States of jobs; unknown ones are left out. Run by the scheduler thread."""
        if self._scheduler is None:
            states: dict[str, JobState] = {}
            for label, mine in jobs.items():
                states |= self._pools[label].parsl.states(mine)
            return states
        listed = self._cancel_strays()
        if (listed is None) != self._is_scheduler_silent:
            self._is_scheduler_silent = listed is None
            _logger.info("the scheduler %s", "is silent" if listed is None else "answers again")
        if listed is None:
            return {}
        numbers = [job for pool in jobs.values() for job in pool]
        return {job: listed.get(number_of(job), JobState("ended")) for job in numbers}

    def _cancel_strays(self) -> dict[str, JobState] | None:
        """Cancel jobs of this run that no driver waits for; returns the scheduler's list.

        A driver that was killed has left some. A scheduler that did not answer in time may still
        have taken a job, or may not have cancelled one that was given up. Jobs are recognised by
        the places of their scripts: names alone are also those of the run that this directory may
        be a copy of.
        """
        listed = self._scheduler.jobs() if self._scheduler is not None else None
        if listed is None or self._scheduler is None:
            return None
        pools = self._pools.values()
        known = {number_of(job) for pool in pools for job in pool.parsl.submitted()}
        known -= {number_of(block.job.number) for pool in pools for block in [*pool.ended]}
        strays = [j for j, job in listed.items() if j not in known and self._is_ours(job.script)]
        if new := {*strays} - self._strays:
            _logger.info("jobs that no driver waits for are cancelled: %s", " ".join(sorted(new)))
        self._strays |= new
        self._scheduler.cancel(strays)
        return listed

    def _is_ours(self, script: str) -> bool:
        """Whether this start or an earlier one made a script; a later one has replaced us."""
        start = Path(script).parent.parent
        return (
            start.parent == self._directory.parent
            and start.name.isdigit()
            and int(start.name) <= int(self._directory.name)
        )

    def _keep_off_bad_nodes(self, now: float) -> None:
        for lost, (label, node, when) in [*self._lost.items()]:
            pool = self._pools[label]
            # By then, workers that were lost together have all been missed.
            if now - when > pool.parsl.seconds_to_miss + 2 * SECONDS_BETWEEN_CHECKS:
                del self._lost[lost]
                if pool.was_lost_alone(lost):
                    self._health.record_loss(node)
        held = {node for pool in self._pools.values() for node in pool.keep_off(self._health)}
        new = held - self._bad_nodes.keys()
        self._bad_nodes |= dict.fromkeys(sorted(new), time.time())
        for node in sorted(new):
            _logger.info("%s is taken out of use: %s", node, self._health.reason(node))
        if new:
            self._exclude()

    def _exclude(self) -> None:
        """Have Slurm start the next blocks on other nodes than bad ones."""
        if self._bad_nodes and self._site.scheduler == "slurm":
            for pool in self._pools.values():
                pool.exclude([*self._bad_nodes])

    def _grow_and_shrink(self) -> None:
        pools = [*self._pools.values()]
        most = self._site.blocks
        has = pools[0].standing, pools[1].standing
        targets = apportion((pools[0].needed, pools[1].needed), has, most)
        lacks = [max(0, target - number) for target, number in zip(targets, has, strict=True)]
        room = most - sum(pool.total for pool in pools)
        for pool, lack in zip(pools, lacks, strict=True):
            pool.request(min(lack, room))
            room -= min(lack, room)
        missing = sum(lacks) + sum(has) - most
        for pool, target, number in zip(pools, targets, has, strict=True):
            pool.shrink(number - target, missing)
            if room <= 0:
                pool.renew()


def _check_name(site: Site, directory: Path) -> None:
    """Refuse a directory that would be another one in a shell command or a batch script.

    Raises
    ------
    InputError
        Naming the first character that has a special meaning there.
    """
    strange = re.search(rf"[^{_PLAIN}{_ALSO_PLAIN[site.scheduler]}]", str(directory.absolute()))
    if strange is not None:
        raise InputError(
            f"{directory.absolute().parent}: Parsl, which starts the workers, takes no "
            f"{strange[0]!r} in a path; choose a directory without it"
        )
