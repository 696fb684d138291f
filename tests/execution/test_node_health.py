"""Which failures count against nodes, and which against work."""

import heapq
import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.jobs import MOST_LOSSES, MOST_TRIES, Retries
from hydragnn_flow.execution.pools.block import MOST_BAD_ENDS, MOST_REFUSING, NodeHealth


@pytest.mark.parametrize(
    ("records", "bad"),
    [
        ([("node1", work, False) for work in range(3)], False),
        ([("node1", work, False) for work in range(4)], True),
        # Work that goes well clears a node, and what fails again counts once.
        ([("node1", work, work == 3) for work in range(7)], False),
        ([("node1", 1, False)] * 20, False),
        # What fails on a second node excuses the first.
        ([(f"node{n}", k, False) for n, k in ((1, 1), (1, 2), (1, 3), (2, 1), (1, 4))], False),
    ],
)
def test_a_node_is_bad_where_one_thing_after_the_other_fails(records, bad):
    health = NodeHealth()
    for record in records:
        health.record(*record)
    assert health.is_suspect("node1") is bad
    assert not health.is_suspect("node2")


def test_two_bad_nodes_do_not_excuse_each_other_for_long():
    health = NodeHealth()
    for work in range(4 * int(MOST_BAD_ENDS)):
        assert not health.is_suspect("node1")
        health.record("node1", work, False)
        health.record("node2", work, False)
    assert health.is_suspect("node1") and health.is_suspect("node2")


def test_a_node_that_loses_its_workers_twice_is_bad():
    health = NodeHealth()
    health.record_loss("node1")
    assert not health.is_suspect("node1") and "lost 1 times" in health.reason("node1")
    health.record_loss("node1")
    assert health.is_suspect("node1")


def test_nodes_that_refuse_while_others_work_are_to_blame():
    health = NodeHealth()
    for node in ("node1", "node2", "node3", "node4"):
        assert health.condemn(node, f"{node} has no GPU")
        health.record("good", node, True)
        health.check(8, set())
    assert not health.condemn("node1", "node1 has no GPU")
    assert health.is_suspect("node1")


@pytest.mark.parametrize("nodes", [1, 2, 8])
def test_nodes_that_refuse_one_after_the_other_are_not(nodes):
    health = NodeHealth()
    for node in range(min(nodes, MOST_REFUSING)):
        health.check(nodes, set())
        health.condemn(f"node{node}", f"node{node} has no GPU")
        health.condemn(f"node{node}", f"node{node} has no GPU")
    health.check(nodes, {"node0", "good"})  # whose first segment may take hours
    with pytest.raises(InputError, match=f"^node{node} has no GPU"):
        health.check(nodes, {"node0"})


def campaign(nodes, faulty, bad, seed=3):
    """Five thousand trials of ten minutes or so on nodes of eight GCDs, as the driver sends them.

    On a bad node all fail within seconds, and elsewhere the share of faulty ones.

    Returns
    -------
    tuple
        Nodes that are held, failures of each, and trials that are given up without fault.
    """
    chance, health = random.Random(seed), NodeHealth()
    free = [f"node{number}" for number in range(nodes)] * 8
    held: set[str] = set()
    failures: Counter[str] = Counter()
    tries: Counter[int] = Counter()
    again: list[int] = []
    running: list[tuple[float, int, str, int, bool]] = []
    order, trials, now = itertools.count(), iter(range(5_000)), 0.0
    is_faulty = [chance.random() < faulty for _ in range(5_000)]
    while True:
        chance.shuffle(free)
        free = [node for node in free if node not in held]
        while free and (trial := again.pop(0) if again else next(trials, None)) is not None:
            node = free.pop()
            works = node not in bad and not is_faulty[trial]
            seconds = chance.lognormvariate(6.4, 0.6) if works else chance.uniform(5, 20)
            heapq.heappush(running, (now + seconds, next(order), node, trial, works))
        if not running:
            victims = [trial for trial, number in tries.items() if number == MOST_TRIES]
            return held, failures, sum(not is_faulty[trial] for trial in victims)
        now = max(now + 0.5, running[0][0])
        while running and running[0][0] <= now:
            _, _, node, trial, works = heapq.heappop(running)
            health.record(node, trial, works)
            free.append(node)
            if not works:
                failures[node] += 1
                tries[trial] += 1
                again += [trial] if tries[trial] < MOST_TRIES else []
        held |= {node for node in {*free} - held if health.is_suspect(node)}


@pytest.mark.parametrize(("faulty", "most"), [(0.05, 0), (0.1, 2)])
def test_faulty_trials_cost_hardly_a_good_node(faulty, most):
    held, failures, _ = campaign(128, faulty, set())
    assert failures.total() > 2 * 5_000 * faulty
    assert len(held) <= most


@pytest.mark.parametrize("number", [1, 8])
def test_bad_nodes_are_held_before_they_spoil_much(number):
    """What has begun on their other GCDs is spoilt as well, by then."""
    bad = {f"node{each}" for each in range(number)}
    held, failures, victims = campaign(128, 0.05, bad)
    assert bad <= held and len(held - bad) <= 1
    assert max(failures[node] for node in bad) <= MOST_BAD_ENDS + 8
    assert victims == 0


@given(st.lists(st.booleans(), max_size=20))
def test_work_is_given_up_after_its_own_failures_or_many_losses(own):
    retries = Retries()
    for is_own in own:
        retries = retries.after("killed" if is_own else "lost")
    assert retries.total == len(own)
    tries = sum(own)
    assert retries.is_hopeless == (tries >= MOST_TRIES or len(own) - tries >= MOST_LOSSES)


def test_work_that_never_came_to_a_node_is_not_counted():
    """Its batch job was ending; thousands of such nodes can refuse it in a moment."""
    assert Retries().after("interrupted", "") == Retries()
    assert Retries().after("interrupted", "node1").losses == 1


def test_a_second_failure_on_a_node_is_the_nodes_while_there_are_others():
    retries = Retries()
    for node in ("bad", "bad", "bad", "good"):
        retries = retries.after("killed", node, of_nodes=2)
    assert (retries.tries, retries.losses) == (2, 2)
    assert retries.after("killed", "good", of_nodes=2).is_hopeless
