"""How blocks are shared, judged and kept off bad nodes."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution.pools import block as one_block
from hydragnn_flow.execution.pools import blocks as module
from hydragnn_flow.execution.pools import patience
from hydragnn_flow.execution.pools.blocks import Blocks
from hydragnn_flow.execution.pools.node_health import NodeHealth
from hydragnn_flow.execution.pools.parsl_executor import BatchJob, Manager, Refused, last_words
from hydragnn_flow.execution.pools.scheduler import JobState
from hydragnn_flow.execution.pools.sharing import share

NODES, GCDS = 2, 4


class Machine:
    """A Parsl executor on paper: blocks of two nodes with four workers each."""

    label, nodes_per_block, scripts, is_here = "gcd", NODES, "scripts", False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.outstanding = 0
        self.connected: dict[str, Manager] = {}
        self.launched: list[BatchJob] = []
        self.cancelled: list[str] = []
        self.excluded: list[str] = []
        self.takes_cancels = True
        self.refuses = ""

    def launch(self) -> BatchJob:
        if self.refuses:
            raise Refused(self.refuses)
        number = str(len(self.launched))
        errors = self._folder / f"{number}.err"
        errors.write_text("srun: error: task 0: Exited\n0: no such interface\nsrun: error: bye\n")
        self.launched.append(BatchJob(number, f"10{number}", f"parsl.{number}", errors))
        return self.launched[-1]

    def managers(self) -> list[Manager]:
        return [*self.connected.values()]

    def hold(self, manager: str) -> None:
        self.connected[manager] = self.connected[manager]._replace(held=True)

    def cancel(self, jobs: list[str]) -> bool:
        self.cancelled += jobs
        return self.takes_cancels

    def submitted(self) -> list[str]:
        return [job.number for job in self.launched]

    def exclude(self, nodes: list[str]) -> None:
        self.excluded = list(nodes)

    def connect(self, block: int, tasks: int = 0, idle: float = 0.0, nodes: int = NODES) -> None:
        for node in range(nodes):
            name = f"node{2 * block + node}-abc"
            self.connected[name] = Manager(name, str(block), GCDS, tasks, idle, False, False)

    def change(self, **facts: Any) -> None:
        self.connected = {
            name: manager._replace(**facts) for name, manager in self.connected.items()
        }


class AtOnce:
    """A scheduler thread that has done everything when asked."""

    def submit(self, function: Any, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Refused as error:
            future.set_exception(error)
        return future


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def pool(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Blocks:
    monkeypatch.setattr(module, "SECONDS_IDLE", 0.0)
    monkeypatch.setattr(module, "SECONDS_WITHOUT_WORKERS", 0.0)
    monkeypatch.setattr(module, "SECONDS_PER_NODE", 0.0)
    monkeypatch.setattr(patience, "SECONDS_AFTER_FRUITLESS", (0.0, 0.0))
    return Blocks("here", machine, AtOnce(), GCDS, "pending")  # type: ignore[arg-type]


def have(pool: Blocks, machine: Machine, number: int, tasks: int = 0) -> None:
    """Connect so many blocks."""
    for block in range(number):
        pool.request(1)
        pool.collect(patient=False)
        machine.connect(block, tasks)
    pool.refresh()


def listed(pool: Blocks, state: Any) -> None:
    for _ in range(module.ANSWERS_TO_BELIEVE):
        pool.record_states({block.job.number: JobState(state) for block in pool.blocks})


numbers = st.integers(0, 70)


@given(st.tuples(numbers, numbers), st.tuples(numbers, numbers), st.integers(1, 64))
def test_shares_keep_within_the_site_and_starve_no_pool(
    wanted: tuple[int, int], has: tuple[int, int], most: int
) -> None:
    shares = share(wanted, has, most)
    assert sum(shares) == min(sum(wanted), most)
    for mine, want in zip(shares, wanted, strict=True):
        assert mine <= want
        assert mine >= min(want, 1) or most == 1


def test_a_single_block_stays_where_it_is_used() -> None:
    assert share((3, 1), (0, 1), 1) == (0, 1)
    assert share((3, 1), (1, 0), 1) == (1, 0)
    assert share((0, 1), (1, 0), 1) == (0, 1)


def test_a_pool_needs_as_many_blocks_as_its_work_fills(pool: Blocks, machine: Machine) -> None:
    pool.wanted = 9
    assert pool.needed == 2
    pool.request(1)
    pool.collect(patient=False)
    assert (pool.standing, pool.needed) == (1, 2)  # a block that waits counts already
    pool.wanted = 0
    assert pool.needed == 0


def test_a_node_that_did_not_come_is_made_up_for(
    pool: Blocks, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(pool, machine, 1)
    del machine.connected["node1-abc"]
    pool.refresh()
    pool.wanted = 8
    assert pool.needed == 1
    monkeypatch.setattr(module, "SECONDS_TO_CONNECT", 0.0)
    assert pool.needed == 2


def test_free_workers_are_those_that_take_tasks_and_have_none(
    pool: Blocks, machine: Machine
) -> None:
    machine.outstanding = 6
    have(pool, machine, 2, tasks=1)  # four tasks at work, two on their way
    assert (pool.workers, pool.free) == (16, 10)
    machine.connected["node0-abc"] = machine.connected["node0-abc"]._replace(draining=True)
    pool.refresh()
    assert (pool.workers, pool.free) == (12, 7)
    machine.outstanding = 5  # the one that came back may have been the draining node's
    assert pool.free == 7
    pool.sent()
    machine.outstanding = 6
    assert pool.free == 6


def test_blocks_that_do_least_are_given_back_first(pool: Blocks, machine: Machine) -> None:
    have(pool, machine, 2, tasks=1)
    for name in ("node2-abc", "node3-abc"):
        machine.connected[name] = machine.connected[name]._replace(tasks=0)
    pool.request(1)
    pool.collect(patient=False)
    pool.refresh()
    pool.shrink(3, missing=0)
    pool.refresh()
    assert machine.cancelled == ["102", "101"]  # the one that waits, and the idle one
    pool.collect(patient=False)
    assert [block.job.number for block in pool.blocks] == ["100"]


def test_a_block_at_work_that_another_pool_needs_finishes_its_tasks_first(
    pool: Blocks, machine: Machine
) -> None:
    have(pool, machine, 1, tasks=1)
    pool.shrink(1, missing=0)
    assert not pool.blocks[0].leaving
    pool.shrink(1, missing=1)
    pool.refresh()
    assert (pool.workers, pool.standing, machine.cancelled) == (0, 0, [])
    machine.change(tasks=0)
    pool.refresh()
    assert machine.cancelled == ["100"]


def test_workers_that_answer_know_better_than_a_queue(pool: Blocks, machine: Machine) -> None:
    have(pool, machine, 1)
    listed(pool, "ended")
    pool.refresh()
    assert pool.workers == 8
    assert not machine.cancelled


def test_one_answer_without_a_job_is_not_believed(pool: Blocks, machine: Machine) -> None:
    pool.request(1)
    pool.collect(patient=False)
    pool.record_states({"100": JobState("ended")})
    pool.record_states({"100": JobState("pending", "Priority")})
    pool.record_states({"100": JobState("ended")})
    pool.record_states({})
    assert pool.standing == 1
    pool.record_states({"100": JobState("ended")})
    assert pool.standing == 0


def test_a_job_whose_workers_are_gone_is_cancelled(pool: Blocks, machine: Machine) -> None:
    have(pool, machine, 1)
    machine.connected.clear()
    pool.refresh()
    time.sleep(0.01)
    pool.refresh()
    assert machine.cancelled == ["100"]
    assert pool.total == 0


def test_a_cancellation_that_was_not_heard_is_repeated(pool: Blocks, machine: Machine) -> None:
    machine.takes_cancels = False
    pool.request(1)
    pool.collect(patient=False)
    pool.shrink(1, missing=0)
    pool.collect(patient=False)
    assert (pool.total, pool.standing) == (1, 0)  # it still has its place
    machine.takes_cancels = True
    pool.record_states({"100": JobState("pending")})
    pool.collect(patient=False)
    assert (machine.cancelled, pool.total) == (["100", "100"], 0)


@pytest.mark.parametrize("work", ["none came", "a task was done", "it drained"])
def test_only_blocks_that_were_for_nothing_count_against_a_site(
    pool: Blocks, machine: Machine, work: str
) -> None:
    for number in range(2 * patience.MOST_FRUITLESS):
        pool.request(1)
        pool.collect(patient=False)
        machine.connect(number, tasks=0 if work == "none came" else 1)
        pool.refresh()
        if work == "a task was done":
            pool.worked(str(number))
        if work == "it drained":
            machine.change(draining=True)
            pool.refresh()
        machine.connected.clear()
        pool.refresh()
        listed(pool, "ended")
    assert pool.total == 0


def test_blocks_that_lose_their_workers_before_a_task_is_done_stop_the_campaign(
    pool: Blocks, machine: Machine
) -> None:
    def lose_another() -> None:
        pool.request(1)
        pool.collect(patient=False)
        machine.connect(len(machine.launched) - 1, tasks=1)
        pool.refresh()
        machine.connected.clear()
        pool.refresh()
        listed(pool, "ended")

    lose_another()
    lose_another()
    assert "no such interface" in pool.patience.trouble
    with pytest.raises(CampaignStopped, match=r"3 blocks of its pool 'gcd'.*no such interface"):
        lose_another()


def test_blocks_that_are_for_nothing_stop_no_campaign_that_is_at_work(
    pool: Blocks, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SECONDS_AFTER_FRUITLESS", (0.0, 0.0, 0.0, 60.0))
    have(pool, machine, 1, tasks=1)
    for number in range(1, 5):
        pool.request(1)
        pool.collect(patient=False)
        listed(pool, "ended")
        assert (pool.total, len(machine.launched)) == (1, number + 1)
    pool.request(1)
    assert len(machine.launched) == 5  # but ever more seldom


def test_a_block_that_was_at_work_for_long_was_not_for_nothing(
    pool: Blocks, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments of hours end in no block whose job is preempted, and get on all the same."""
    monkeypatch.setattr(one_block, "SECONDS_OF_WORK", 0.0)
    for number in range(2 * patience.MOST_FRUITLESS):
        pool.request(1)
        pool.collect(patient=False)
        machine.connect(number, tasks=1)
        pool.refresh()
        time.sleep(0.01)
        machine.connected.clear()
        pool.refresh()
        listed(pool, "ended")
    assert pool.total == 0


