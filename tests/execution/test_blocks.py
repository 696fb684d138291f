"""How many blocks a pool needs, which it gives back, what it believes and logs of them."""

import time

from block_cases import GCDS, NODES, have, listed, submit

from hydragnn_flow.execution.pools.parsl_executor import last_words
from hydragnn_flow.execution.pools.scheduler import JobState
from hydragnn_flow.execution.pools.waits import WAITS
from hydragnn_flow.log import NOTICE
from hydragnn_flow.placement import Host


def test_a_pool_needs_as_many_blocks_as_its_work_fills(pool, machine, monkeypatch):
    pool.demand = 9
    assert pool.needed == 2
    submit(pool)
    assert (pool.standing, pool.needed) == (1, 2)  # a block that waits counts already
    machine.connect(0, nodes=1)
    pool.demand = 8
    assert pool.needed == 1
    monkeypatch.setattr(WAITS, "connect", 0.0)
    assert pool.needed == 2  # a node that did not come is made up for
    pool.demand = 0
    assert pool.needed == 0


def test_hosts_are_the_nodes_that_take_tasks(pool, machine):
    have(pool, machine, 2)
    everywhere = [Host(f"node{node}-abc", str(node // NODES)) for node in range(4)]
    assert (pool.workers, pool.hosts()) == (16, everywhere)
    machine.change("node0", draining=True)
    assert (pool.workers, pool.hosts()) == (12, everywhere[1:])
    pool.lost(everywhere[3].name)
    assert (pool.workers, pool.hosts()) == (8, everywhere[1:3])


def test_a_block_takes_no_more_tasks_when_its_end_is_near(pool, machine):
    """By this host's clock: a node's own may be wrong."""
    have(pool, machine, 2)
    now = time.monotonic()
    for block, left in zip(pool.blocks, (89.0, 91.0), strict=True):
        block.entered = now - 7000.0
        pool.record_states({block.job.number: JobState("running", ends=now + left)})
    assert {host.ends for host in pool.hosts()} == {now + 89.0, now + 91.0}
    machine.change(tasks=1)
    assert {host.ends for host in pool.hosts()} == {now + 91.0}
    assert pool.standing == 1, "another is asked for in its place"
    assert not machine.cancelled, "what is at work ends by itself"
    machine.change(tasks=0)
    assert machine.cancelled == [pool.blocks[0].job.number]
    # A scheduler that says nothing of it any more leaves it as it was.
    pool.record_states({pool.blocks[1].job.number: JobState("running")})
    assert pool.blocks[1].ends == now + 91.0


def test_a_block_that_was_just_given_work_is_not_idle(pool, machine):
    """Though the interchange does not know of it yet."""
    have(pool, machine, 1)
    machine.change(idle_seconds=1000.0)
    pool.submit("node1-abc", abs, -1)
    pool.refresh()
    (block,) = pool.blocks
    assert block.tasks == 1 and not block.is_idle(1.0)
    assert pool.at_work == {"node1"}


def test_blocks_that_do_least_are_given_back_first(pool, machine):
    have(pool, machine, 2, tasks=1)
    submit(pool)
    machine.change("node2", "node3", tasks=0)
    pool.shrink(3)
    pool.refresh()
    assert machine.cancelled == ["102", "101"]  # the one that waits, and the idle one
    pool.collect()
    assert [block.job.number for block in pool.blocks] == ["100"]


def test_workers_that_answer_know_better_than_a_queue(pool, machine):
    have(pool, machine, 1)
    listed(pool, "ended")
    pool.refresh()
    assert pool.workers == 8
    assert not machine.cancelled


def test_one_answer_without_a_job_is_not_believed(pool, machine):
    submit(pool)
    pool.record_states({"100": JobState("ended")})
    pool.record_states({"100": JobState("pending", "Priority")})
    pool.record_states({"100": JobState("ended")})
    pool.record_states({})
    assert pool.standing == 1
    pool.record_states({"100": JobState("ended")})
    assert pool.standing == 0


def test_a_cancellation_that_was_not_heard_is_repeated(pool, machine):
    machine.takes_cancels = False
    submit(pool)
    pool.shrink(1)
    pool.collect()
    assert (pool.total, pool.standing) == (1, 0)  # it still has its place
    machine.takes_cancels = True
    pool.record_states({"100": JobState("pending")})
    pool.collect()
    assert (machine.cancelled, pool.total) == (["100", "100"], 0)


def test_a_job_whose_workers_are_gone_is_cancelled_and_again_at_the_end(pool, machine):
    machine.takes_cancels = False
    have(pool, machine, 1)
    machine.lose()
    time.sleep(0.01)
    pool.refresh()
    assert machine.cancelled == ["100"] and pool.total == 0
    machine.takes_cancels = True
    pool.cancel_all()
    assert machine.cancelled == ["100", "100"]


def test_workers_that_come_after_their_job_was_cancelled_get_no_tasks(pool, machine):
    """A job that is cancelled as it starts lives on for as long as the scheduler lets it."""
    submit(pool)
    pool.shrink(1)
    pool.collect()
    pool.request(1)
    machine.connect(0)
    assert not machine.connected["node0-abc"].held  # it might be the job just asked for
    pool.collect()
    pool.refresh()
    assert machine.connected["node0-abc"].held


def test_blocks_that_wait_for_the_store_are_kept_though_some_of_their_nodes_did_not_come(
    pool, machine, monkeypatch
):
    have(pool, machine, 1)
    machine.connect(0, idle=1000.0)
    machine.lose("node1")
    monkeypatch.setattr(WAITS, "connect", 0.0)
    monkeypatch.setattr(WAITS, "idle", 20.0)
    pool.demand = 2 * GCDS
    pool.blocks[0].held_back = time.monotonic()
    pool.renew()
    assert not pool.blocks[0].leaving
    pool.blocks[0].held_back -= WAITS.idle  # it had its store, and still no work
    pool.renew()
    assert pool.blocks[0].leaving


def test_last_words_are_the_jobs_own(tmp_path):
    assert last_words(tmp_path / "none") == "it left no word"
    errors = tmp_path / "errors"
    errors.write_text("0: ModuleNotFoundError: No module named 'parsl'\nsrun: error: task 0: bye\n")
    assert last_words(errors) == "ModuleNotFoundError: No module named 'parsl'"
    errors.write_text("slurmstepd: error: *** JOB 5 CANCELLED DUE TO TIME LIMIT ***\n")
    assert "TIME LIMIT" in last_words(errors)


def test_what_is_missing_of_a_block_is_told_once(pool, machine, caplog):
    caplog.set_level(NOTICE, "hydragnn_flow")
    submit(pool)
    machine.connect(0, nodes=1)
    assert caplog.messages == []
    assert pool.blocks[0].connected is not None
    pool.blocks[0].connected -= WAITS.connect + 5
    for _ in range(3):
        pool.refresh()
    incomplete = (
        "block 0 (job 100) is not whole: 1 of its 2 nodes did not connect within 2 min of the "
        f"first; {pool.blocks[0].job.errors} may say why"
    )
    assert caplog.messages == [incomplete]
    pool.record_states({"100": JobState("running", "suspended")})
    machine.lose()
    for _ in range(3):
        pool.refresh()
    lost = "block 0 (job 100) is lost: none of its nodes gives a sign of life"
    assert caplog.messages == [incomplete, f"{lost} (the scheduler says: suspended)"]
    assert [event for _, event in pool.events] == caplog.messages


def test_nodes_and_blocks_that_leave_as_their_job_ends_are_not_called_lost(pool, machine, caplog):
    caplog.set_level(NOTICE, "hydragnn_flow")
    have(pool, machine, 1, tasks=1)
    block, now = pool.blocks[0], time.monotonic()
    block.entered, block.ends = now - 3600.0, now + 92.0  # two seconds more than nodes drain
    machine.lose("node1")
    machine.lose()
    assert block.gone is not None and caplog.messages == []


def test_a_job_that_cannot_be_cancelled_is_told(pool, machine, monkeypatch, caplog):
    monkeypatch.setattr(WAITS, "cancel", 0.0)
    have(pool, machine, 1)
    machine.takes_cancels = False
    pool.cancel_all()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "did not cancel the jobs 100; cancel them yourself" in caplog.text
