"""A script's apps and its campaign share one set of batch jobs."""

import sys

import pytest
from slurm_cases import write_site
from slurm_runs import Campaign

pytestmark = pytest.mark.slurm


def test_a_killed_script_goes_on_with_one_set_of_jobs(cluster, tmp_path):
    site, folder = write_site(tmp_path, nodes=2, blocks=2, gcds=2), tmp_path / "kept"
    script = Campaign(cluster, tmp_path / "labelled.yaml", site, folder / "run")

    def start() -> None:
        words = [sys.executable, "workflows/label_and_train.py", "--labels", "12"]
        script.driver = cluster.popen([*words, "--site", site, "--run-dir", folder], script.log)

    start()
    script.wait_for("two results of trials", lambda: len(script.results()) >= 2)
    with script.held(1):
        assert 0 < len(cluster.squeue()) <= 2
        script.kill()
    left = {job.number for job in cluster.squeue()}
    assert left
    start()
    script.wait_for("new jobs", lambda: {job.number for job in cluster.squeue()} - left)
    assert cluster.wait_until(lambda: len(cluster.squeue()) <= 2)
    script.finish()
    assert "energy_mean" in script.log.read_text()
    trained = [
        (result.number, result.to_epoch)
        for result in script.results()
        if result.kind == "trial" and result.status == "ok"
    ]
    assert len(trained) == len(set(trained)), "trained again what was on record"
    states = {job.number: job.state for job in cluster.jobs()}
    assert {states[number] for number in left} <= {"CANCELLED", "COMPLETED", "FAILED"}