def started(pool: Blocks, seconds_ago: float, *, running: bool = True) -> None:
    """A block that has run, or waited in the queue, for so long, and no worker of it."""
    pool.request(1)
    pool.collect(patient=False)
    pool.record_states({pool.blocks[-1].job.number: JobState("running" if running else "pending")})
    pool.blocks[-1].entered -= seconds_ago
    pool.refresh()


def test_a_block_in_which_no_worker_connects_ends_and_counts_as_fruitless(
    pool: Blocks, machine: Machine
) -> None:
    """Its environment is on a file system that hangs, say; its nodes would idle for hours."""
    started(pool, 10_000.0, running=False)
    started(pool, module.SECONDS_TO_START - 5)
    assert (pool.total, machine.cancelled) == (2, [])
    started(pool, module.SECONDS_TO_START + 5)
    assert (pool.total, machine.cancelled) == (2, ["102"])
    assert "no worker came within 15 min of its start: no such interface" in pool.patience.trouble
    started(pool, module.SECONDS_TO_START + 5)
    with pytest.raises(CampaignStopped, match=r"3 blocks .* \(no worker came within 15 min"):
        started(pool, module.SECONDS_TO_START + 5)


@pytest.mark.parametrize(("scheduler", "seconds"), [(False, 120.0), (True, 900.0)])
def test_processes_of_this_host_are_waited_for_less_long(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, scheduler: bool, seconds: float
) -> None:
    monkeypatch.setattr(machine, "is_here", True)
    first: Any = "pending" if scheduler else "running"
    pool = Blocks("here", machine, AtOnce(), GCDS, first)  # type: ignore[arg-type]
    started(pool, seconds - 5)
    assert pool.total == 1
    started(pool, seconds + 5)
    assert machine.cancelled == ["101"]


