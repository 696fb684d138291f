"""Batch jobs that end before the work does."""

import pytest
from slurm_cases import write_campaign, write_site
from slurm_runs import PATIENCE, Campaign

pytestmark = pytest.mark.slurm


def test_blocks_that_end_one_after_the_other_lose_nothing(cluster, tmp_path):
    trials, blocks = 2, 2
    config = write_campaign(tmp_path, trials, epochs=100_000)
    site = write_site(tmp_path, nodes=1, blocks=1, gcds=trials, walltime="00:01:00")
    campaign = Campaign(cluster, config, site)
    campaign.start()

    def went_on():
        trained = {result.number for result in campaign.results() if result.to_epoch}
        return len(trained) == trials and len(campaign.blocks("ended")) >= blocks

    campaign.wait_for("the end of two blocks", went_on, seconds=2 * PATIENCE)
    # A job whose segments have come back ends by itself, or is cancelled: whichever comes first.
    states = {job.state for job in cluster.jobs()[:blocks]}
    assert states <= {"COMPLETED", "COMPLETING", "CANCELLED"}, "ran into its walltime"
    campaign.wait_for(
        "a third", lambda: sum(len(trainers) for trainers in campaign.at_work().values()) == trials
    )
    assert campaign.interrupt() == 130
    campaign.assert_queue_is_empty()
    for number in range(trials):
        results = campaign.of_trial(number)
        assert {result.status for result in results} == {"interrupted"}, "a retry was spent"
        # A process that was not ready when its block ended has come to no epoch.
        trained = [result for result in results if result.to_epoch]
        reached = [0, *(result.to_epoch for result in trained)]
        assert [result.from_epoch for result in trained] == reached[:-1], "trained twice"
        assert reached[-1] > 0
