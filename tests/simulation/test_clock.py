"""Virtual time."""

from queue import SimpleQueue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.errors import CampaignStopped
from hydragnn_flow.execution.jobs import SECONDS_BETWEEN_CHECKS
from hydragnn_flow.simulation.blocks import VirtualClock


@given(st.lists(st.floats(0, 1e6), max_size=20))
def test_what_is_to_happen_does_so_in_order_and_at_its_time(times):
    clock = VirtualClock()
    happened: list[tuple[float, int]] = []
    for number, when in enumerate(times):
        clock.at(when, lambda number=number: happened.append((clock.monotonic(), number)))
    clock.next(SimpleQueue(), 2e6)
    assert happened == sorted((when, number) for number, when in enumerate(times))


def test_a_campaign_that_waits_for_an_end_is_there_after_few_looks():
    clock, events = VirtualClock(), SimpleQueue[str]()
    clock.at(7200.0, lambda: events.put("over"))
    assert clock.next(events, 0.0) is None and clock.monotonic() == 0.0
    assert clock.next(events, 0.2) is None and clock.monotonic() == 0.2
    looks = [0.2]
    while clock.next(events, SECONDS_BETWEEN_CHECKS) is None:
        looks.append(clock.monotonic())
    assert clock.monotonic() == 7200.0
    # A minute after the last event it has looked what takes a minute to tell.
    assert len(looks) < 12 and any(60 <= when <= 120 for when in looks)


def test_events_end_the_wait_at_their_time():
    clock, events = VirtualClock(), SimpleQueue[int]()
    for when in (3, 1, 2):
        clock.at(when, lambda when=when: events.put(when))
    assert [(clock.next(events, 10.0), clock.monotonic()) for _ in range(3)] == [
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
    ]


def test_what_was_called_off_does_not_happen():
    clock = VirtualClock()
    clock.at(1.0, lambda: pytest.fail("it has happened")).call_off()
    assert clock.next(SimpleQueue(), 5.0) is None


def test_a_campaign_that_waits_for_nothing_is_stopped():
    clock = VirtualClock()
    with pytest.raises(CampaignStopped, match="does not come"):
        for _ in range(2_000):
            clock.next(SimpleQueue(), SECONDS_BETWEEN_CHECKS)
