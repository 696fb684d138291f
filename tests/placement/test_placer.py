"""Which segments share a GCD, and in which order they begin."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placer_cases import by_gcd, gang, on_one_node, one_node, segments

from hydragnn_flow.placement import Fleet, Gcd, Host, Spot, place
from hydragnn_flow.placement import fleet as fleet_module
from hydragnn_flow.placement.fleet import FULL, MEMORY_FRACTION


def gcd(memory_gib=16.0, share=4):
    return Gcd(memory_gib, 1e12, 1e11, 1e-5, 0.5, share)


# Small and alike as a rule, so that many could share a GCD.
estimates = st.tuples(
    st.floats(5, 10) | st.floats(0.1, 100),
    st.floats(0.5, 2) | st.floats(0.5, 20),
    st.floats(0, 0.2) | st.floats(0, 1),
)
ready = st.lists(estimates, min_size=1, max_size=12).map(lambda values: segments(*values))


def fits(together, site):
    return len(together) == 1 or (
        len(together) <= site.most_segments
        and sum(p.estimate.memory_gib for p in together) <= MEMORY_FRACTION * site.memory_gib + 1e-9
        and sum(p.estimate.busy for p in together) <= FULL + 1e-9
    )


@given(ready=ready, share=st.integers(1, 6), free=st.integers(1, 12), memory=st.floats(1, 64))
def test_whatever_shares_a_gcd_fits_there(ready, share, free, memory):
    site = gcd(memory, share)
    found, rest = on_one_node(ready, site, free)
    placed = [p for together in found for p in together]
    assert sorted(p.item for p in placed + rest) == list(range(len(ready)))
    assert len(found) == min(free, len(ready))
    assert found[0][0].estimate.seconds == max(p.estimate.seconds for p in ready)
    assert all(fits(together, site) for together in found)


@given(ready=ready, share=st.integers(2, 6), free=st.integers(1, 3))
def test_what_could_join_others_does(ready, share, free):
    site = gcd(share=share)
    found, rest = on_one_node(ready, site, free)
    # Of segments that do next to nothing, which no GCD is looked for for.
    left = [p for p in rest if p.estimate.busy >= fleet_module._LEAST_BUSY]
    assert not any(fits([*together, p], site) for together in found for p in left)


@pytest.mark.parametrize(
    ("free", "sizes"), [(1, [4]), (2, [3, 3]), (4, [1, 1, 2, 2]), (5, [1, 1, 1, 1, 2])]
)
def test_segments_spread_over_the_gcds(free, sizes):
    found, _ = on_one_node(segments(*[(10.0, 1.0, 0.2)] * 6), gcd(share=4), free)
    assert sorted(map(len, found)) == sizes


def test_nothing_joins_where_sharing_does_not_pay():
    fleet = one_node(gcd(share=4), free=1)
    fleet.sharing_pays = False
    placed, rest = place(segments(*[(10.0, 1.0, 0.2)] * 3), fleet, 0.0)
    assert (len(placed), len(rest), fleet.may_share) == (1, 2, False)
    fleet.sharing_pays = True
    assert fleet.may_share
    placed, rest = place(rest, fleet, 0.0)
    assert (len(placed), len(rest)) == (2, 0)


def test_what_keeps_its_gcd_shares_it_with_no_other():
    fleet = one_node(gcd(share=4), free=2)
    first, *others = segments((20.0, 1.0, 0.2), *[(10.0, 1.0, 0.2)] * 5)
    keeper = replace(first, keeps_gcd=True)
    placed, rest = place([keeper, *others], fleet, 0.0)
    assert sorted(map(len, by_gcd(placed))) == [1, 4] and len(rest) == 1
    # Nothing joins what joins nothing.
    fleet = one_node(gcd(share=4), free=1)
    place([first], fleet, 0.0, may_join=False)
    assert not fleet.may_share
    # Where none is free it joins others.
    fleet = one_node(gcd(share=4), free=1)
    place(others[:2], fleet, 0.0)
    placed, rest = place([keeper], fleet, 0.0)
    assert len(placed) == 1 and not placed[0].resident.alone


def test_a_gcd_is_filled_again_as_soon_as_one_of_its_segments_ends():
    """It does not wait for the slowest."""
    brief, long, third, fourth = segments(*[(10.0, 1.0, 0.5)] * 2, *[(99.0, 1.0, 0.5)] * 2)
    fleet = one_node(gcd(), 1)
    (first, second), rest = place([brief, long, third], fleet, 0.0)
    assert first.resident.spots == second.resident.spots
    assert place(rest, fleet, 5.0)[1] == rest, "the GCD is full"
    fleet.end(first.resident, first.resident.spots, 6.0)
    (again,), rest = place([*rest, fourth], fleet, 6.0)
    assert again.resident.spots == second.resident.spots
    assert len(rest) == 1


@given(ready, st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(0, 50), max_size=30))
def test_whatever_begins_and_ends_no_gcd_is_overfull(ready, share, nodes, ends):
    """The fleet's counts are those of a count anew, too."""
    site = gcd(share=share)
    fleet = Fleet(site, 2)
    fleet.update([Host(f"node{n}", "block0") for n in range(nodes)])
    running, now = [], 0.0
    for end in [*ends, 0]:
        placed, _ = place(ready, fleet, now)
        running += placed
        now += 1.0
        on_gcd = by_gcd(running)
        assert all(fits(together, site) for together in on_gcd)
        assert fleet.at_work == len(on_gcd)
        assert fleet.free == 2 * nodes - len(on_gcd)
        if running:
            gone = running.pop(end % len(running))
            assert fleet.together(gone.resident, now) >= 1
            fleet.end(gone.resident, gone.resident.spots, now)


