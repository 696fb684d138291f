"""Retries: what counts against work, and when it is given up."""

from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.execution.jobs import MOST_LOSSES, MOST_TRIES, Retries


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
