"""A driver gives back its batch jobs whatever ends it, and only its own; Slurm is faked."""

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pool_cases import PATIENCE, site, update_until
from signal_cases import send, together

from hydragnn_flow.execution import load_site
from hydragnn_flow.execution.pools import parsl_executor as our_executor
from hydragnn_flow.execution.pools.block import Block
from hydragnn_flow.execution.pools.parsl_executor import BatchJob
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.pools.scheduler import JobState
from hydragnn_flow.execution.pools.workers_file import WORKERS_FILE, read_workers
from hydragnn_flow.files import write_json

pytestmark = pytest.mark.xdist_group("processes")
SLURM = replace(site(), scheduler="slurm")
NODE: Any = {"node": {"gcds": 2, "device": "cpu", "memory_gib": 4}, "interface": "lo"}


@pytest.fixture
def quiet(monkeypatch):
    """Nothing of Parsl's is started."""
    monkeypatch.setattr(our_executor.ParslExecutor, "start", lambda *_: None)


def test_a_job_in_the_queue_is_cancelled_when_its_driver_is_told_to_end(tmp_path, install):
    """Guards of a login node do so, and `kill`."""
    install("sbatch", "echo Submitted batch job 77")
    install("squeue", "echo '77|PENDING|Priority|1:00|/somewhere/else'")
    install("scancel", f"echo $* >> {tmp_path}/cancelled")
    install("sacct", f"touch {tmp_path}/asked; sleep 600")  # a database that hangs; nobody needs it
    with (
        pytest.raises(SystemExit) as left,
        Pool(load_site("slurm", **NODE), tmp_path / "run" / "parsl") as pools,
    ):
        update_until(pools, lambda: pools._blocks.blocks, 1)
        send(signal.SIGTERM)
        time.sleep(60)
    assert not (tmp_path / "asked").exists()
    assert (tmp_path / "cancelled").read_text().split() == ["77"]
    assert left.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_job_whose_submission_was_cut_short_is_cancelled_at_the_end(tmp_path, install):
    """What ends a whole session ends its sbatch too, which then has no answer any more."""
    install("sbatch", f"echo $1 > {tmp_path}/taken; kill -KILL $$")
    install(
        "squeue", f'! [ -e {tmp_path}/taken ] || echo "88|PENDING|x|1:00|$(cat {tmp_path}/taken)"'
    )
    install("scancel", f"echo $* >> {tmp_path}/cancelled")
    with Pool(load_site("slurm", **NODE), tmp_path / "run" / "parsl") as pools:
        pools.update(1)
        # It has no answer, which nobody has heard.
        pools._scheduler_thread.submit(int).result(PATIENCE)
    assert (tmp_path / "cancelled").read_text().split() == ["88"]


@pytest.mark.parametrize("fails", ["start", "managers"])
def test_signals_that_come_together_leave_no_job(tmp_path, quiet, monkeypatch, fails):
    """systemd ends a session by SIGTERM and SIGHUP at once; here during a start, or at work."""
    cancelled: list[str] = []

    def both(*_):
        together(signal.SIGTERM, signal.SIGHUP)

    monkeypatch.setattr(our_executor.ParslExecutor, fails, both)
    monkeypatch.setattr(our_executor.ParslExecutor, "submitted", lambda _: ["77"])
    monkeypatch.setattr(
        our_executor.ParslExecutor, "cancel", lambda _, jobs: cancelled.extend(jobs) or True
    )
    with pytest.raises(SystemExit), Pool(site(), tmp_path / "run" / "parsl") as pools:
        pools.update(1)
    assert cancelled == ["77"]
    assert read_workers(tmp_path / "run")


SCRIPT = "submit_scripts/parsl.gcd.block-0.1795300124.82"


