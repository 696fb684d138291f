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
    for user, number in enumerate(used):
        if number < needs[user]:  # nobody has two more than one who needs more
            assert max(used) <= number + 1
            assert given_to[last] == used[last]


@pytest.fixture
def shared() -> Iterator[Callable[..., tuple[SharedPool, list[Share]]]]:
    with ExitStack() as stack:

        def make(*demands: int) -> tuple[SharedPool, list[Share]]:
            nothing: Any = None  # nodes are divided without it
            pool = SharedPool(nothing, GCDS)
            shares = [stack.enter_context(pool.share(Path("parsl"))) for _ in demands]
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
    campaign._running = {job: name for name, job in jobs.items()}
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
    campaign._running = {Future(): name for name in ("node0", "node1", "node2", "node4", "node5")}
    apps.demand = 1
    assert names(pool, apps) == {"node3"}


def test_a_pool_that_is_closed_ends_its_users(shared):
    pool, [share] = shared(1)
    pool.close()
    with pytest.raises(CampaignStopped, match="start it again"):
        share.update(1)
