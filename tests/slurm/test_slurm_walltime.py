"""Batch jobs that end before the work does."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster
from slurm_cases import UNSHARED, write_campaign, write_site

from runs import Campaign, assert_nothing_lost_or_repeated

pytestmark = pytest.mark.slurm


def test_three_blocks_in_a_row_lose_nothing(cluster: Cluster, tmp_path: Path) -> None:
    trials, epochs = 4, 600
    config = write_campaign(tmp_path, trials, epochs)
    site = write_site(tmp_path, nodes=1, blocks=1, gcds=2, site=UNSHARED, walltime="00:01:00")
    campaign = Campaign(cluster, config, site)
    campaign.start()
    campaign.wait_for(
        "a fourth block", lambda: sum(job.state != "PENDING" for job in cluster.jobs()) > 3
    )
    blocks = [job for job in cluster.jobs() if job.state != "RUNNING"]
    assert not any(job.state == "TIMEOUT" for job in blocks), "did not end by itself"
    campaign.finish()

    assert_nothing_lost_or_repeated(campaign, trials, [epochs])
    for number in range(trials):
        reached = 0
        for result in campaign.of_trial(number):
            assert result.status in ("ok", "interrupted"), result
            assert result.from_epoch == reached, "trained again what it had trained"
            reached = result.to_epoch
    ends = [result.status for result in campaign.results() if result.kind == "trial"]
    assert ends.count("interrupted") >= 3
