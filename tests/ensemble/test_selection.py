"""The best trials become members."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.ensemble.selection import select_top
from hydragnn_flow.errors import InputError
from hydragnn_flow.search import TrialRecord

STATES = ("running", "complete", "pruned", "failed")
records = st.lists(
    st.tuples(st.sampled_from(STATES), st.none() | st.floats(0, 9)), max_size=20
).map(lambda rows: [TrialRecord(i, s, {}, value) for i, (s, value) in enumerate(rows)])


@settings(deadline=None)
@given(records=records, size=st.integers(1, 8))
def test_the_best_that_finished_are_chosen(records: list[TrialRecord], size: int) -> None:
    finished = [r for r in records if r.state in ("complete", "pruned") and r.value is not None]
    if len(finished) < size:
        with pytest.raises(InputError, match=rf"size = {size}.* the {len(finished)} trials"):
            select_top(records, size)
        return
    chosen = select_top(records, size)
    assert len({r.number for r in chosen}) == size
    assert all(r in finished for r in chosen)
    order = [(r.value, r.number) for r in chosen]
    assert order == sorted(order)
    assert all((r.value, r.number) > order[-1] for r in finished if r not in chosen)


def test_why_there_are_too_few_is_said() -> None:
    trials = [
        TrialRecord(0, "complete", {}, 0.1),
        TrialRecord(1, "failed", {}, None, "diverged: loss is NaN"),
    ]
    with pytest.raises(InputError) as caught:
        select_top(trials, 2)
    message = str(caught.value)
    assert "ensemble.size = 2" in message and "1 failed" in message
    assert "diverged: loss is NaN" in message and "search.trials" in message
    assert "\n" not in message
