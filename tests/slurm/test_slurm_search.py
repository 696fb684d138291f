"""Searches over all GCDs of a cluster: every one has work, and none is given twice."""

from itertools import pairwise, product

import pytest
from slurm_cases import SHARED, SPACE, write_campaign, write_site
from slurm_runs import (
    Campaign,
    assert_nothing_lost_or_repeated,
    assert_one_at_a_time,
    spans,
)

pytestmark = pytest.mark.slurm


def test_every_gcd_of_two_blocks_trains_one_trial_after_the_other(cluster, tmp_path):
    trials, epochs, gcds = 20, 12, 2
    config = write_campaign(tmp_path, trials, epochs)
    campaign = Campaign(cluster, config, write_site(tmp_path, gcds=gcds))
    campaign.start()
    campaign.finish()
    assert_nothing_lost_or_repeated(campaign, trials, [epochs])
    # The members train in the jobs of the search.
    assert [job.n_nodes for job in cluster.jobs()] == [2, 2]

    results = [result for result in campaign.results() if result.kind == "trial"]
    places = spans(results)
    assert set(places) == {(node, str(gcd)) for node in cluster.nodes for gcd in range(gcds)}
    assert_one_at_a_time(results)
    # While trials are yet to begin all have work: no GCD begins twice in another's pause.
    last = max(result.started for result in results)
    for place, times in places.items():
        for (_, ended), (started, _) in pairwise([*times, (last, last)]):
            for other, others in places.items():
                begun = [begin for begin, _ in others if ended < begin < started]
                assert len(begun) <= 1, f"{place} had nothing to do while {other} had"


def test_shared_and_several_gcds_at_once(cluster, tmp_path):
    epochs, most = 40, 4
    space = SPACE | {"Resources.gcds": {"choices": [1, 2, most]}}
    # There are eight GCDs: more trials of one than that, for some to share.
    widths = (most, *(1 for _ in range(12)), 2, most, 2, most, 2, most, 1)
    trials = len(widths)
    enqueue = [{"Resources.gcds": width} for width in widths]
    config = write_campaign(tmp_path, trials, epochs, space=space, enqueue=enqueue)
    campaign = Campaign(cluster, config, write_site(tmp_path, gcds=2, site=SHARED))
    campaign.start()
    campaign.finish()
    assert_nothing_lost_or_repeated(campaign, trials, [epochs])

    results = [result for result in campaign.results() if result.kind == "trial"]
    gangs = [result for result in results if len(result.gcds) > 1]
    shared = [result for result in results if result.together > 1]
    assert gangs
    assert shared
    assert any(
        one.started < other.ended and other.started < one.ended for one in gangs for other in shared
    ), "never at the same time"
    for gang in gangs:
        wanted = gang.parameters["Resources.gcds"]
        assert len(set(gang.places)) == wanted == len(gang.gcds)
    for result in shared:
        assert len(result.gcds) == 1
        (place,) = result.places
        there = [r for r in results if r.started <= result.started < r.ended]
        guests = [r for r in there if place in r.places]
        assert len(guests) <= 4, guests
    # A gang has its GCDs for itself.
    for gang, other in product(gangs, results):
        if gang is not other and gang.started < other.ended and other.started < gang.ended:
            assert not set(gang.places) & set(other.places), (gang, other)
