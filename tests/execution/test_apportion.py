"""How a site's blocks are divided among its two pools."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.execution.pools.apportion import apportion

numbers = st.integers(0, 70)


@given(st.tuples(numbers, numbers), st.tuples(numbers, numbers), st.integers(1, 64))
def test_blocks_keep_within_the_site_and_starve_no_pool(
    needed: tuple[int, int], has: tuple[int, int], most: int
) -> None:
    blocks = apportion(needed, has, most)
    assert sum(blocks) == min(sum(needed), most)
    for mine, need in zip(blocks, needed, strict=True):
        assert mine <= need
        assert mine >= min(need, 1) or most == 1


def test_a_single_block_stays_where_it_is_used() -> None:
    assert apportion((3, 1), (0, 1), 1) == (0, 1)
    assert apportion((3, 1), (1, 0), 1) == (1, 0)
    assert apportion((0, 1), (1, 0), 1) == (0, 1)
