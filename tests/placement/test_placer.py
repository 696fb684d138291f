"""Which segments share a GCD."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from placer_cases import Segment, segments

from hydragnn_flow.placement import Estimate, Filling, Gcd, next_bundles
from hydragnn_flow.placement.placer import FULL, LONGEST_TO_SHORTEST, MEMORY_FRACTION


def gcd(memory_gib: float = 16.0, share: int = 4) -> Gcd:
    return Gcd(memory_gib, 1e12, 1e11, 1e-5, 0.5, share)


# Small and alike as a rule, so that many could share a GCD.
estimates = st.tuples(
    st.floats(5, 10) | st.floats(0.1, 100),
    st.floats(0.5, 2) | st.floats(0.5, 20),
    st.floats(0, 0.2) | st.floats(0, 1),
)
ready = st.lists(estimates, min_size=1, max_size=12).map(lambda values: segments(*values))


@settings(deadline=None)
@given(ready=ready, share=st.integers(1, 6), free=st.integers(1, 12), memory=st.floats(1, 64))
def test_any_bundles_are_sound(ready: list[Segment], share: int, free: int, memory: float) -> None:
    site = gcd(memory, share)
    bundles, rest = next_bundles(ready, site, free)
    placed = [p for bundle in bundles for p in bundle]
    assert sorted(p.item for p in placed + rest) == list(range(len(ready)))
    assert len(bundles) == min(free, len(ready))
    assert bundles[0][0].estimate.seconds == max(p.estimate.seconds for p in ready)
    for bundle in bundles:
        assert 1 <= len(bundle) <= share
        if len(bundle) > 1:
            longest = bundle[0].estimate.seconds
            assert sum(p.estimate.memory_gib for p in bundle) <= MEMORY_FRACTION * memory
            assert sum(p.estimate.busy for p in bundle) <= FULL
            assert min(p.estimate.seconds for p in bundle) >= longest / LONGEST_TO_SHORTEST


@settings(deadline=None)
@given(ready=ready, share=st.integers(1, 6), free=st.integers(1, 12))
def test_nothing_is_packed_while_free_gcds_suffice(
    ready: list[Segment], share: int, free: int
) -> None:
    assume(len(ready) <= free)
    bundles, rest = next_bundles(ready, gcd(share=share), free)
    assert not rest
    assert all(len(bundle) == 1 for bundle in bundles)


@settings(deadline=None)
@given(ready=ready, share=st.integers(2, 6))
def test_what_could_join_the_last_free_gcd_does(ready: list[Segment], share: int) -> None:
    site = gcd(share=share)
    (bundle,), rest = next_bundles(ready, site, 1)
    if len(bundle) < share:
        for p in rest:
            together = [*bundle, p]
            assert (
                sum(q.estimate.memory_gib for q in together) > MEMORY_FRACTION * site.memory_gib
                or sum(q.estimate.busy for q in together) > FULL
                or p.estimate.seconds < bundle[0].estimate.seconds / LONGEST_TO_SHORTEST
            )


@settings(deadline=None)
@given(ready=ready, n_gcds=st.integers(1, 4))
def test_every_segment_runs_once(ready: list[Segment], n_gcds: int) -> None:
    ran: list[int] = []
    while ready:
        bundles, ready = next_bundles(ready, gcd(), n_gcds)
        ran += [p.item for bundle in bundles for p in bundle]
    assert sorted(ran) == sorted(set(ran))


@pytest.mark.parametrize(("free", "bundles"), [(1, [4, 2]), (2, [4, 2]), (4, [3, 1, 1, 1])])
def test_segments_spread_over_the_free_gcds(free: int, bundles: list[int]) -> None:
    rest, sizes = segments(*[(10.0, 1.0, 0.2)] * 6), list[int]()
    while rest:
        placed, rest = next_bundles(rest, gcd(share=4), max(1, free - len(sizes)))
        sizes += [len(bundle) for bundle in placed]
    assert sizes == bundles


def test_small_segments_share_and_large_ones_do_not() -> None:
    small = (10.0, 1.0, 0.2)
    (bundle,), rest = next_bundles(segments(*[small] * 6), gcd(share=4), 1)
    assert (len(bundle), len(rest)) == (4, 2)
    large = (20.0, 1.0, 1.0)
    (bundle,), rest = next_bundles(segments(small, large, small), gcd(share=4), 1)
    assert [p.item for p in bundle] == [1]
    hungry = (20.0, 14.0, 0.1)
    (bundle,), rest = next_bundles(segments(small, hungry, small), gcd(16.0, 4), 1)
    assert [p.item for p in bundle] == [1]


def wide(width: int, seconds: float) -> Segment:
    """A segment that takes so long on so many GCDs."""
    estimate = Estimate(width * seconds, 1.0, uncorrected_seconds=width * seconds, busy=1.0)
    return Segment(item=100 + width, estimate=estimate, width=width)


@settings(deadline=None)
@given(
    ready=ready,
    widths=st.lists(st.integers(2, 9), max_size=4),
    free=st.integers(0, 12),
    busy=st.lists(st.floats(0, 100), max_size=12),
)
def test_no_gcd_is_promised_twice(
    ready: list[Segment], widths: list[int], free: int, busy: list[float]
) -> None:
    everything = ready + [wide(width, 10.0) for width in widths]
    bundles, rest = next_bundles(everything, gcd(), free, busy)
    assert sum(bundle[0].width for bundle in bundles) <= free
    assert all(len(bundle) == 1 for bundle in bundles if bundle[0].width > 1)
    placed = [p for bundle in bundles for p in bundle]
    assert sorted(p.item for p in placed + rest) == sorted(p.item for p in everything)


def test_what_would_delay_a_gang_waits_for_it() -> None:
    """Four GCDs, two of them busy for 20 s more: a gang of three starts then."""
    gang, brief, long = wide(3, 40.0), *segments((15.0, 1.0, 1.0), (30.0, 1.0, 1.0))
    bundles, rest = next_bundles([gang, brief, long], gcd(), 2, [20.0, 50.0])
    assert [[p.item for p in bundle] for bundle in bundles] == [[brief.item]]
    assert {p.item for p in rest} == {gang.item, long.item}
    # With a fifth GCD free by then, the long one is in nobody's way.
    bundles, _ = next_bundles([gang, brief, long], gcd(), 2, [20.0, 20.0, 50.0])
    assert {p.item for bundle in bundles for p in bundle} == {brief.item, long.item}
    # Enough are free: nothing has to wait.
    bundles, rest = next_bundles([gang, brief, long], gcd(), 5, [])
    assert len(bundles) == 3 and not rest


def test_what_was_cut_short_goes_first() -> None:
    brief, long = segments((1.0, 1.0, 1.0), (9.0, 1.0, 1.0))
    bundles, _ = next_bundles([long, replace(brief, is_urgent=True)], gcd(), 1)
    assert bundles[0][0].item == brief.item
    gang = replace(wide(3, 1.0), is_urgent=True)
    bundles, rest = next_bundles([long, gang], gcd(), 2, [5.0])
    assert not bundles, "the long one would delay the gang"
    bundles, rest = next_bundles([brief, gang], gcd(), 2, [5.0])
    assert bundles[0][0].item == brief.item and rest == [gang]


def test_what_was_cut_short_does_not_wait_for_what_takes_much_longer() -> None:
    brief, alike, long = segments((10.0, 1.0, 0.1), (25.0, 1.0, 0.1), (3600.0, 1.0, 0.1))
    urgent = replace(brief, is_urgent=True)
    (bundle,), rest = next_bundles([urgent, alike, long], gcd(), 1)
    assert bundle == [urgent, alike]
    assert rest == [long]


@settings(deadline=None)
@given(ready=ready, urgent=st.sets(st.integers(0, 11)), free=st.integers(1, 4))
def test_segments_of_a_bundle_are_about_as_long(
    ready: list[Segment], urgent: set[int], free: int
) -> None:
    bundles, _ = next_bundles([replace(p, is_urgent=p.item in urgent) for p in ready], gcd(), free)
    for bundle in bundles:
        shortest, longest = min(p.seconds for p in bundle), max(p.seconds for p in bundle)
        assert longest <= LONGEST_TO_SHORTEST * shortest * (1 + 1e-9)


@pytest.mark.parametrize(
    "heavy",
    [(30.0, 1.0, 0.9), (30.0, 13.0, 0.1), (30.0, 1.0, 0.55)],
    ids=["busy", "large", "two kinds"],
)
def test_no_gcd_has_the_whole_queue_searched(
    heavy: tuple[float, float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of thousands of GCDs and segments that would take minutes."""
    searched = itertools.count()

    def seconds(segment: Segment) -> float:
        next(searched)
        return segment.estimate.seconds

    monkeypatch.setattr(Segment, "seconds", property(seconds))
    light = (15.0, 1.0, 0.45) if heavy[2] == 0.55 else heavy
    queue, gcds = segments(*[heavy] * 2048, *[light] * 2048), 1024
    bundles, _ = next_bundles(queue, gcd(), gcds)
    assert len(bundles) == gcds
    assert next(searched) < 2000 * gcds  # each along the whole queue: more than three million