def test_jobs_that_a_killed_driver_left_are_cancelled_and_no_others(tmp_path, install, quiet):
    """Not those of the run of which this is a copy, nor of a driver that has replaced this one."""
    parsl = tmp_path / "run" / "parsl"
    (parsl / "000").mkdir(parents=True)
    listed = [
        f"101|RUNNING|None|1:00|{parsl}/000/{SCRIPT}",
        "102|PENDING|Priority|1:00|/usr/bin/somebodys.sh",
        "103|PENDING|Priority|1:00|",
        "104|PENDING|Priority|1:00|(null)",
        f"105|PENDING|Priority|1:00|{parsl}/000",
        f"106|RUNNING|None|1:00|{tmp_path}/original/parsl/000/{SCRIPT}",
        f"107|RUNNING|None|1:00|{parsl}/007/{SCRIPT}",
    ]
    (tmp_path / "listed").write_text("".join(f"{line}\n" for line in listed))
    install("squeue", f"cat {tmp_path}/listed")
    install("scancel", f"echo $* >> {tmp_path}/cancelled")
    with Pool(SLURM, parsl) as pools:
        pools._scheduler_thread.submit(int).result(PATIENCE)  # what it was asked before is done
    assert (tmp_path / "cancelled").read_text().split() == ["101"]


def test_a_job_that_was_given_up_is_cancelled_until_it_is_gone(
    tmp_path, quiet, install, monkeypatch
):
    """The first time the scheduler may not have heard it."""
    install("scancel", f"echo $* >> {tmp_path}/cancelled")
    monkeypatch.setattr(our_executor.ParslExecutor, "submitted", lambda _: ["101", "102"])
    monkeypatch.setattr(our_executor.ParslExecutor, "cancel", lambda *_: True)
    install("squeue", "true")
    with Pool(SLURM, tmp_path / "run" / "parsl") as pools:
        pools._scheduler_thread.submit(int).result(PATIENCE)  # what the start asked is answered
        script = pools._directory / SCRIPT
        install("squeue", f'for job in 101 102; do echo "$job|RUNNING|None|1:00|{script}"; done')
        job = BatchJob("0", "101", "name", tmp_path / "errors")
        pools._blocks.ended.append(Block(job))
        assert set(pools._ask_states(["102"])) == {"102"}
        assert (tmp_path / "cancelled").read_text().split() == ["101"]


def test_a_disk_that_is_away_is_no_reason_to_stop(tmp_path, quiet, install, monkeypatch):
    """The states of jobs are asked for every few seconds."""
    install("squeue", "true")
    with Pool(SLURM, tmp_path / "run" / "parsl") as pools:
        for name in ("glob", "stat", "exists", "iterdir", "read_text"):
            monkeypatch.setattr(Path, name, Mock(side_effect=OSError(116, "Stale file handle")))
        pools._states = pools._scheduler_thread.submit(pools._ask_states, ["101"])
        assert pools._states.result(PATIENCE) == {"101": JobState("ended")}


def test_bad_nodes_are_remembered_by_the_next_driver(tmp_path, quiet, monkeypatch):
    run = tmp_path / "run"
    excluded: list[str] = []
    monkeypatch.setattr(
        our_executor.ParslExecutor, "exclude", lambda _, nodes: excluded.append(",".join(nodes))
    )
    run.mkdir()
    now = time.time()
    bad = {"node1": now - 60, "node2": now - 3600, "cured": now - 2e5, "odd": now + 2e5}
    write_json(run / WORKERS_FILE, {"bad_nodes": bad})
    with Pool(SLURM, run / "parsl") as pools:
        assert excluded == ["node1,node2"]
        assert pools._health.is_suspect("node1")
        assert not pools._health.is_of_no_use("node1"), "where there is no other it is tried"
        assert not any(map(pools._health.is_suspect, ("cured", "odd")))
        pools.record("node1", "a segment", worked=True)
        assert not pools._health.is_suspect("node1")
    assert read_workers(run)["bad_nodes"] == {"node2": bad["node2"]}
