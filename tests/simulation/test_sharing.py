"""Processor sharing: hand-made cases, and that work is neither lost nor made."""

from queue import SimpleQueue

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
