"""Virtual time, and GCDs shared in it: hand-made cases, and that work is neither lost nor made."""

from queue import SimpleQueue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.errors import CampaignStopped
from hydragnn_flow.execution.jobs import SECONDS_BETWEEN_CHECKS
from hydragnn_flow.placement import Spot
from hydragnn_flow.simulation.blocks import VirtualClock
from hydragnn_flow.simulation.workers import Gcds, Job

A, B = Spot("n", 0), Spot("n", 1)


class Machine:
    """GCDs, and when the jobs on them have ended."""

    def __init__(self, interference=0.0):
        self.clock = VirtualClock()
        self.gcds = Gcds(self.clock, interference)
        self.ends: dict[str, float] = {}

    def begin(self, name, when, seconds, busy, *spots):
        def ended():
            self.gcds.end(job)
            self.ends[name] = self.clock.monotonic()

        job = Job(spots, seconds, busy, 1.0, ended)
        self.clock.at(when, lambda: self.gcds.begin(job))

    def run(self):
        self.clock.next(SimpleQueue(), 1e9)
        return {name: pytest.approx(end) for name, end in self.ends.items()}


@pytest.mark.parametrize(
    ("interference", "jobs", "ends"),
    [
        (0.0, [("alone", 5.0, 10.0, 1.0, A)], {"alone": 15.0}),
        # The late one has half of the GCD from 4 to 10.
        (
            0.0,
            [("long", 0.0, 10.0, 1.0, A), ("late", 4.0, 3.0, 1.0, A)],
            {"late": 10.0, "long": 13.0},
        ),
        # Two that are half busy do not feel each other, but for interference.
        (0.0, [("one", 0.0, 10.0, 0.5, A), ("two", 0.0, 6.0, 0.5, A)], {"two": 6.0, "one": 10.0}),
        (0.25, [("one", 0.0, 8.0, 0.1, A), ("two", 0.0, 4.0, 0.1, A)], {"two": 5.0, "one": 9.0}),
        # A gang goes at the pace of its slowest rank.
        (
            0.0,
            [("gang", 0.0, 10.0, 1.0, A, B), ("guest", 2.0, 4.0, 1.0, B)],
            {"guest": 10.0, "gang": 14.0},
        ),
    ],
)
def test_jobs_share_a_gcd(interference, jobs, ends):
    machine = Machine(interference)
    for job in jobs:
        machine.begin(*job)
    assert machine.run() == ends


_JOBS = st.lists(
    st.tuples(
        st.floats(0, 50),
        st.floats(0.1, 50),
        st.floats(0.05, 1.0),
        st.sampled_from([(A,), (B,), (A, B)]),
    ),
    min_size=1,
    max_size=8,
)


@given(_JOBS)
def test_work_is_neither_lost_nor_made(jobs):
    machine = Machine()
    for number, (when, seconds, busy, spots) in enumerate(jobs):
        machine.begin(str(number), when, seconds, busy, *spots)
    machine.run()
    assert len(machine.ends) == len(jobs)
    for number, (when, seconds, _, _) in enumerate(jobs):
        assert machine.ends[str(number)] >= (when + seconds) * (1 - 1e-9)
    work = sum(seconds * busy * len(spots) for _, seconds, busy, spots in jobs)
    assert machine.gcds.busy == pytest.approx(work)
    # A GCD does no more than one second of work in a second, and all of it while it is occupied.
    assert work <= machine.gcds.occupied * (1 + 1e-9)
    last, first = max(machine.ends.values()), min(when for when, *_ in jobs)
    for spot in (A, B):
        mine = sum(seconds * busy for _, seconds, busy, spots in jobs if spot in spots)
        assert last - first >= mine * (1 - 1e-9)


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
