"""Which segments share a GCD."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hydragnn_flow.placement import Estimate, Gcd, Placeable, next_bundle
from hydragnn_flow.placement.placer import FULL, LONGEST_TO_SHORTEST, MEMORY_SHARE


def gcd(memory_gib: float = 16.0, share: int = 4) -> Gcd:
    return Gcd(memory_gib, 1e12, 1e11, 1e-5, 0.5, share)


def segments(*estimates: tuple[float, float, float]) -> list[Placeable[int]]:
    """Segments of (seconds, GiB, busy), named by their position."""
    return [
        Placeable(i, Estimate(s, gib, uncorrected_seconds=s, busy=busy))
        for i, (s, gib, busy) in enumerate(estimates)
    ]


# Small and alike as a rule, so that many could share a GCD.
estimates = st.tuples(
    st.floats(5, 10) | st.floats(0.1, 100),
    st.floats(0.5, 2) | st.floats(0.5, 20),
    st.floats(0, 0.2) | st.floats(0, 1),
)
ready = st.lists(estimates, min_size=1, max_size=12).map(lambda values: segments(*values))


@settings(deadline=None)
@given(ready=ready, share=st.integers(1, 6), free=st.integers(1, 12), memory=st.floats(1, 64))
def test_any_bundle_is_sound(
    ready: list[Placeable[int]], share: int, free: int, memory: float
) -> None:
    site = gcd(memory, share)
    bundle, rest = next_bundle(ready, site, free)
    assert sorted(p.item for p in bundle + rest) == list(range(len(ready)))
    assert 1 <= len(bundle) <= share
    longest = max(p.estimate.seconds for p in ready)
    assert bundle[0].estimate.seconds == longest
    if len(bundle) > 1:
        assert sum(p.estimate.memory_gib for p in bundle) <= MEMORY_SHARE * memory
        assert sum(p.estimate.busy for p in bundle) <= FULL
        assert min(p.estimate.seconds for p in bundle) >= longest / LONGEST_TO_SHORTEST
        # No GCD is left empty for it.
        assert len(rest) >= free - 1


@settings(deadline=None)
@given(ready=ready, share=st.integers(1, 6), free=st.integers(1, 12))
def test_nothing_is_packed_while_free_gcds_suffice(
    ready: list[Placeable[int]], share: int, free: int
) -> None:
    assume(len(ready) <= free)
    bundle, _ = next_bundle(ready, gcd(share=share), free)
    assert len(bundle) == 1


@settings(deadline=None)
@given(ready=ready, share=st.integers(2, 6))
def test_what_could_join_the_last_free_gcd_does(ready: list[Placeable[int]], share: int) -> None:
    site = gcd(share=share)
    bundle, rest = next_bundle(ready, site, 1)
    if len(bundle) < share:
        for p in rest:
            together = [*bundle, p]
            assert (
                sum(q.estimate.memory_gib for q in together) > MEMORY_SHARE * site.memory_gib
                or sum(q.estimate.busy for q in together) > FULL
                or p.estimate.seconds < bundle[0].estimate.seconds / LONGEST_TO_SHORTEST
            )


@settings(deadline=None)
@given(ready=ready, n_gcds=st.integers(1, 4))
def test_every_segment_runs_once(ready: list[Placeable[int]], n_gcds: int) -> None:
    ran: list[int] = []
    while ready:
        bundle, ready = next_bundle(ready, gcd(), n_gcds)
        ran += [p.item for p in bundle]
    assert sorted(ran) == sorted(set(ran))


@pytest.mark.parametrize(("free", "bundles"), [(1, [4, 2]), (2, [4, 2]), (4, [3, 1, 1, 1])])
def test_segments_spread_over_the_free_gcds(free: int, bundles: list[int]) -> None:
    rest, sizes = segments(*[(10.0, 1.0, 0.2)] * 6), []
    while rest:
        bundle, rest = next_bundle(rest, gcd(share=4), max(1, free - len(sizes)))
        sizes.append(len(bundle))
    assert sizes == bundles


def test_small_segments_share_and_large_ones_do_not() -> None:
    small = (10.0, 1.0, 0.2)
    bundle, rest = next_bundle(segments(*[small] * 6), gcd(share=4), 1)
    assert (len(bundle), len(rest)) == (4, 2)
    large = (20.0, 1.0, 1.0)
    bundle, rest = next_bundle(segments(small, large, small), gcd(share=4), 1)
    assert [p.item for p in bundle] == [1]
    hungry = (20.0, 14.0, 0.1)
    bundle, rest = next_bundle(segments(small, hungry, small), gcd(16.0, 4), 1)
    assert [p.item for p in bundle] == [1]


def test_nothing_ready_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no segment is ready"):
        next_bundle([], gcd(), 1)
