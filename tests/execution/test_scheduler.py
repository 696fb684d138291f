"""What Slurm and PBS say of jobs, from their commands' real output."""

import json
import math
import time
from typing import Any

import pytest
from parsl.executors import HighThroughputExecutor

from hydragnn_flow.execution import load_site
from hydragnn_flow.execution.pools import scheduler as module
from hydragnn_flow.execution.pools.parsl_executor import NoAnswer, ParslExecutor, Refused
from hydragnn_flow.execution.pools.scheduler import JobState, Lsf, Pbs, Slurm, seconds_of
from hydragnn_flow.execution.pools.workers_file import (
    WORKERS_FILE,
    elapsed,
    in_queue,
    read_workers,
    remembered_nodes,
)

# squeue of Slurm 22.05.
QUEUE = """\
101|PENDING|Priority|2:00:00|/runs/a/parsl/000/submit_scripts/parsl.gcd.block-0.1795300124.82
102|RUNNING|None|1-01:00:10|/runs/a/parsl/000/submit_scripts/parsl.gcd.block-1.1795300125.11
103|COMPLETING|None|0:00|(null)
104|CONFIGURING|None|2:00:00|/runs/a/parsl/000/submit_scripts/parsl.node.block-1.1795300127.9
105|PENDING|None|UNLIMITED|/home/na\udce9ve|'s job
106|TIMEOUT|None|INVALID|/runs/a/parsl/000/submit_scripts/parsl.gcd.block-9.1795300128.3
107|SUSPENDED|None|30:00|/runs/a/parsl/000/submit_scripts/parsl.gcd.block-2.1795300126.1
"""

# As qstat of PBS Pro prints it, shortened.
JOBS = {
    "timestamp": 1763762591,
    "pbs_version": "2022.1.1",
    "Jobs": {
        "201.polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov": {
            "Job_Name": "parsl.gcd.block-0",
            "job_state": "Q",
            "comment": "Not Running: Insufficient amount of resource:\n\tngpus",
            "Submit_arguments": "-q debug -A ABC123 /runs/a/parsl/000/submit_scripts/block-0",
        },
        "202.polaris-pbs-01": {
            "Job_Name": "parsl.gcd.block-1",
            "job_state": "R",
            "comment": "Job run at Sat Nov 21 at 21:00 on (x3001c0s13b0n0)",
            "Resource_List": {"walltime": "01:00:00", "nodect": 1},
            "resources_used": {"walltime": "00:10:00", "cput": "00:00:01"},
        },
        "204.polaris-pbs-01": {"Job_Name": "parsl.gcd.block-2", "job_state": "S"},
    },
}


def printing(tmp_path, text):
    file = tmp_path / "printed"
    file.write_text(text, errors="surrogateescape")  # names need not be UTF-8
    return f"cat {file}"


def test_slurm_says_what_waits_what_runs_and_what_has_ended(tmp_path, install):
    install("squeue", printing(tmp_path, QUEUE))
    jobs = Slurm().jobs()
    assert jobs is not None
    assert sorted(jobs) == ["101", "102", "103", "104", "105", "107"]
    script = "/runs/a/parsl/000/submit_scripts/parsl.gcd.block-0.1795300124.82"
    assert jobs["101"] == JobState("pending", "Priority", script)
    assert jobs["105"] == JobState("pending", "", "/home/na\N{REPLACEMENT CHARACTER}ve|'s job")
    assert [jobs[job].state for job in ("102", "103", "104")] == ["running"] * 2 + ["pending"]
    assert jobs["102"].ends - time.monotonic() == pytest.approx(90_010, abs=60)
    assert jobs["104"].ends == math.inf, "it has not begun"
    assert jobs["107"][:2] == ("running", "suspended")
    assert [seconds_of(clock) for clock in (" 02:00:00 ", "7:05", "")] == [7200.0, 425.0, None]


def test_pbs_says_what_waits_what_runs_and_what_has_ended(tmp_path, install):
    install("qselect", "true")
    assert Pbs().jobs() == {}
    install("qselect", "echo 201.polaris-pbs-01; echo 202.polaris-pbs-01; echo 203.polaris-pbs-01")
    for told in (json.dumps(JOBS), json.dumps(JOBS).replace(r"\n\t", "\n\t")):  # escaped, or raw
        # One has ended between the two questions, which makes qstat end with an error.
        install("qstat", f"{printing(tmp_path, told)}; exit 153")
        jobs = Pbs().jobs()
        assert jobs is not None
        assert jobs["202"].ends - time.monotonic() == pytest.approx(3000, abs=60)
        assert {number: job._replace(ends=math.inf) for number, job in jobs.items()} == {
            "201": JobState(
                "pending",
                "Not Running: Insufficient amount of resource: ngpus",
                "/runs/a/parsl/000/submit_scripts/block-0",
            ),
            "202": JobState("running"),
            "204": JobState("running", "suspended"),
        }


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 60", "echo no", None])
def test_silence_is_not_taken_for_an_answer(tmp_path, install, monkeypatch, script):
    monkeypatch.setattr(module, "SECONDS_TO_ANSWER", 0.5)
    if script is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        install("squeue", script)
        install("qselect", "echo 101")
        install("qstat", script)
    assert Pbs().jobs() is None
    assert script == "echo no" or Slurm().jobs() is None


