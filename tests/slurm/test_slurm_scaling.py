"""A scaling study over the nodes of a batch job, whose driver is killed on the way."""

import sys

import pytest
from campaign_cases import CONFIG
from slurm_cases import write_site
from slurm_runs import PATIENCE

from hydragnn_flow.config import RunConfig
from hydragnn_flow.data import prepare_store
from hydragnn_flow.report.scaling import Study
from hydragnn_flow.run_directory import RunDirectory

pytestmark = pytest.mark.slurm


@pytest.mark.slow
def test_a_study_over_four_nodes(cluster, tmp_path):
    """Started as the workflow, and once more as the command after it was killed."""
    # A batch has a graph for each of four GCDs, and there is a batch for each of them.
    training = {**CONFIG["network"]["Training"], "batch_size": 4}
    config = RunConfig.model_validate(
        {**CONFIG, "network": {**CONFIG["network"], "Training": training}}
    )
    run = RunDirectory(tmp_path / "run")
    run.record_start(config)
    prepare_store(config.data, 4.0, None, 0, run.store).close()
    site = write_site(tmp_path, nodes=4, blocks=1, gcds=1)
    words = [run.path, "--site", site, "--seconds", "0.2", "--gcds", "1,4"]
    log, file = tmp_path / "log", run.path / "scaling" / "slurm.json"
    driver = cluster.popen([sys.executable, "workflows/scaling_study.py", *words], log)
    assert cluster.wait_until(file.exists, PATIENCE), log.read_text()
    driver.kill()
    driver.wait()
    before = Study.read(file)

    driver = cluster.popen([sys.executable, "-m", "hydragnn_flow", "scaling", *words], log)
    assert driver.wait(PATIENCE) == 0, log.read_text()
    study = Study.read(file)
    assert study.points[: len(before.points)] == before.points, "was measured again"
    found = {(point.gcds, point.batches): point for point in study.points}
    assert found.keys() == {(1, 1), (4, 1), (4, 4)}
    for point in study.points:
        assert point.nodes == point.gcds
        assert point.profile is not None, point.fault
        assert point.profile.ranks == point.gcds
        assert (point.profile.parts.exchanging > 0) == (point.gcds > 1)
    assert file.with_suffix(".png").exists()
    assert not (run.path / "profile").exists()
    assert cluster.wait_until(lambda: not cluster.squeue()), cluster.ask("squeue")