def test_how_many_were_together_is_averaged_over_time():
    fleet = one_node(gcd(), 1)
    one, other = segments((10.0, 1.0, 0.1), (10.0, 1.0, 0.1))
    (first,), _ = place([one], fleet, 0.0)
    (second,), _ = place([other], fleet, 6.0)
    assert fleet.together(second.resident, 8.0) == 2.0
    fleet.end(second.resident, second.resident.spots, 9.0)
    assert fleet.together(first.resident, 12.0) == pytest.approx((6 + 2 * 3 + 3) / 12)


def test_what_would_delay_a_gang_waits_for_it():
    """Four GCDs, two of them busy for 20 s more: a gang of three starts then."""
    three, brief, long = gang(3, 40.0), *segments((15.0, 1.0, 1.0), (30.0, 1.0, 1.0))
    found, rest = on_one_node([three, brief, long], gcd(), 2, [20.0, 50.0])
    assert [[p.item for p in together] for together in found] == [[brief.item]]
    assert {p.item for p in rest} == {three.item, long.item}
    # With a fifth GCD free by then, the long one is in nobody's way.
    found, _ = on_one_node([three, brief, long], gcd(), 2, [20.0, 20.0, 50.0])
    assert {p.item for together in found for p in together} == {brief.item, long.item}
    # Enough are free: nothing has to wait.
    found, rest = on_one_node([three, brief, long], gcd(), 5, [])
    assert len(found) == 3 and not rest


def test_nothing_joins_those_that_a_gang_waits_for():
    """They would keep the GCDs for ever: as one ends, another joins the rest."""
    first, second, third = segments(*[(10.0, 1.0, 0.5)] * 3)
    two, fleet = gang(2, 5.0), one_node(gcd(), 2)
    running, _ = place([first, second], fleet, 0.0)
    placed, rest = place([two, third], fleet, 1.0)
    assert not placed
    assert rest == [two, third]
    for one in running:
        fleet.end(one.resident, one.resident.spots, 2.0)
    (begun,), _ = place(rest, fleet, 2.0)
    assert begun.segment is two


def test_what_was_cut_short_goes_first():
    brief, long = segments((1.0, 1.0, 1.0), (9.0, 1.0, 1.0))
    found, _ = on_one_node([long, replace(brief, is_urgent=True)], gcd(), 1)
    assert found[0][0].item == brief.item
    three = replace(gang(3, 1.0), is_urgent=True)
    found, rest = on_one_node([long, three], gcd(), 2, [5.0])
    assert not found, "the long one would delay the gang"
    found, rest = on_one_node([brief, three], gcd(), 2, [5.0])
    assert found[0][0].item == brief.item and rest == [three]


def test_nothing_is_sent_to_a_node_that_ends_before_it_could_do_anything():
    now, long = 1000.0, segments((3600.0, 1.0, 1.0))
    for left, begins in ((10.0, False), (fleet_module.SECONDS_TO_GET_FURTHER + 1, True)):
        fleet = Fleet(gcd(), 2)
        fleet.update([Host("node0", "block0", now + left)])
        placed, _ = place(long, fleet, now)
        assert bool(placed) is begins
    both = segments((3600.0, 1.0, 1.0), (3600.0, 1.0, 1.0), (5.0, 1.0, 1.0))
    fleet = Fleet(gcd(), 2)
    fleet.update([Host("node0", "block0", now + 10.0), Host("node1", "block1")])
    placed, _ = place(both, fleet, now)
    found = [(p.segment.seconds, p.resident.spots[0].node) for p in placed]
    assert found == [(3600.0, "node1"), (3600.0, "node1"), (5.0, "node0")]


def test_a_gang_waits_for_no_node_that_is_gone_by_then():
    fleet = Fleet(gcd(), 2)
    fleet.update([Host("node0", "block0", 100.0), Host("node1", "block1")])
    for n, until in ((0, 50.0), (1, 80.0)):
        fleet.begin([Spot(f"node{n}", 0)], segments((1, 1, 1))[0].estimate, until, 0.0, alone=True)
    (brief,) = segments((60.0, 1.0, 1.0))
    placed, _ = place([gang(2, 500.0), brief], fleet, 0.0)
    assert [p.resident.spots for p in placed] == [[Spot("node0", 1)]], "the other is kept"


def test_the_search_for_a_gcd_to_join_is_short(monkeypatch):
    """Of thousands of GCDs that all have no memory left it would take minutes."""
    left = Mock(wraps=fleet_module._left)
    monkeypatch.setattr(fleet_module, "_left", left)
    gcds = 2048
    fleet = Fleet(gcd(), 8)
    fleet.update([Host(f"node{n}", "block0") for n in range(gcds // 8)])
    large = segments(*[(30.0, 13.0, 0.1)] * 2 * gcds)
    placed, rest = place(large, fleet, 0.0)
    assert (len(placed), len(rest)) == (gcds, gcds)
    assert 0 < left.call_count < 10 * len(large)