def test_large_blocks_are_given_more_time(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand nodes are started, and let in by Parsl's interchange, one after another."""
    monkeypatch.setattr(machine, "nodes_per_block", 4096)
    pool = Blocks("here", machine, AtOnce(), GCDS, "pending")  # type: ignore[arg-type]
    started(pool, 1200.0)
    assert pool.total == 1
    machine.connect(0, nodes=2000)
    pool.refresh()
    pool.wanted = 4096 * GCDS
    for seconds, needed in ((400.0, 1), (200.0, 2)):
        assert pool.blocks[0].connected is not None
        pool.blocks[0].connected -= seconds
        assert pool.needed == needed


def test_what_was_not_cancelled_when_it_was_given_up_is_cancelled_at_the_end(
    pool: Blocks, machine: Machine
) -> None:
    machine.takes_cancels = False
    have(pool, machine, 1)
    machine.connected.clear()
    pool.refresh()
    time.sleep(0.01)
    pool.refresh()
    assert pool.total == 0
    machine.takes_cancels = True
    pool.cancel_all()
    assert machine.cancelled == ["100", "100"]


def spoil(health: NodeHealth, *nodes: str) -> None:
    """Have enough fail on each of the nodes."""
    for node in nodes:
        while not health.is_suspect(node):
            health.record(node, object(), False)


def test_a_bad_node_gets_no_more_tasks_where_there_are_others(
    pool: Blocks, machine: Machine
) -> None:
    health = NodeHealth()
    have(pool, machine, 1)
    spoil(health, "node0")
    assert pool.keep_off(health) == ["node0"]
    assert pool.workers == GCDS
    assert machine.connected["node0-abc"].held
    spoil(health, "node1")
    assert pool.keep_off(health) == []  # it is all there is


def test_a_node_of_no_use_gets_no_tasks_even_if_it_is_all_there_is(
    pool: Blocks, machine: Machine
) -> None:
    health = NodeHealth()
    have(pool, machine, 1)
    for node in ("node0", "node1"):
        health.condemn(node, "it has no GPU")
        health.record(node, "work", True)  # what was there before may still come to a good end
    assert pool.keep_off(health) == ["node0", "node1"]
    assert pool.workers == 0


def test_a_block_of_bad_nodes_is_given_back(pool: Blocks, machine: Machine) -> None:
    have(pool, machine, 2)
    health = NodeHealth()
    spoil(health, "node0", "node1")
    pool.keep_off(health)
    pool.refresh()
    assert machine.cancelled == ["100"]


def test_workers_that_come_after_their_job_was_cancelled_get_no_tasks(
    pool: Blocks, machine: Machine
) -> None:
    """A job that is cancelled as it starts lives on for as long as the scheduler lets it."""
    pool.request(1)
    pool.collect(patient=False)
    pool.shrink(1, missing=1)
    pool.collect(patient=False)
    machine.connect(0)
    pool.request(1)
    pool.refresh()
    assert not machine.connected["node0-abc"].held  # it might be the job just asked for
    pool.collect(patient=False)
    pool.refresh()
    assert machine.connected["node0-abc"].held


def test_a_bad_node_that_comes_again_is_not_asked_for_at_once(
    pool: Blocks, machine: Machine
) -> None:
    """Where the scheduler cannot be told of bad nodes, it would give them again and again."""
    have(pool, machine, 1, tasks=1)
    health = NodeHealth()
    spoil(health, "node2", "node3")
    pool.request(1)
    pool.collect(patient=False)
    machine.connect(1)
    pool.refresh()
    pool.keep_off(health)
    pool.refresh()
    pool.collect(patient=False)
    assert machine.cancelled == ["101"]
    assert "bad nodes: node2, node3" in pool.patience.trouble
    pool.worked("0")
    pool.request(1)
    assert len(machine.launched) == 2


def test_a_block_that_lost_a_node_is_renewed_for_work_that_needs_both(
    pool: Blocks, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_CONNECT", 0.0)
    have(pool, machine, 1, tasks=1)
    del machine.connected["node1-abc"]
    pool.refresh()
    pool.wanted = 2 * GCDS
    pool.renew()
    assert pool.workers == GCDS  # something is at work, and may be followed by more of its kind
    machine.change(tasks=0)
    pool.refresh()
    pool.wanted = GCDS
    pool.renew()
    assert pool.workers == GCDS
    pool.wanted = 2 * GCDS
    pool.renew()
    pool.refresh()
    assert machine.cancelled == ["100"]
    pool.collect(patient=False)
    pool.request(1)  # it had worked, so there is no reason to wait
    assert len(machine.launched) == 2


def test_blocks_that_never_come_with_all_their_nodes_stop_the_campaign(
    pool: Blocks, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_CONNECT", 0.0)
    pool.wanted = 2 * GCDS

    def come_with_one() -> None:
        pool.request(1)
        pool.collect(patient=False)
        machine.connect(len(machine.launched) - 1, nodes=1)
        pool.refresh()
        pool.renew()
        pool.refresh()
        pool.collect(patient=False)
        machine.connected.clear()

    come_with_one()
    come_with_one()
    assert pool.total == 0
    with pytest.raises(CampaignStopped, match=r"3 blocks .*only 1 of its 2 nodes"):
        come_with_one()


def test_exclusions_that_leave_too_few_nodes_are_dropped(pool: Blocks, machine: Machine) -> None:
    pool.exclude(["node0"])
    assert machine.excluded == ["node0"]
    machine.refuses = "sbatch: error: Requested node configuration is not available"
    pool.request(1)
    pool.collect(patient=False)
    assert machine.excluded == []
    pool.request(1)
    with pytest.raises(InputError, match="node configuration"):
        pool.collect(patient=False)


def test_refusals_beside_a_job_that_waits_are_put_up_with(pool: Blocks, machine: Machine) -> None:
    """A queue may let a user have one job at a time, and that may wait for days."""
    pool.request(1)
    pool.collect(patient=False)
    machine.refuses = "sbatch: error: QOSMaxSubmitJobPerUserLimit"
    for _ in range(3 * len(patience.SECONDS_AFTER_REFUSAL)):
        pool.patience._not_before = 0.0
        pool.request(1)
        pool.collect(patient=True)
    assert pool.total == 1
    assert "QOSMaxSubmitJobPerUserLimit" in pool.patience.trouble


def test_the_loss_of_one_node_is_told_from_that_of_its_job(pool: Blocks, machine: Machine) -> None:
    have(pool, machine, 2)
    del machine.connected["node0-abc"], machine.connected["node2-abc"]
    del machine.connected["node3-abc"]
    pool.refresh()
    assert pool.was_lost_alone("node0-abc")
    assert not pool.was_lost_alone("node2-abc")


def test_last_words_are_the_jobs_own(tmp_path: Path) -> None:
    assert last_words(tmp_path / "none") == "it left no word"
    errors = tmp_path / "errors"
    errors.write_text("0: ModuleNotFoundError: No module named 'parsl'\nsrun: error: task 0: bye\n")
    assert last_words(errors) == "ModuleNotFoundError: No module named 'parsl'"
    errors.write_text("slurmstepd: error: *** JOB 5 CANCELLED DUE TO TIME LIMIT ***\n")
    assert "TIME LIMIT" in last_words(errors)


def test_the_life_of_a_block_is_logged_with_its_reasons(
    pool: Blocks, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hydragnn_flow")
    pool.wanted = 9
    have(pool, machine, 1)
    machine.connected.pop("node1-abc")
    for _ in range(3):  # nothing new, and so not a word
        pool.refresh()
    pool.wanted = 0
    pool.shrink(1, missing=0)
    pool.refresh()
    pool.collect(patient=False)
    assert caplog.messages == [
        "pool gcd asks for 1 block: 9 workers are wanted, 0 blocks work or wait",
        "block 0 (job 100) of pool gcd is submitted",
        "block 0 (job 100) of pool gcd has its first workers, 0 s old, on node0, node1",
        "block 0 (job 100) of pool gcd is given back: only 0 workers are wanted",
        "block 0 (job 100) of pool gcd is cancelled, 0 s old",
    ]


def test_blocks_that_are_refused_or_fruitless_are_logged_with_the_wait(
    pool: Blocks, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hydragnn_flow")
    started(pool, module.SECONDS_TO_START + 5)
    pool.request(1)
    machine.refuses = "maintenance"
    pool.request(1)
    pool.collect(patient=True)
    assert [message for message in caplog.messages if "asks for" not in message][1:] == [
        "block 0 (job 100) of pool gcd is running, 0 s old",
        "block 0 (job 100) of pool gcd has ended: no worker came within 15 min of its start, "
        "0 s old",
        "pool gcd: the last block ended without having done anything (no worker came within 15 min "
        "of its start: no such interface); the next is asked for in 0 s",
        "block 1 (job 101) of pool gcd is submitted",
        "pool gcd: the scheduler refused a block (maintenance); the next is asked for in 10 s",
    ]


def test_a_job_that_cannot_be_cancelled_is_told(
    pool: Blocks,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "SECONDS_BETWEEN_TRIES", 0.0)
    have(pool, machine, 1)
    machine.takes_cancels = False
    pool.cancel_all()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "did not cancel the jobs 100; cancel them yourself" in caplog.text
