"""Proposals on demand where trials are long, ahead where they are short; on a simulated clock."""

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_race.engines import Awaited, Clock

from hydragnn_flow.config import Parameter
from hydragnn_flow.search.samplers import auto as supply
from hydragnn_flow.search.samplers.auto import Proposals, Supply
from hydragnn_flow.search.samplers.encoding import KnownTrial

SPACE = {"known": Parameter(int=(0, 10_000))}


class Counting:
    """Proposes the number of results that it was told of, and takes its time."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.free = clock, seconds, 0.0
        self.requests = 0

    def propose(self, known, running, count, seed):
        self.requests += 1
        took = count * self.seconds
        self.free = max(self.free, self.clock.now) + took
        return Awaited(self.clock, self.free, Proposals([{"known": len(known)}] * count, took))

    def close(self): ...


def campaign(trial_seconds, proposing, in_flight, trials):
    """How many results each proposal did not know; time waited and in all; trials without one."""
    clock = Clock()
    asked = Supply(lambda: Counting(clock, proposing), clock)
    running: list[tuple[float, int]] = []
    finished: list[KnownTrial] = []
    stale, waited, missing = [], 0.0, 0
    for number in range(in_flight):
        asked.begun(number)
        heapq.heappush(running, (clock.now + trial_seconds * (1 + number / in_flight), number))
    for number in range(in_flight, trials):
        end, ended = heapq.heappop(running)
        clock.now = max(clock.now, end)
        asked.ended(ended)
        finished.append(KnownTrial({}, [0.0]))
        before = clock.now
        proposal = asked.take(finished, [{}] * len(running), seed=number)
        waited += clock.now - before
        if proposal is None:
            missing += 1
        else:
            stale.append(len(finished) - proposal["known"])
        asked.begun(number)
        heapq.heappush(running, (clock.now + trial_seconds, number))
    return stale, waited, clock.now, missing


@pytest.mark.parametrize("in_flight", [1, 256])
def test_where_trials_are_long_every_proposal_knows_all_results(in_flight):
    stale, waited, _, missing = campaign(600.0, 0.4, in_flight, 4 * in_flight + 4)
    assert set(stale) == {0} and missing == 0
    assert waited == pytest.approx(0.4 * len(stale))


def test_where_trials_are_short_the_driver_hardly_waits_and_some_results_are_not_known():
    stale, waited, _, missing = campaign(5.0, 0.4, 4, 400)
    # Once, before it is known what a proposal takes.
    assert waited <= supply.MOST_IDLE * 5.0
    assert missing < 10
    assert max(stale) <= 4


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.05, 4000.0),
    st.floats(0.01, 5.0) | st.just(1e9),
    st.sampled_from([1, 2, 7, 64, 300]),
    st.data(),
)
def test_waiting_idles_next_to_nothing(trial_seconds, proposing, in_flight, data):
    """Also where the process that proposes hangs."""
    trials = data.draw(st.integers(in_flight + 1, 3 * in_flight + 50))
    _, waited, passed, _ = campaign(trial_seconds, proposing, in_flight, trials)
    served = trials - in_flight
    # Of the trial that is asked for, and of the driver.
    assert waited <= served * supply.MOST_IDLE * 2 * trial_seconds
    assert waited <= served * supply.MOST_SECONDS
    assert waited <= 2 * supply.MOST_BUSY * passed
