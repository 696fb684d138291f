"""LSF: what its jobs ask for, and jobs that stand-ins for its programs run on this machine."""

import math

import pytest
from driver_cases import PATIENCE
from page_cases import blocks
from pool_cases import update_until

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import load_site
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.pools.scheduler import JobState, Lsf
from hydragnn_flow.execution.pools.waits import WAITS
from hydragnn_flow.execution.sites.preview import preview

pytestmark = pytest.mark.xdist_group("processes")
[PAGE] = [block.text for block in blocks("python") if block.text.startswith("# lsf.py\n")]
HERE = PAGE.replace('"cuda", 72), 16, "cuda"', '"cpu", 4), 1, "cpu"').replace('"ib0"', '"lo"')
# Programs of LSF, of which `bjobs` prints what IBM's pages and users of it say, and Open MPI's.
PROGRAMS = {
    "bsub": "cat > 101; setsid bash 101 < /dev/null > out 2>&1 & echo $! > pid\n"
    "echo 'Job <101> is submitted to default queue <normal>.'",
    "bjobs": 'echo "101|RUN|1:30 L|$(sed -n "s/^#BSUB -o //p" 101)|-"',
    "bkill": "echo $* >> killed; kill -TERM -$(cat pid)",
    "mpirun": 'while [ $# -gt 2 ]; do shift; done; exec "$@"',
}


@pytest.fixture
def here(tmp_path):
    (tmp_path / "here.py").write_text(HERE)
    return load_site(tmp_path / "here.py", account="ABC123")


def test_jsrun_starts_an_agent_on_each_of_whole_nodes(tmp_path):
    (tmp_path / "whole.py").write_text(HERE.replace("cores_per_node=64, ", ""))
    site = load_site(tmp_path / "whole.py", account="ABC123", nodes=4, blocks=2)
    script = preview(site).script
    assert "\n#BSUB -rn\n#BSUB -P ABC123\n#BSUB -nnodes 2\n" in script
    assert "jsrun -n 2 -r 1 -a 1 -c ALL_CPUS -g ALL_GPUS --bind=none /bin/bash " in script


def test_jobs_run_are_watched_and_are_given_back(tmp_path, here, install, monkeypatch):
    monkeypatch.setattr(WAITS, "questions", 1.0)
    monkeypatch.chdir(tmp_path)
    for name, script in PROGRAMS.items():
        install(name, script)
    with Pool(here, tmp_path / "run" / "parsl") as pool:
        update_until(pool, lambda: pool.workers() == 4, 4)
        assert pool.submit(pow, 2, 5).result(PATIENCE) == 32
        update_until(pool, lambda: pool.hosts()[0].ends < math.inf, 4)
        (block,) = pool._blocks.blocks
        assert block.job.errors.name.startswith("run.block-0.")
    assert (tmp_path / "killed").read_text() == "101\n"
    assert f"#BSUB -e {block.job.errors}\n" in (tmp_path / "101").read_text()


def test_a_refusal_is_told_in_the_words_of_bsub(tmp_path, here, install):
    install("bsub", "echo 'gpu: No such queue. Job not submitted.' >&2; exit 255")
    install("bjobs", "true")
    with (
        pytest.raises(InputError, match="gets no workers: gpu: No such queue"),
        Pool(here, tmp_path / "run" / "parsl") as pool,
    ):
        update_until(pool, lambda: False, 1)


def test_lsf_says_what_waits_what_runs_and_what_has_ended(tmp_path, install):
    (tmp_path / "printed").write_text(
        "101|PEND|-|/runs/a.submit.stdout|New job is waiting for scheduling; 3 hosts\n"
        "102|RUN|1:30 L|-|-\n103|SSUSP|0:05:00 L|-|-\n104|EXIT|-|-|-\n105|UNKWN|-|-|-\n"
    )
    install("bjobs", f"cat {tmp_path}/printed")
    jobs = Lsf().jobs() or {}
    ends = [jobs[job].ends - jobs["103"].ends for job in ("102", "105")]
    assert ends == [pytest.approx(5100, abs=60), math.inf]
    reason = "New job is waiting for scheduling; 3 hosts"
    assert {job: state._replace(ends=math.inf) for job, state in jobs.items()} == {
        "101": JobState("pending", reason, "/runs/a.submit.stdout"),
        "102": JobState("running", "", "-"),
        "103": JobState("running", "suspended", "-"),
        "105": JobState("running", "", "-"),
    }
    for said, jobs in {
        "No unfinished job found": {},
        "Failed in an LSF library call": None,
    }.items():
        install("bjobs", f"echo {said} >&2; exit 255")
        assert Lsf().jobs() == jobs
