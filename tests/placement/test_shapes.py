"""More GCDs for segments where some would idle: at the start, and at work."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placer_cases import busy_until, segments

from hydragnn_flow.placement import Estimate, Fleet, Gcd, Host, Spot, place, shapes

GCD = Gcd(16.0, 1e12, 1e11, 1e-5, 0.5, most_segments=2)
NODE = 8
SMALL = Estimate(1.0, 1.0, uncorrected_seconds=1.0, busy=0.4)
NOW = shapes.LEAST_SAVED
"""Time at which what began at 0 has been at work for long enough [s]."""


@given(gcds=st.integers(1, 16), most=st.integers(1, 200))
def test_widths_fill_a_node_or_whole_nodes(gcds, most):
    widths = [*shapes.useful_widths(gcds, most)]
    assert widths[0] == 1
    assert widths == sorted(set(widths)) and widths[-1] <= most
    assert all(width < gcds or width % gcds == 0 for width in widths)
    assert (gcds in widths) == (gcds <= most)


def on(segment, width, loss=0.02):
    """A segment on several GCDs, each of which loses a part to the others."""
    seconds = segment.estimate.seconds * (1 + loss * (width - 1))
    return replace(segment, width=width, estimate=replace(segment.estimate, seconds=seconds))


def shapes_up_to(most):
    """Shapes of segments that may have so many GCDs."""
    return lambda segment: [on(segment, width) for width in shapes.useful_widths(NODE, most)]


def fleet_of(nodes, blocks=1):
    fleet = Fleet(GCD, NODE)
    fleet.update([Host(f"node{n}", f"block{n % blocks}") for n in range(nodes)])
    return fleet


times = st.lists(st.floats(1, 1e4), min_size=1, max_size=12)


@given(seconds=times, gcds=st.integers(0, 80), most=st.sampled_from([1, 2, 4, 8, 32]))
def test_segments_are_widened_so_that_the_last_ends_early(seconds, gcds, most):
    ready = segments(*[(s, 1.0, 1.0) for s in seconds])
    found = shapes.widened(ready, gcds, shapes_up_to(most))
    assert [one.item for one in found] == [one.item for one in ready]
    widest = [one.shapes()[0] for one in found]
    assert sum(one.width for one in widest) <= max(gcds, len(ready))
    assert all(one.width <= most for one in widest)
    last = max(one.seconds for one in widest)
    assert last <= max(one.seconds for one in ready)
    left = gcds - sum(one.width for one in widest)
    for one in found:
        steps = [shape.seconds for shape in reversed(one.shapes())]
        # It was the last one when it was given more, but for those that there was too little for.
        longer = [other for other in widest if len(steps) > 1 and other.seconds > steps[-2]]
        assert all(left < other.width for other in longer)
    # The last could not have more: of its own, or because of the others.
    slowest = max(widest, key=lambda one: one.seconds)
    assert slowest.width == most or left < slowest.width
    # Nor could others, where the last may have more once these have ended.
    full = any(one.width == most for one in widest)
    assert full or all(left < one.width for one in widest)
    assert shapes.widened(ready, gcds, shapes_up_to(most)) == found


def test_what_ends_before_others_anyway_is_not_widened():
    brief, long = segments((50.0, 1.0, 1.0), (100.0, 1.0, 1.0))
    assert shapes.widened([brief, long], 64, shapes_up_to(8), enough=200.0) == [brief, long]
    (wide,) = shapes.widened([long], 64, shapes_up_to(8), enough=60.0)
    assert wide.shapes()[0].width == 2


@given(times, st.integers(1, 6), st.sets(st.integers(0, 47)), st.sampled_from([1, 2, 8, 16]))
def test_a_segment_gets_as_many_gcds_as_are_side_by_side(seconds, nodes, busy, most):
    fleet = fleet_of(nodes, blocks=2)
    taken = [Spot(f"node{n // NODE}", n % NODE) for n in busy if n < nodes * NODE]
    for spot in taken:
        busy_until(fleet, [spot], 1e9)
    free = fleet.free
    ready = segments(*[(s, 12.0, 1.0) for s in seconds])
    wide = shapes.widened(ready, free, shapes_up_to(most))
    placed, rest = place(wide, fleet, 0.0)
    assert len(placed) == min(free, len(ready)), "a GCD idles while a segment waits"
    spots = [spot for one in placed for spot in one.resident.spots]
    assert len(spots) == len(set(spots)) and not set(spots) & set(taken)
    for one in placed:
        assert one.segment.width == len(one.resident.spots)
        there = {spot.node for spot in one.resident.spots}
        assert len(there) == max(1, one.segment.width // NODE)
        assert len({int(name[4:]) % 2 for name in there}) == 1, "in two blocks"
    assert all(one in wide for one in rest)


def at_work(fleet, lengths):
    """Segments of one GCD each that are at work for so long yet."""
    return [
        busy_until(fleet, [Spot(f"node{n // NODE}", n % NODE)], NOW + seconds)
        for n, seconds in enumerate(lengths)
    ]


@given(
    lengths=st.lists(st.floats(1, 1e4), min_size=1, max_size=24),
    nodes=st.integers(3, 6),
    most=st.sampled_from([1, 2, 4, 8, 16, 32]),
)
def test_segments_are_placed_anew_where_it_pays_and_can_be_done(lengths, nodes, most):
    fleet = fleet_of(nodes)
    residents = at_work(fleet, lengths)
    before = [node.free for node in fleet.nodes]
    widths = [*shapes.useful_widths(NODE, most)]
    scale = {width: (1 + 0.02 * (width - 1)) / width for width in widths}

    def times_of(resident):
        return [(width, 100 * scale[width]) for width in widths]

    chosen = shapes.to_place_anew(residents, times_of, fleet, NOW)
    assert len(set(map(id, chosen))) == len(chosen)
    assert len(chosen) <= fleet.free
    assert [node.free for node in fleet.nodes] == before, "nothing is begun or ended here"
    for one in chosen:
        remaining = one.remaining(NOW)
        best = remaining * (1 - min(scale.values()))
        assert best >= max(shapes.LEAST_SAVED, shapes.LEAST_SAVED_FRACTION * remaining)
    if chosen:
        longest = max(one.remaining(NOW) for one in chosen)
        assert longest == pytest.approx(max(lengths))
    assert shapes.to_place_anew(residents, times_of, fleet, NOW) == chosen
    assert shapes.to_place_anew(residents, times_of, fleet, NOW - 1) == [], "they have just begun"


def test_nothing_is_stopped_for_gcds_that_are_not_side_by_side():
    """Two GCDs of each of three nodes are free, or the segment's and one more."""
    fleet = fleet_of(3)
    (resident,) = at_work(fleet, [1e4])
    for n in range(3):
        for place_ in range(1, NODE - 1):
            busy_until(fleet, [Spot(f"node{n}", place_)], 10.0)
    assert fleet.free == 5  # two on each of the others, and one beside it

    def times_of(one):
        return [(1, 100.0), (4, 26.0)]

    assert shapes.to_place_anew([resident], times_of, fleet, NOW) == []
    chosen = shapes.to_place_anew([resident], lambda one: [(1, 100.0), (2, 51.0)], fleet, NOW)
    assert chosen == [resident]


