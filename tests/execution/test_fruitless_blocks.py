"""Blocks that end without having done anything, on bad nodes, or are refused."""

from typing import Any

import pytest
from block_cases import GCDS, NODES, AtOnce, have, listed, spoil, started, submit

from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution.pools import block as patience
from hydragnn_flow.execution.pools.block import NodeHealth
from hydragnn_flow.execution.pools.blocks import Blocks
from hydragnn_flow.execution.pools.parsl_executor import NoAnswer, Refused
from hydragnn_flow.execution.pools.waits import WAITS


@pytest.mark.parametrize(
    "work", ["none came", "a task was done", "it drained", "a checkpoint", "for long"]
)
def test_only_blocks_that_were_for_nothing_count_against_a_site(pool, machine, monkeypatch, work):
    """Segments of hours end in no block whose job is preempted, and get on all the same."""
    if work == "for long":
        monkeypatch.setattr(WAITS, "work", -1.0)
    for number in range(2 * patience.MOST_FRUITLESS):
        submit(pool)
        machine.connect(number, tasks=0 if work == "none came" else 1)
        if work == "a task was done":
            pool.worked(str(number))
        if work == "a checkpoint":
            pool.worked(f"node{NODES * number}-abc")
        if work == "it drained":
            machine.change(draining=True)
        machine.lose()
        listed(pool, "ended")
    assert pool.total == 0


def test_blocks_that_lose_their_workers_before_a_task_is_done_stop_the_campaign(pool, machine):
    def lose_another():
        submit(pool)
        machine.connect(len(machine.launched) - 1, tasks=1)
        machine.lose()
        listed(pool, "ended")

    lose_another()
    lose_another()
    assert "no such interface" in pool.patience.trouble
    with pytest.raises(CampaignStopped, match=r"3 blocks.*no such interface"):
        lose_another()


def test_blocks_that_are_for_nothing_stop_no_campaign_that_is_at_work(pool, machine, monkeypatch):
    have(pool, machine, 1, tasks=1)
    for number in range(1, 5):
        submit(pool)
        monkeypatch.setattr(WAITS, "fruitless", 60.0 * (number == 4))
        listed(pool, "ended")
        assert (pool.total, len(machine.launched)) == (1, number + 1)
    pool.request(1)
    assert len(machine.launched) == 5  # but ever more seldom


def test_a_block_in_which_no_worker_connects_ends_and_counts_as_fruitless(pool, machine):
    """Its environment is on a file system that hangs, say; its nodes would idle for hours."""
    started(pool, 10_000.0, running=False)
    started(pool, WAITS.start - 5)
    assert (pool.total, machine.cancelled) == (2, [])
    started(pool, WAITS.start + 5)
    assert (pool.total, machine.cancelled) == (2, ["102"])
    assert "no worker came within 15 min of its start: no such interface" in pool.patience.trouble
    started(pool, WAITS.start + 5)
    with pytest.raises(CampaignStopped, match=r"3 blocks .* \(no worker came within 15 min"):
        started(pool, WAITS.start + 5)


@pytest.mark.parametrize(("scheduler", "seconds"), [(False, 120.0), (True, 900.0)])
def test_processes_of_this_host_are_waited_for_less_long(machine, monkeypatch, scheduler, seconds):
    monkeypatch.setattr(machine, "is_here", True)
    first: Any = "pending" if scheduler else "running"
    pool = Blocks("here", machine, AtOnce(), GCDS, first)
    started(pool, seconds - 5)
    assert pool.total == 1
    started(pool, seconds + 5)
    assert machine.cancelled == ["101"]


def test_large_blocks_are_given_more_time(machine, monkeypatch):
    """A thousand nodes are started, and let in by Parsl's interchange, one after another."""
    monkeypatch.setattr(machine, "nodes_per_block", 4096)
    pool = Blocks("here", machine, AtOnce(), GCDS, "pending")
    started(pool, 1200.0)
    assert pool.total == 1
    machine.connect(0, nodes=2000)
    pool.refresh()
    pool.demand = 4096 * GCDS
    for seconds, needed in ((400.0, 1), (200.0, 2)):
        assert pool.blocks[0].connected is not None
        pool.blocks[0].connected -= seconds
        assert pool.needed == needed


def test_refusals_beside_a_job_that_waits_are_put_up_with(pool, machine):
    """A queue may let a user have one job at a time, and that may wait for days."""
    submit(pool)
    machine.refuses = "sbatch: error: QOSMaxSubmitJobPerUserLimit"
    for _ in range(3 * patience.MOST_REFUSALS):
        pool.patience._not_before = 0.0
        submit(pool)
    assert pool.total == 1
    assert "QOSMaxSubmitJobPerUserLimit" in pool.patience.trouble


