"""What is taken away from a running campaign: nodes, blocks, workers, memory."""

from contextlib import contextmanager

import pytest
from slurm_cases import SPACE, write_campaign, write_site
from slurm_runs import Campaign, assert_nothing_lost_or_repeated

pytestmark = pytest.mark.slurm

GANG = 4
# GCDs of each trial. The gang is asked for first: it has the block of which both nodes come first,
# and the others fill a node. Asked for after one of them, it might wait for that one's block while
# the rest take a node of the other, and they all stand still.
WIDTHS = (GANG, 1, 1, 1)
GCDS_OF_A_NODE = WIDTHS.count(1)
TRIALS, EPOCHS = len(WIDTHS), 120
NO_FAULT = ("ok", "lost", "interrupted")


def begun(cluster, folder):
    """A campaign of single trials and gangs on two blocks of two nodes."""
    space = SPACE | {"Resources.gcds": {"choices": [1, GANG]}}
    enqueue = [{"Resources.gcds": width} for width in WIDTHS]
    # Each GCD of the gang has a part of the network, and writes a part of the checkpoint.
    training = {"sharding": {"strategy": "FULL_SHARD"}}
    config = write_campaign(folder, TRIALS, EPOCHS, space=space, enqueue=enqueue, training=training)
    campaign = Campaign(cluster, config, write_site(folder, gcds=GCDS_OF_A_NODE))
    campaign.start()
    return campaign


@contextmanager
def a_gang_and_others(campaign):
    """Hold all trials while they train; who works where, and a node of the gang."""
    with campaign.held(TRIALS) as held:
        at_work = {node: set(campaign.at_work()[node]) for node in held}
        yield at_work, next(node for node, there in at_work.items() if WIDTHS.index(GANG) in there)


def assert_went_on_elsewhere(campaign, hit, lost_nodes):
    """Trials that were hit went on on other nodes, the others never noticed."""
    assert hit
    for number in range(TRIALS):
        mine = campaign.of_trial(number)
        assert {result.status for result in mine} <= set(NO_FAULT), mine
        if number not in hit:
            assert [result.status for result in mine] == ["ok"], mine
            continue
        first, *_, last = mine
        assert first.status != "ok", mine
        assert last.status == "ok"
        assert last.from_epoch > 0, "began again from nothing"
        nodes = {last.node, *(gcd.rpartition("/")[0] for gcd in last.gcds)} - {""}
        assert not nodes & lost_nodes
        assert len(last.gcds) == WIDTHS[number], "the gang came back in part"


def test_a_node_that_loses_power_costs_its_own_segments_only(cluster, tmp_path):
    campaign = begun(cluster, tmp_path)
    with a_gang_and_others(campaign) as (at_work, node):
        cluster.power_off(node)
    campaign.finish()
    assert_went_on_elsewhere(campaign, at_work[node], {node})
    assert_nothing_lost_or_repeated(campaign, TRIALS, [EPOCHS])


@pytest.mark.slow
def test_a_block_that_is_cancelled_costs_its_own_segments_only(cluster, tmp_path):
    campaign = begun(cluster, tmp_path)
    with a_gang_and_others(campaign) as (at_work, node):
        (job,) = [job for job in cluster.squeue() if node in cluster.nodes_of(job)]
        hit = {number for other in cluster.nodes_of(job) for number in at_work[other]}
        cluster.scancel(job.number)
    campaign.finish()
    assert_went_on_elsewhere(campaign, hit, set())
    assert_nothing_lost_or_repeated(campaign, TRIALS, [EPOCHS])


