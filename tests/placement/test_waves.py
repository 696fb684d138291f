"""How members share the GCDs of a node."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.placement import Wave, plan_members

members = st.lists(st.tuples(st.floats(0.1, 1000), st.integers(1, 32)), min_size=1, max_size=12)
nodes = st.integers(1, 6)
gcds = st.integers(1, 16)


def plan(members: list[tuple[float, int]], nodes: int, gcds: int) -> list[Wave]:
    return plan_members([s for s, _ in members], nodes, gcds, [most for _, most in members])


def makespan(seconds: list[float], widths: list[int]) -> float:
    return max(s / w for s, w in zip(seconds, widths, strict=True))


@settings(deadline=None)
@given(members=members, nodes=nodes, gcds=gcds)
def test_every_member_runs_once_within_its_nodes(
    members: list[tuple[float, int]], nodes: int, gcds: int
) -> None:
    waves = plan(members, nodes, gcds)
    assert sorted(m for wave in waves for m in wave.members) == list(range(len(members)))
    for wave in waves:
        assert len(wave.members) == len(wave.widths) > 0
        assert gcds * (wave.nodes - 1) < sum(wave.widths) <= gcds * wave.nodes
        assert wave.nodes == 1 or len(wave.members) == 1
        for member, width in zip(wave.members, wave.widths, strict=True):
            assert 1 <= width <= members[member][1]


@settings(deadline=None)
@given(members=members, nodes=nodes, gcds=gcds)
def test_nodes_and_gcds_are_used(members: list[tuple[float, int]], nodes: int, gcds: int) -> None:
    waves = plan(members, nodes, gcds)
    assert len(waves) >= min(nodes, len(members))
    for wave in waves:
        room = [members[m][1] - w for m, w in zip(wave.members, wave.widths, strict=True)]
        assert sum(wave.widths) == gcds * wave.nodes or sum(room) == 0
    in_use = sum(wave.nodes for wave in waves)
    more = [w for w in waves if len(w.members) == 1 and w.widths[0] < members[w.members[0]][1]]
    assert in_use >= nodes or not more
    assert in_use <= max(nodes, len(waves))


@settings(deadline=None)
@given(members=members, nodes=nodes, gcds=gcds)
def test_no_gcd_would_be_better_with_another_member(
    members: list[tuple[float, int]], nodes: int, gcds: int
) -> None:
    for wave in plan(members, nodes, gcds):
        seconds = [members[m][0] for m in wave.members]
        widths = list(wave.widths)
        for giver, taker in permutations(range(len(widths)), 2):
            moved = list(widths)
            moved[giver] -= 1
            moved[taker] += 1
            allowed = moved[taker] <= members[wave.members[taker]][1]
            if wave.nodes == 1 and moved[giver] >= 1 and allowed:
                assert makespan(seconds, moved) >= makespan(seconds, widths)


@pytest.mark.parametrize(
    ("seconds", "nodes", "gcds", "widths"),
    [
        ([30.0, 10.0], 1, 8, [[6, 2]]),
        ([10.0, 10.0], 1, 8, [[4, 4]]),
        ([10.0, 10.0], 2, 8, [[8], [8]]),
        ([30.0, 10.0], 4, 8, [[24], [8]]),
        ([10.0], 12, 8, [[64]]),
        ([10.0], 1, 1, [[1]]),
        ([10.0, 10.0], 1, 1, [[1], [1]]),
        ([10.0, 10.0], 1, 2, [[1, 1]]),
        ([10.0, 10.0, 10.0], 1, 4, [[2, 1, 1]]),
        ([40.0, 20.0, 10.0, 10.0], 1, 16, [[8, 4, 2, 2]]),
        ([40.0, 20.0, 10.0, 10.0], 2, 8, [[8], [4, 2, 2]]),
    ],
)
def test_widths_follow_the_cost(
    seconds: list[float], nodes: int, gcds: int, widths: list[list[int]]
) -> None:
    waves = plan_members(seconds, nodes, gcds, [64] * len(seconds))
    assert sorted(sorted(w.widths, reverse=True) for w in waves) == sorted(widths)