def test_a_scheduler_that_does_not_answer_is_waited_for_before_the_first_job(pool, machine):
    pool.exclude(["node7"])  # bad nodes that are remembered are no reason for silence
    machine.refuses, machine.refusal = "Unable to contact slurm controller", NoAnswer
    for _ in range(patience.MOST_REFUSALS):
        submit(pool)
        assert "the scheduler does not answer (Unable to contact" in pool.patience.trouble
        assert not pool.patience.may_request
        pool.patience._not_before = 0.0
    assert machine.excluded == ["node7"]
    pool.request(1)
    with pytest.raises(CampaignStopped, match="give the same command again"):
        pool.collect()


def test_a_scheduler_that_answers_at_last_with_a_refusal_ends_the_campaign(pool, machine):
    machine.refuses, machine.refusal = "sbatch: error: Invalid account", NoAnswer
    submit(pool)
    machine.refusal, pool.patience._not_before = Refused, 0.0
    with pytest.raises(InputError, match="gets no workers: sbatch: error: Invalid account; see"):
        submit(pool)


def test_a_bad_node_gets_no_more_tasks_where_there_are_others(pool, machine):
    health = NodeHealth()
    have(pool, machine, 1)
    spoil(health, "node0")
    assert pool.keep_off(health) == ["node0"]
    assert pool.workers == GCDS
    assert machine.connected["node0-abc"].held
    spoil(health, "node1")
    assert pool.keep_off(health) == []  # it is all there is
    health.condemn("node1", "it has no GPU")
    health.record("node1", "work", True)  # what was there before may still come to a good end
    assert pool.keep_off(health) == ["node1"], "a node of no use is not even tried"
    assert pool.workers == 0


def test_a_bad_node_that_comes_again_is_not_asked_for_at_once(pool, machine):
    """Where the scheduler cannot be told of bad nodes, it would give them again and again."""
    have(pool, machine, 1, tasks=1)
    health = NodeHealth()
    spoil(health, "node2", "node3")
    submit(pool)
    machine.connect(1)
    pool.keep_off(health)
    pool.refresh()
    pool.collect()
    assert machine.cancelled == ["101"]
    assert "bad nodes: node2, node3" in pool.patience.trouble
    pool.worked("0")
    pool.request(1)
    assert len(machine.launched) == 2


def test_a_block_that_lost_a_node_is_renewed_for_work_that_needs_both(pool, machine, monkeypatch):
    monkeypatch.setattr(WAITS, "connect", 0.0)
    have(pool, machine, 1, tasks=1)
    machine.lose("node1")
    pool.demand = 2 * GCDS
    pool.renew()
    assert pool.workers == GCDS  # something is at work, and may be followed by more of its kind
    machine.change(tasks=0)
    pool.demand = GCDS
    pool.renew()
    assert pool.workers == GCDS
    pool.demand = 2 * GCDS
    pool.renew()
    pool.refresh()
    assert machine.cancelled == ["100"]
    pool.collect()
    pool.request(1)  # it had worked, so there is no reason to wait
    assert len(machine.launched) == 2


def test_blocks_that_never_come_with_all_their_nodes_stop_the_campaign(pool, machine, monkeypatch):
    monkeypatch.setattr(WAITS, "connect", 0.0)
    pool.demand = 2 * GCDS

    def come_with_one():
        submit(pool)
        machine.connect(len(machine.launched) - 1, nodes=1)
        pool.renew()
        pool.refresh()
        pool.collect()
        machine.lose()

    come_with_one()
    come_with_one()
    assert pool.total == 0
    with pytest.raises(CampaignStopped, match=r"3 blocks .*only 1 of its 2 nodes"):
        come_with_one()


def test_exclusions_that_leave_too_few_nodes_are_dropped(pool, machine):
    pool.exclude(["node0"])
    assert machine.excluded == ["node0"]
    machine.refuses = "sbatch: error: Requested node configuration is not available"
    submit(pool)
    assert machine.excluded == []
    pool.request(1)
    with pytest.raises(InputError, match="node configuration"):
        pool.collect()


def test_the_loss_of_one_node_is_told_from_that_of_its_job(pool, machine):
    have(pool, machine, 2)
    machine.lose("node0", "node2", "node3")
    assert pool.was_lost_alone("node0-abc")
    assert not pool.was_lost_alone("node2-abc")
