"""Batch jobs that end before the work does."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster
from slurm_cases import UNSHARED, write_campaign, write_site

from runs import Campaign, assert_nothing_lost_or_repeated

pytestmark = pytest.mark.slurm


def test_three_blocks_in_a_row_lose_nothing(cluster: Cluster, tmp_path: Path) -> None:
    trials, epochs = 2, 1400
    config = write_campaign(tmp_path, trials, epochs)
    site = write_site(tmp_path, nodes=1, blocks=1, gcds=2, site=UNSHARED, walltime="00:01:00")
    campaign = Campaign(cluster, config, site)
    campaign.start()
    campaign.finish(seconds=1200)
    assert_nothing_lost_or_repeated(campaign, trials, [epochs])
    for number in range(trials):
        *before, last = campaign.of_trial(number)
        assert len(before) >= 3
        assert {result.status for result in before} == {"interrupted"}, "a retry was spent"
        # A process that was not ready when its block ended has come to no epoch.
        trained = [result for result in (*before, last) if result.to_epoch]
        reached = [0, *(result.to_epoch for result in trained)]
        assert [result.from_epoch for result in trained] == reached[:-1], "trained twice"
