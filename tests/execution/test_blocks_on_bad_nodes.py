"""Blocks on nodes that are bad, lost or excluded."""

import pytest
from block_cases import GCDS, have, spoil, submit

from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution.pools.block import NodeHealth
from hydragnn_flow.execution.pools.waits import WAITS


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
    pool.refresh()
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
    del machine.connected["node1-abc"]
    pool.refresh()
    pool.demand = 2 * GCDS
    pool.renew()
    assert pool.workers == GCDS  # something is at work, and may be followed by more of its kind
    machine.change(tasks=0)
    pool.refresh()
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
        pool.refresh()
        pool.renew()
        pool.refresh()
        pool.collect()
        machine.connected.clear()

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
    del machine.connected["node0-abc"], machine.connected["node2-abc"]
    del machine.connected["node3-abc"]
    pool.refresh()
    assert pool.was_lost_alone("node0-abc")
    assert not pool.was_lost_alone("node2-abc")