@pytest.mark.parametrize("free", [0, 1])
def test_a_segment_that_ends_before_the_last_is_left_alone(free):
    fleet = fleet_of(1)
    residents = at_work(fleet, [1000.0] * 7 + [400.0] * (1 - free))
    chosen = shapes.to_place_anew(residents, lambda one: [(1, 1.0), (2, 0.51)], fleet, NOW)
    assert len(chosen) == free


def test_a_gcd_that_is_shared_does_not_come_free():
    """Two segments on one GCD, the other free: there is none beside it that two could have."""
    fleet = Fleet(GCD, 2)
    fleet.update([Host("node0", "block0")])
    place_, ends = [Spot("node0", 0)], (NOW + 2000.0, NOW + 1000.0)
    both = [fleet.begin(place_, SMALL, end, 0.0, alone=False) for end in ends]
    options = [(1, 100.0), (2, 51.0)]
    assert shapes.to_place_anew(both, lambda one: options, fleet, NOW) == []
    fleet.end(both[1], both[1].spots, NOW)
    assert shapes.to_place_anew(both[:1], lambda one: options, fleet, NOW) == both[:1]


def test_of_segments_that_are_to_part_the_last_to_end_stays():
    fleet = fleet_of(1)
    spots = [Spot("node0", gcd) for gcd in range(NODE)]

    def begun(gcd, until, alone=False):
        return fleet.begin(spots[gcd : gcd + 1], SMALL, NOW + until, 0.0, alone=alone)

    last, other, ending = (begun(0, 9 * NOW), begun(0, 5 * NOW), begun(0, 0.5 * NOW))
    one, alone = begun(1, NOW), begun(2, NOW, alone=True)
    gang = fleet.begin(spots[4:], SMALL, NOW, 0.0, alone=True)
    assert shapes.to_part([ending, other, last, one, alone, gang], NOW) == [other]
