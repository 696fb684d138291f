"""The driver dies, waits or is stopped; what it has in the queue is looked after."""

import shutil
import signal

import pytest
from slurm_cases import write_campaign, write_site
from slurm_runs import Campaign, assert_nothing_lost_or_repeated

pytestmark = pytest.mark.slurm


def test_a_killed_driver_goes_on_beside_its_orphans(cluster, tmp_path):
    trials, epochs = 8, 60
    config = write_campaign(tmp_path, trials, epochs)
    site = write_site(tmp_path, nodes=2, blocks=2, gcds=2)
    campaign = Campaign(cluster, config, site)
    for ended in (0, 3):
        campaign.start()
        campaign.wait_for("results", lambda ended=ended: len(campaign.results()) >= ended)
        with campaign.held(1):
            campaign.kill()
    left = {job.number for job in cluster.squeue()}
    assert left
    campaign.start()
    campaign.finish()
    assert_nothing_lost_or_repeated(campaign, trials, [epochs])
    for number in range(trials):
        assert {result.status for result in campaign.of_trial(number)} <= {"ok", "interrupted"}
    states = {job.number: job.state for job in cluster.jobs()}
    assert {states[number] for number in left} <= {"CANCELLED", "COMPLETED", "FAILED"}


def test_a_queue_that_starts_nothing_is_explained_and_left_clean(cluster, tmp_path):
    everything = f"--nodes={len(cluster.nodes)}"
    other = cluster.ask(
        "sbatch", "--parsable", everything, "--output=/dev/null", "--wrap", "sleep 600"
    ).strip()
    campaign = Campaign(cluster, write_campaign(tmp_path, 4, 2), write_site(tmp_path, gcds=1))
    campaign.start()
    campaign.wait_for(
        "a block in the queue", lambda: any(block["reason"] for block in campaign.blocks("pending"))
    )
    names = cluster.ask("squeue", "--noheader", "--format=%j").split()
    assert any(name.startswith("run.block-0.") for name in names), "named after its directory"
    status = " ".join(campaign.status().split())
    assert "in the queue since" in status
    assert "(Resources)" in status or "(Priority)" in status
    campaign.wait_for("a word", lambda: "in the queue since" in campaign.log.read_text())
    assert campaign.interrupt() == 130
    assert "continues from here" in campaign.log.read_text()
    assert cluster.wait_until(lambda: [job.number for job in cluster.squeue()] == [other])
    assert "no driver is at work" in campaign.status()
    cluster.scancel(other)
    campaign.start()
    campaign.finish()


@pytest.mark.parametrize("workflow", [False, True])
def test_a_driver_that_is_told_to_end_leaves_nothing_in_the_queue(cluster, tmp_path, workflow):
    """Neither its own jobs, nor does a driver of a copy of its directory take them from it."""
    cluster.ask("sbatch", "--nodes=4", "--output=/dev/null", "--wrap", "sleep 600")
    campaign = Campaign(cluster, write_campaign(tmp_path, 4, 2), write_site(tmp_path, gcds=1))
    campaign.start(workflow=workflow)
    campaign.wait_for("both blocks in the queue", lambda: len(cluster.squeue()) > 2)
    if workflow:
        mine = {job.number for job in cluster.squeue()}
        shutil.copytree(campaign.path, tmp_path / "copy")
        copy = Campaign(cluster, campaign.config, campaign.site, tmp_path / "copy")
        copy.start()
        copy.wait_for("its own block", lambda: len(cluster.squeue()) > len(mine))
        assert copy.interrupt() == 130
        assert mine <= {job.number for job in cluster.squeue()}
    number = signal.SIGTERM if workflow else signal.SIGHUP
    assert campaign.interrupt(number) == 128 + number
    assert cluster.wait_until(lambda: len(cluster.squeue()) == 1)


# The second job is taken, and nobody told.
VAGUE = """\
#!/bin/sh
set -e
{sbatch} "$@"
echo job >> {folder}/submitted
[ "$(wc -l < {folder}/submitted)" != 2 ] || {{
    echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv" >&2
    exit 1
}}
"""


def test_a_job_that_was_taken_and_called_refused_is_cancelled(cluster, tmp_path):
    commands = tmp_path / "bin"
    commands.mkdir()
    sbatch = commands / "sbatch"
    sbatch.write_text(VAGUE.format(sbatch=shutil.which("sbatch"), folder=tmp_path))
    sbatch.chmod(0o755)
    config = write_campaign(tmp_path, 6, 60)
    site = write_site(tmp_path, nodes=2, blocks=2, gcds=1)
    # Every character that a path may have with Slurm.
    campaign = Campaign(cluster, config, site, tmp_path / "läufe" / "12:30,lr=1e-3@a+b_c.d")
    campaign.start("sh", "-c", f'PATH={commands}:$PATH exec "$@"', "driver")
    campaign.finish()
    stray = cluster.jobs()[1]
    assert stray.state == "CANCELLED"
