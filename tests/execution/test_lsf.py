"""LSF: what its jobs ask for, and jobs that stand-ins for its programs run on this machine."""

import math

import pytest
from driver_cases import PATIENCE
from pool_cases import update_until

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import load_site
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.pools.scheduler import Lsf
from hydragnn_flow.execution.pools.waits import WAITS
from hydragnn_flow.execution.sites.preview import preview
from hydragnn_flow.testing.sites import SiteSuite

pytestmark = pytest.mark.xdist_group("processes")
SITE = '''"""Toy: two CPU slots a node, LSF."""

from hydragnn_flow.execution.sites import Node, Options, Site, batch_site, guessed_gcd, lsf_jobs

NODE = Node(("0", "1"), guessed_gcd("cpu", 4), 1, "cpu")


def site(options: Options) -> Site:
    run = options.resolved("toy", walltime="00:30:00", account="ABC123", partition="gpu")
    provider = lsf_jobs(run, cores_per_node=SLOTS, directives=["#BSUB -x"])
    return batch_site("toy", NODE, run, provider, scheduler="lsf")
'''
# Programs of LSF, of which `bjobs` prints what IBM's pages and users of it say, and Open MPI's.
BSUB = """cat > {jobs}/101
setsid bash {jobs}/101 < /dev/null > {jobs}/out 2>&1 &
echo $! > {jobs}/pid
echo 'Job <101> is submitted to queue <gpu>.'"""
BJOBS = """kill -0 $(cat {jobs}/pid) || {{ echo 'No unfinished job found' >&2; exit 255; }}
echo "101|RUN|1:30 L|$(sed -n 's/^#BSUB -o //p' {jobs}/101)|-" """
BKILL = "echo $* >> {jobs}/killed; kill -TERM -$(cat {jobs}/pid)"
MPIRUN = 'while [ $# -gt 2 ]; do shift; done; exec "$@"'


@pytest.fixture
def toy(tmp_path):
    def write(slots):
        path = tmp_path / "toy.py"
        path.write_text(SITE.replace("SLOTS", str(slots)))
        return path

    return write


class TestBySlots(SiteSuite):
    options = {"interface": "lo", "nodes": 4, "blocks": 2}  # noqa: RUF012 -- as a user writes it

    @pytest.fixture(params=[2, None])
    def slots(self, request):
        return request.param

    @pytest.fixture(autouse=True)
    def here(self, toy, slots):
        self.name = toy(slots)

    def test_its_jobs_ask_for_slots_or_for_nodes(self, site, slots):
        _, command, script, _ = preview(site)
        asked = ["-n 4", '-R "span[ptile=2]"'] if slots else ["-nnodes 2"]
        lines = [line for line in script.splitlines() if line.startswith("#BSUB ")]
        of_all = ["-x", "-rn", "-P ABC123", "-q gpu", *asked]
        assert lines[:2] == ["#BSUB -W 30", f"#BSUB -J {command.partition('scripts/')[2][:-7]}"]
        assert lines[4:] == [f"#BSUB {option}" for option in of_all]
        assert command.startswith("bsub < RUN_DIR/parsl/000/submit_scripts/RUN_DIR.block-0.")
        mpirun = "mpirun -np $WORKERCOUNT --map-by ppr:1:node --bind-to none /bin/bash "
        jsrun = "jsrun -n 2 -r 1 -a 1 -c ALL_CPUS -g ALL_GPUS --bind=none /bin/bash "
        assert (mpirun if slots else jsrun) in script


def test_jobs_run_are_watched_and_are_given_back(tmp_path, toy, install, monkeypatch):
    monkeypatch.setattr(WAITS, "questions", 1.0)
    (jobs := tmp_path / "jobs").mkdir()
    for name, text in {"bsub": BSUB, "bjobs": BJOBS, "bkill": BKILL, "mpirun": MPIRUN}.items():
        install(name, text.format(jobs=jobs) if name != "mpirun" else text)
    with Pool(load_site(toy(2), interface="lo"), tmp_path / "run" / "parsl") as pool:
        update_until(pool, lambda: pool.workers() == 2, 2)
        assert pool.submit(pow, 2, 5).result(PATIENCE) == 32
        update_until(pool, lambda: pool.hosts()[0].ends < math.inf, 2)
        (block,) = pool._blocks.blocks
        assert block.job.errors.name.startswith("run.block-0.")
    assert (jobs / "killed").read_text() == "101\n"
    assert str(block.job.errors) in (jobs / "101").read_text()


def test_a_refusal_is_told_in_the_words_of_bsub(tmp_path, toy, install):
    install("bsub", "echo 'gpu: No such queue. Job not submitted.' >&2; exit 255")
    install("bjobs", "true")
    with (
        pytest.raises(InputError, match="gets no workers: gpu: No such queue"),
        Pool(load_site(toy(2), interface="lo"), tmp_path / "run" / "parsl") as pool,
    ):
        update_until(pool, lambda: False, 1)


def test_lsf_says_what_waits_what_runs_and_what_has_ended(tmp_path, install):
    script = "/runs/a/parsl/000/submit_scripts/a.block-0.17.submit.stdout"
    (tmp_path / "printed").write_text(
        f"101|PEND|-|{script}|New job is waiting for scheduling; 3 hosts\n"
        f"102|RUN|1:30 L|{script}|-\n103|SSUSP|0:05:00 L|-|-\n104|EXIT|-|-|-\n105|UNKWN|-|-|-\n"
    )
    install("bjobs", f"cat {tmp_path}/printed")
    jobs = Lsf().jobs()
    assert jobs is not None
    assert jobs.pop("101")[:3] == ("pending", "New job is waiting for scheduling; 3 hosts", script)
    assert {job: state[:2] for job, state in jobs.items()} == {
        "102": ("running", ""),
        "103": ("running", "suspended"),
        "105": ("running", ""),
    }
    ends = [jobs[job].ends - jobs["103"].ends for job in ("102", "105")]
    assert ends == [pytest.approx(5100, abs=60), math.inf]
    install("bjobs", "echo No unfinished job found >&2; exit 255")
    assert Lsf().jobs() == {}
    install("bjobs", "echo Failed in an LSF library call >&2; exit 255")
    assert Lsf().jobs() is None