@pytest.mark.slow
def test_a_divided_member_goes_on_where_a_node_of_it_is_lost(cluster, tmp_path):
    """Each GCD of a member holds a part of its network, and another member goes on meanwhile."""
    # Members that would take long get several GCDs; nothing is learned, so that they end after the
    # first epochs.
    config = write_campaign(
        *(tmp_path, 2, 1),
        member_epochs=20_000,
        space={"Architecture.num_conv_layers": {"int": [1, 2]}},
        architecture={"hidden_dim": 32},
        training={
            "sharding": {"strategy": "FULL_SHARD"},
            "batch_size": 16,
            "EarlyStopping": True,
            "patience": 60,
            "Optimizer": {"type": "SGD", "learning_rate": 1e-15},
        },
        structures=64,
        atoms=32,
    )
    campaign = Campaign(cluster, config, write_site(tmp_path, blocks=1, gcds=GANG // 2))
    campaign.start()
    with campaign.held(2, "member") as held:
        node = next(node for node, there in held.items() if there)
        hit = {*held[node]}
        cluster.power_off(node)
    campaign.finish()
    ended = [result for result in campaign.results() if result.kind == "member"]
    assert {result.status for result in ended} <= set(NO_FAULT), ended
    for member in hit:
        first, *_, last = [result for result in ended if result.number == member]
        assert first.status != "ok" and last.status == "ok", ended
        assert last.from_epoch > 0, "began again from nothing"
        assert node not in {where for where, _ in last.places}
    whole = [result for result in ended if result.status == "ok"]
    assert {result.number for result in whole} == {0, 1}
    assert max(len(result.gcds) for result in ended) > 1, "none was divided"


@pytest.mark.slow
def test_a_node_that_cannot_keep_the_store_gets_no_more_work(cluster, tmp_path):
    trials, epochs = 8, 30
    config = write_campaign(tmp_path, trials, epochs, mode="random")
    site = write_site(tmp_path, nodes=2, blocks=2, gcds=2, scratch=cluster.scratch / "ours")
    campaign = Campaign(cluster, config, site)
    bad = cluster.nodes[0]
    cluster.on_node(bad, "touch", cluster.scratch / "ours")  # where a directory should be
    campaign.start()
    campaign.finish()
    assert_nothing_lost_or_repeated(campaign, trials, [epochs])
    refused = [result for result in campaign.results() if result.status == "refused"]
    assert refused
    assert {result.node for result in refused} == {bad}
    assert len(refused) <= 4, "work was sent there after it had refused twice"
    assert all("cannot be created" in result.reason for result in refused)
    assert [*campaign.workers()["bad_nodes"]] == [bad]


@pytest.mark.slow
def test_a_trainer_that_is_killed_costs_its_own_segment_only(cluster, tmp_path):
    trials, epochs, gcds = 4, 60, 3
    config = write_campaign(tmp_path, trials, epochs)
    site = write_site(tmp_path, nodes=1, blocks=1, gcds=gcds)
    campaign = Campaign(cluster, config, site)
    campaign.start()
    with campaign.held(gcds) as held:
        trainers = held[cluster.nodes[0]]
        killed = min(trainers)
        trainers[killed].kill()  # as the system does when memory runs out
    campaign.finish()
    for number in range(trials):
        statuses = [result.status for result in campaign.of_trial(number)]
        assert statuses == (["killed", "ok"] if number == killed else ["ok"])
    assert campaign.of_trial(killed)[1].from_epoch > 0
    assert_nothing_lost_or_repeated(campaign, trials, [epochs])


def test_an_agent_that_is_killed_costs_the_segments_of_its_node_only(cluster, tmp_path):
    trials, epochs, gcds = 4, 60, 2
    config = write_campaign(tmp_path, trials, epochs)
    site = write_site(tmp_path, nodes=2, blocks=2, gcds=gcds)
    campaign = Campaign(cluster, config, site)
    campaign.start()
    with campaign.held(2 * gcds) as held:
        hit = set(held[cluster.nodes[0]])
        trainer = held[cluster.nodes[0]][min(hit)]
        trainer.parent().kill()
    campaign.finish()
    assert hit
    for number in range(trials):
        first, *after = campaign.of_trial(number)
        assert first.status == ("lost" if number in hit else "ok"), first
        assert [result.status for result in after] == ["ok"] * (number in hit)
        assert all(result.from_epoch > 0 for result in after)
    assert_nothing_lost_or_repeated(campaign, trials, [epochs])


def test_a_trial_that_runs_out_of_memory_is_resized_alone(cluster, tmp_path):
    """Trainers have about half a GiB before a step; one of 32 structures takes as much again."""
    large, sizes = 1, (4, 32, 4, 4, 4)
    config = write_campaign(
        tmp_path,
        len(sizes),
        epochs=2,
        space={"Training.batch_size": {"choices": sorted(set(sizes))}},
        enqueue=[{"Training.batch_size": size} for size in sizes],
        architecture={"hidden_dim": 256},
        structures=64,
        atoms=64,
    )
    limit = "ulimit -d 800000"  # KiB of each process
    site = write_site(tmp_path, nodes=1, blocks=1, gcds=4, worker_init=limit)
    campaign = Campaign(cluster, config, site)
    campaign.start()
    campaign.finish()
    for number, size in enumerate(sizes):
        *before, last = campaign.of_trial(number)
        assert last.status == "ok"
        assert {r.status for r in before} == ({"out_of_memory"} if number == large else set())
        # Of the same steps: all that may differ is in how many parts they are taken.
        assert all(r.parameters == {"Training.batch_size": size} for r in (*before, last))
    assert_nothing_lost_or_repeated(campaign, len(sizes), [2])
