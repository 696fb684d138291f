"""A script's apps and its campaign share one set of batch jobs."""

import sys
from pathlib import Path

import pytest
import yaml
from cluster import Cluster
from slurm_cases import write_site
from slurm_runs import Campaign

pytestmark = pytest.mark.slurm


# Prints the time in which the login node connects to a node's slurmd [s].
CONNECTS = """import socket, time; began = time.monotonic()
socket.create_connection(("10.177.0.4", 16818)); print(time.monotonic() - began)"""


@pytest.fixture
def cluster(machine):
    """Nodes at a distance of 5 to 20 ms."""
    with Cluster(latency=0.005) as cluster:
        assert float(cluster.ask(sys.executable, "-c", CONNECTS)) > 0.04
        yield cluster


def test_a_killed_script_goes_on_with_one_set_of_jobs(cluster, tmp_path):
    """Its trials are gangs over two nodes, whose addresses differ and whose channels are secret."""
    site, folder = write_site(tmp_path, nodes=4, blocks=2, gcds=1), tmp_path / "kept"
    values = yaml.safe_load(Path("configs/labelled.yaml").read_text("utf-8"))
    values |= {"network": str(Path("configs/potential.json").resolve()), "resources": {"gcds": 2}}
    (config := tmp_path / "labelled.yaml").write_text(yaml.safe_dump(values))
    script = Campaign(cluster, config, site, folder / "run")

    def start() -> None:
        words = [sys.executable, "workflows/label_and_train.py", "--config", config]
        where = ["--labels", "12", "--site", site, "--run-dir", folder]
        script.driver = cluster.popen([*words, *where], script.log)

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
    assert any(len({node for node, _ in result.places}) == 2 for result in script.results())
    assert len(trained) == len(set(trained)), "trained again what was on record"
    states = {job.number: job.state for job in cluster.jobs()}
    assert {states[number] for number in left} <= {"CANCELLED", "COMPLETED", "FAILED"}