@pytest.mark.parametrize(
    ("system", "command"), [(Slurm(), "scancel"), (Pbs(), "qdel"), (Lsf(), "bkill")]
)
def test_jobs_are_cancelled_in_one_go(tmp_path, install, system, command):
    install(command, f"echo $* >> {tmp_path}/cancelled")
    system.cancel([])
    system.cancel(["101", "102"])
    assert (tmp_path / "cancelled").read_text() == "101 102\n"


AWAY = [
    ("slurm", "Unable to contact slurm controller (connect failure)"),
    ("slurm", "Socket timed out on send/recv operation"),
    ("slurm", "Zero Bytes were transmitted or received"),
    ("slurm", "Resource temporarily unavailable"),
    ("slurm", "Slurm backup controller in standby mode"),
    ("slurm", "Communication connection failure"),
    ("slurm", "Unable to establish configuration source"),
    ("slurm", 'Munge encode failed: Failed to access "/run/munge/munge.socket.2"'),
    ("slurm", None),
    ("slurm", ""),
    ("polaris", "cannot connect to server polaris-pbs-01 (errno=111)"),
    ("polaris", "Communication failure."),
    ("polaris", "Premature end of message"),
    ("polaris", None),
]
REFUSED = [
    ("slurm", "Invalid account or account/partition combination specified"),
    ("slurm", "Invalid qos: standby"),
    ("slurm", "invalid partition specified: standby\nsbatch: error: Batch job submission failed"),
    ("slurm", "invalid account: connectomics"),
    ("slurm", "Unknown account: in standby mode"),
    ("slurm", "Unable to open file /scratch/temporary/standby/munge/timeout/submit.sh"),
    ("slurm", "Job violates accounting/QOS policy; please contact help@olcf.gov"),
    ("polaris", "Unknown queue temporary"),
    ("polaris", "Project connectomics is not active"),
]


@pytest.mark.parametrize(
    ("site", "words", "refusal"),
    [*((*case, NoAnswer) for case in AWAY), *((*case, Refused) for case in REFUSED)],
)
def test_a_scheduler_that_is_away_is_told_from_one_that_refuses(
    tmp_path, install, site, words, refusal
):
    """By the words of its commands; by none, where a command hangs or is killed."""
    begins = "sbatch: error: Batch job submission failed: " if site == "slurm" else "qsub: "
    (tmp_path / "words").write_text(f"{begins}{words}\n" if words else "")
    script = "exec sleep 60" if words is None else f"cat {tmp_path}/words >&2; exit 1"
    for command in ("sbatch", "qsub"):
        install(command, script)
    node: Any = {"gcds": 2, "device": "cpu", "memory_gib": 4}
    options: Any = {"node": node} if site == "slurm" else {"account": "A", "partition": "debug"}
    (executor,) = load_site(site, interface="lo", **options).parsl_config(tmp_path).executors
    assert isinstance(executor, HighThroughputExecutor)
    provider: Any = executor.provider
    provider.script_dir, provider.cmd_timeout = str(tmp_path), 1 if words is None else 60
    executor.launch_cmd = "true"
    with pytest.raises(Refused) as refused:
        ParslExecutor(site, executor).launch()
    assert type(refused.value) is refusal
    last = (words or "").rpartition("error: ")[2] or "no reason given"
    assert words is None or last in str(refused.value)


def test_a_damaged_workers_file_is_like_none(tmp_path):
    assert read_workers(tmp_path) == {}
    (tmp_path / WORKERS_FILE).write_text('{"pools": ')
    assert read_workers(tmp_path) == remembered_nodes(tmp_path) == {}
    (tmp_path / WORKERS_FILE).write_text('{"bad_nodes": ["as of an earlier version"]}')
    assert remembered_nodes(tmp_path) == {}


def test_waiting_is_put_in_words(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 100_000.0)
    assert in_queue(1, 99_280.0, "Priority") == "1 block in the queue since 12 min (Priority)"
    assert in_queue(3, 99_990.0, "") == "3 blocks in the queue since 10 s"
    assert elapsed(80_000.0) == "5.6 h"
