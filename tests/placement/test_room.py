"""Ranks that talk to each other are close, and what waits for that does not wait for ever."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placer_cases import WHOLE, busy_until, gang, segments

from hydragnn_flow.placement import Fleet, Gcd, Host, Room, Spot, place

GCDS = 8
GCD = Gcd(16.0, 1e12, 1e11, 1e-5, 0.5, most_segments=1)


def host(node):
    return Host(f"node{node}", f"block{node // 2}")


def fleet_of(*free, seconds=100.0, of_a_block=2 * GCDS):
    """Nodes with so many free GCDs, two to a block; the other GCDs are busy for so long."""
    fleet = Fleet(GCD, GCDS, of_a_block)
    fleet.update([host(node) for node in range(len(free))])
    for node, number in enumerate(free):
        for position in range(number, GCDS):
            busy_until(fleet, [Spot(f"node{node}", position)], seconds)
    return fleet


def nodes_of(spots):
    """Numbers of the nodes that GCDs are on, one by one."""
    return [int(spot.node.removeprefix("node")) for spot in spots or []]


def take(fleet, room, width, seconds=1.0):
    """Nodes of the GCDs that something is given."""
    spots = room.take(width, seconds)
    if spots is not None:
        fleet.begin(spots, WHOLE, seconds, 0.0, alone=True)
    return nodes_of(spots)


def room(*free, **more):
    fleet = fleet_of(*free, **more)
    return fleet, Room(fleet, 0.0)


widths = st.lists(st.integers(1, 3 * GCDS), min_size=1, max_size=12)
nodes_free = st.lists(st.integers(0, GCDS), min_size=1, max_size=8)


@given(free=nodes_free, asked=widths, seed=st.integers(0, 99))
def test_whatever_is_asked_for_ranks_are_close_and_no_gcd_is_given_twice(free, asked, seed):
    chance = random.Random(seed)
    fleet, here = room(*free, seconds=50.0)
    given_of = Counter[Spot]()
    for width in asked:
        seconds = chance.uniform(1.0, 100.0)
        taken = here.take(width, seconds)
        if taken is None:
            here.reserve(width, is_late=chance.random() < 0.5)
            continue
        fleet.begin(taken, WHOLE, seconds, 0.0, alone=True)
        assert len(taken) == width
        given_of.update(taken)
        nodes = Counter(spot.node for spot in taken)
        if width <= GCDS:
            assert len(nodes) == 1
        else:
            assert sorted(nodes.values())[1:] == [GCDS] * (len(nodes) - 1), "whole nodes"
        if width <= 2 * GCDS:
            assert len({number // 2 for number in nodes_of(taken)}) == 1, "of one block"
    assert max(given_of.values(), default=1) == 1
    assert all(spot.gcd < free[nodes_of([spot])[0]] for spot in given_of)
    assert here.free == sum(free) - sum(given_of.values())
    here.close()
    assert fleet.free == sum(free) - sum(given_of.values())


def test_single_gcds_are_taken_where_the_fewest_are_free_and_leave_whole_blocks_to_others():
    fleet, here = room(8, 3, 8, 1)
    taken = [take(fleet, here, 1) for _ in range(5)]
    assert taken[:4] == [[3], [1], [1], [1]]
    assert taken[4] in ([0], [2])
    assert take(fleet, here, 8), "a whole node is left"
    fleet, here = room(8, 8, 8, 8, 8, 8)
    blocks = {node // 2 for _ in range(12) for node in take(fleet, here, 1)}
    assert len(blocks) == 1
    fleet, here = room(8, 8, 8, 4)
    assert take(fleet, here, 1) == [3]
    assert {node for _ in range(11) for node in take(fleet, here, 1)} == {3, 2}


@pytest.mark.parametrize(
    ("free", "width", "nodes"),
    [
        ((3, 3, 3), 4, []),
        ((3, 4, 3), 4, [1] * 4),
        ((8, 7, 7, 8), 16, []),  # whole nodes of one block
        ((8, 7, 8, 8), 16, [2] * 8 + [3] * 8),
        ((8, 7, 8, 8), 12, [2] * 8 + [3] * 4),
        ((8, 8, 8, 8), 24, [0] * 8 + [1] * 8 + [2] * 8),  # no block is large enough
    ],
)
def test_a_gang_gets_gcds_that_are_close(free, width, nodes):
    assert take(*room(*free), width) == nodes


def test_no_more_is_given_than_may_be():
    fleet = fleet_of(8, 8)
    here = Room(fleet, 0.0, most=3)
    assert not take(fleet, here, 4)
    assert len(take(fleet, here, 2)) == 2
    assert here.free == 1


def test_others_begin_beside_the_node_that_is_kept_for_a_gang():
    """Both nodes have four free GCDs; the first will be free in 10 s, the other in 50 s."""
    fleet = fleet_of(8, 8)
    for node, seconds in ((0, 10.0), (1, 50.0)):
        for position in range(4):
            busy_until(fleet, [Spot(f"node{node}", position)], seconds)
    long = segments(*[(500.0, 1.0, 1.0)] * 8)
    placed, rest = place([gang(8, 1000.0), *long], fleet, 0.0)
    assert [nodes_of([*one.resident.spots]) for one in placed] == [[1]] * 4
    assert len(rest) == 5


def test_a_gang_for_which_there_is_no_room_keeps_nothing_from_another():
    """Its block has lost a node; the other gang has its node in 10 s."""
    fleet, here = room(4, 8, seconds=10.0, of_a_block=4 * GCDS)
    here.reserve(32, is_late=True)
    assert take(fleet, here, 8, 1000.0) == [1] * 8
    here.reserve(8, is_late=False)
    assert not take(fleet, here, 1, 1000.0)


def test_nodes_that_take_no_work_any_more_are_kept_for_nobody():
    fleet = fleet_of(4, 0)
    fleet.update([host(0)])
    here = Room(fleet, 0.0)
    here.reserve(8, is_late=False)
    assert not take(fleet, here, 1, 1000.0), "it would delay the gang on the only node there is"


def test_what_runs_on_a_node_that_takes_no_work_any_more_ends_there():
    fleet = fleet_of(8, 8)
    spots = Room(fleet, 0.0).take(2, 1.0)
    resident = fleet.begin(spots, WHOLE, 1.0, 0.0, alone=True)
    others = [each for each in (host(0), host(1)) if each.name != spots[0].node]
    fleet.update(others)
    assert (fleet.at_work, fleet.free) == (2, 8)
    fleet.end(resident, spots, 2.0)
    assert (fleet.at_work, fleet.free) == (0, 8)
    fleet.update([host(0), host(1)])
    assert fleet.free == 16
