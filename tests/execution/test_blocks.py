"""How many blocks a pool needs, which it gives back, and what it believes of them."""

from __future__ import annotations

import time

import pytest
from block_cases import Machine, have, listed

from hydragnn_flow.execution.pools import blocks as module
from hydragnn_flow.execution.pools.blocks import Blocks
from hydragnn_flow.execution.pools.scheduler import JobState


def test_a_pool_needs_as_many_blocks_as_its_work_fills(pool: Blocks, machine: Machine) -> None:
    pool.demand = 9
    assert pool.needed == 2
    pool.request(1)
    pool.collect(patient=False)
    assert (pool.standing, pool.needed) == (1, 2)  # a block that waits counts already
    pool.demand = 0
    assert pool.needed == 0


def test_a_node_that_did_not_come_is_made_up_for(
    pool: Blocks, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(pool, machine, 1)
    del machine.connected["node1-abc"]
    pool.refresh()
    pool.demand = 8
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
