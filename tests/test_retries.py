"""Retries: what counts against work, and when it is given up."""

from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.retries import MOST_LOSSES, MOST_TRIES, Retries


@given(st.lists(st.booleans(), max_size=20))
def test_work_is_given_up_after_its_own_failures_or_many_losses(own):
    retries = Retries()
    for is_own in own:
        retries = retries.failed() if is_own else retries.lost()
    assert retries.total == len(own)
    tries = sum(own)
    assert retries.is_hopeless == (tries >= MOST_TRIES or len(own) - tries >= MOST_LOSSES)
