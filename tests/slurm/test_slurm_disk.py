"""The disk of the run directory is full: for a while, and for good."""

import errno
import shutil
import time
from contextlib import contextmanager

import pytest
from slurm_cases import SENDING, write_campaign, write_site
from slurm_runs import Campaign, assert_nothing_lost_or_repeated

pytestmark = pytest.mark.slurm

TRIALS, EPOCHS = 6, 40


def begun(cluster, folder):
    """A campaign on the small disk, with a few segments recorded."""
    config = write_campaign(folder, TRIALS, EPOCHS)
    site = write_site(folder, nodes=1, blocks=1, gcds=2)
    campaign = Campaign(cluster, config, site, cluster.disk / "run")
    campaign.start()
    campaign.wait_for("results", lambda: len(campaign.results()) >= 2)
    return campaign


@contextmanager
def full(disk):
    """Leave not a byte for anybody."""
    ballast = disk / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC
        yield
    finally:
        ballast.unlink()


def test_the_store_is_brought_to_the_nodes_own_disks(cluster, tmp_path):
    config = write_campaign(tmp_path, TRIALS, EPOCHS)
    site = write_site(tmp_path, nodes=4, blocks=2, gcds=1, site=SENDING, scratch=cluster.scratch)
    campaign = Campaign(cluster, config, site)
    campaign.start()
    with campaign.held(4):
        for node in cluster.nodes:
            names = cluster.files(node, cluster.scratch)
            assert any(name.endswith("-shards") for name in names), names
            assert {"data.0", "md.0"} <= names
            assert not any(name.endswith((".part", ".sent")) for name in names)
    campaign.finish()
    assert_nothing_lost_or_repeated(campaign, TRIALS, [EPOCHS])
    assert "its nodes have copies of the store" in campaign.status("--log")


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while_is_waited_for(cluster, tmp_path):
    campaign = begun(cluster, tmp_path)
    with full(cluster.seen_from_login(cluster.disk)):
        campaign.wait_for("a word", lambda: "cannot be written to" in campaign.log.read_text())
        time.sleep(5)
        assert campaign.driver.poll() is None
    campaign.finish()
    assert_nothing_lost_or_repeated(campaign, TRIALS, [EPOCHS])
    shutil.rmtree(campaign.seen)


@pytest.mark.slow
def test_a_disk_that_stays_full_costs_nothing_recorded(cluster, tmp_path):
    campaign = begun(cluster, tmp_path)
    with full(cluster.seen_from_login(cluster.disk)):
        campaign.wait_for("a word", lambda: "cannot be written to" in campaign.log.read_text())
        before, trials = campaign.results(), campaign.trials()
        assert campaign.interrupt() == 130
        campaign.assert_queue_is_empty()
        assert campaign.results() == before
        assert [trial.state for trial in campaign.trials()] == [trial.state for trial in trials]
    campaign.start()
    campaign.finish()
    assert_nothing_lost_or_repeated(campaign, TRIALS, [EPOCHS])
    shutil.rmtree(campaign.seen)
