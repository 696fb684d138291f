"""What is logged of blocks, and what their jobs said last."""

import logging
import time

from block_cases import have, submit

from hydragnn_flow.execution.pools.parsl_executor import last_words
from hydragnn_flow.execution.pools.scheduler import JobState
from hydragnn_flow.execution.pools.waits import WAITS
from hydragnn_flow.log import NOTICE


def test_last_words_are_the_jobs_own(tmp_path):
    assert last_words(tmp_path / "none") == "it left no word"
    errors = tmp_path / "errors"
    errors.write_text("0: ModuleNotFoundError: No module named 'parsl'\nsrun: error: task 0: bye\n")
    assert last_words(errors) == "ModuleNotFoundError: No module named 'parsl'"
    errors.write_text("slurmstepd: error: *** JOB 5 CANCELLED DUE TO TIME LIMIT ***\n")
    assert "TIME LIMIT" in last_words(errors)


def test_the_life_of_a_block_is_logged_with_its_reasons(pool, machine, caplog):
    caplog.set_level(logging.INFO, "hydragnn_flow")
    pool.demand = 9
    have(pool, machine, 1)
    machine.connected.pop("node1-abc")
    for _ in range(3):  # nothing new, and so not a word
        pool.refresh()
    pool.demand = 0
    pool.shrink(1)
    pool.refresh()
    pool.collect()
    assert caplog.messages == [
        "asks for 1 block: work for 9 workers, 0 blocks work or wait",
        "block 0 (job 100) is submitted",
        "block 0 (job 100) has its first workers, 0 s old, on node0, node1",
        "block 0 (job 100) has lost nodes, which give no sign of life: node1",
        "block 0 (job 100) is given back: there is work for 0 workers",
        "block 0 (job 100) is cancelled, 0 s old",
    ]


def test_what_is_missing_of_a_block_is_told_once(pool, machine, monkeypatch, caplog):
    caplog.set_level(NOTICE, "hydragnn_flow")
    submit(pool)
    machine.connect(0, nodes=1)
    pool.refresh()
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
    machine.connected.clear()
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
    del machine.connected["node1-abc"]
    pool.refresh()
    machine.connected.clear()
    pool.refresh()
    assert block.gone is not None and caplog.messages == []


def test_a_job_that_cannot_be_cancelled_is_told(pool, machine, monkeypatch, caplog):
    monkeypatch.setattr(WAITS, "cancel", 0.0)
    have(pool, machine, 1)
    machine.takes_cancels = False
    pool.cancel_all()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "did not cancel the jobs 100; cancel them yourself" in caplog.text