def test_while_the_gcds_of_a_gang_are_yet_to_come_others_run() -> None:
    gang, one = wide(8, 10.0), *segments((500.0, 1.0, 1.0))
    bundles, rest = next_bundles([gang, one], gcd(), 2, [5.0])
    assert [[p.item for p in bundle] for bundle in bundles] == [[one.item]]
    assert rest == [gang]


@pytest.mark.parametrize(
    ("gib", "busy", "width", "enough"),
    [
        (1.0, 0.1, 1, 32),  # four side by side, as many as there may be
        (1.0, 0.5, 1, 16),
        (1.0, 1.0, 1, 8),
        (MEMORY_FRACTION * 8.0, 0.1, 1, 16),
        (16.0, 0.1, 1, 8),
        (1.0, 0.1, 4, 2),
        (1.0, 0.1, 9, 32),  # while they wait, others run
    ],
)
def test_how_many_alike_fill_the_free_gcds(
    gib: float, busy: float, width: int, enough: int
) -> None:
    filling, count = Filling(gcd(16.0, 4), 8), 0
    while not filling.is_full:
        filling.add(Estimate(10.0, gib, uncorrected_seconds=10.0, busy=busy), width)
        count += 1
    assert count == enough


@settings(deadline=None)
@given(ready=ready, share=st.integers(1, 6), free=st.integers(2, 12))
def test_what_runs_on_some_gcds_does_not_fill_more(
    ready: list[Segment], share: int, free: int
) -> None:
    site = gcd(share=share)
    bundles, _ = next_bundles(ready, site, free - 1)
    filling = Filling(site, free)
    for segment in (p for bundle in bundles for p in bundle):
        filling.add(segment.estimate, segment.width)
    assert not filling.is_full
