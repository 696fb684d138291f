"""Nodes that apps and campaigns share."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.errors import CampaignStopped
from hydragnn_flow.execution.pools.shared import Share, SharedPool, fair
from hydragnn_flow.placement import Host

NEEDS = st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any)
HOSTS = [Host(f"node{number}", "0") for number in range(6)]
GCDS = 4


@given(NEEDS, st.integers(0, 60))
def test_nodes_are_divided_fairly(needs, nodes):
    given_to = fair(needs, nodes)
    last = max(user for user, need in enumerate(needs) if need)
    assert sum(given_to) == nodes
    used = [min(*pair) for pair in zip(needs, given_to, strict=True)]
    assert used[:last] == given_to[:last]  # only the last gets what nobody needs
    if any(needs[1:]):
        assert used[0] == min(needs[0], (nodes + 1) // 2)
    for user in range(1, len(needs)):  # one after another
        assert used[user] == min(needs[user], nodes - sum(used[:user]))


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Callable[..., tuple[SharedPool, list[Share]]]]:
    with ExitStack() as stack:

        def make(*demands: int) -> tuple[SharedPool, list[Share]]:
            nothing: Any = None  # nodes are divided without it
            pool = SharedPool(nothing, GCDS)
            shares = [stack.enter_context(pool.share(tmp_path / "parsl")) for _ in demands]
            stack.callback(pool.close)  # there is no job to be stopped
            for share, demand in zip(shares, demands, strict=True):
                share.demand = demand
            return pool, shares

        yield make


def names(pool: SharedPool, share: Share) -> set[str]:
    return {host.name for host in pool.divide(HOSTS, share)}


def test_a_campaign_alone_has_every_node(shared):
    pool, [apps, campaign] = shared(0, 3)
    assert names(pool, campaign) == {host.name for host in HOSTS}
    assert not names(pool, apps)


def test_a_node_changes_hands_when_its_jobs_have_ended(shared):
    pool, [apps, campaign] = shared(0, 100)
    jobs: dict[str, Future[Any]] = {name: Future() for name in names(pool, campaign)}
    campaign._running = {job: (name, "", True) for name, job in jobs.items()}
    apps.demand = 2 * GCDS
    assert not names(pool, apps)
    left = names(pool, campaign)
    assert len(left) == 4
    for name in {*jobs} - left:
        del campaign._running[jobs[name]]
        assert name in names(pool, apps)
        assert not names(pool, apps) & names(pool, campaign)
    apps.demand = 0
    assert names(pool, campaign) == {*jobs}


def test_idle_nodes_are_given_first(shared):
    pool, [apps, campaign] = shared(0, 100)
    names(pool, campaign)
    busy = ("node0", "node1", "node2", "node4", "node5")
    campaign._running = {Future(): (name, "", True) for name in busy}
    apps.demand = 1
    assert names(pool, apps) == {"node3"}


def test_the_node_that_is_idle_first_is_given(shared):
    pool, [apps, campaign] = shared(0, 100)
    jobs: dict[str, Future[Any]] = {name: Future() for name in names(pool, campaign)}
    campaign._running = {job: (name, "", True) for name, job in jobs.items()}
    apps.demand = 1
    assert not names(pool, apps)
    del campaign._running[jobs["node3"]]
    assert names(pool, apps) == {"node3"}


def test_each_user_asks_for_nodes_of_its_own(shared):
    pool, _ = shared(1, 1)
    assert pool.demand == 2 * GCDS


def test_jobs_of_a_user_that_has_left_keep_their_node(shared, tmp_path):
    pool, [apps] = shared(100)
    with pool.share(tmp_path / "parsl") as campaign:
        campaign._running = {Future(): ("node0", "", True)}
        pool.why = CampaignStopped("closed")  # nothing is there to be stopped
    assert names(pool, apps) == {host.name for host in HOSTS[1:]}


def test_a_pool_that_is_closed_ends_its_users(shared):
    pool, [share] = shared(1)
    pool.close()
    with pytest.raises(CampaignStopped, match="start it again"):
        share.update(1)
