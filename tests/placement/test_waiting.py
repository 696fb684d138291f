"""Nothing waits for ever, whatever else comes and however wrong the estimates are."""

import heapq
import random
from dataclasses import dataclass, replace
from itertools import count

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from placer_cases import on_one_node

from hydragnn_flow.placement import Estimate, Fleet, Gcd, Host, Placeable, place
from hydragnn_flow.placement.placer import LATE

CANDIDATES = 4
GCD = Gcd(58.0, 1e13, 1e12, 1e-5, 0.6, most_segments=4)


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment(Placeable):
    lasts: float
    """Times as long as expected."""


def segment(seconds, width, ready_since, lasts=1.0):
    """A segment that is expected to take this long on its GCDs."""
    work = seconds * width
    estimate = Estimate(work, 30.0, uncorrected_seconds=work, busy=1.0)
    return Segment(estimate=estimate, width=width, ready_since=ready_since, lasts=lasts)


class Machine:
    """GCDs that always have something to do: another segment comes whenever one would be free."""

    def __init__(self, more, nodes):
        """`more` gives the next segment to come; nodes have eight GCDs, two belong to a block."""
        self.more = more
        self.extra = 0  # how many more are always ready than the GCDs can take
        self.now = 0.0
        self.ready, self.ends, self.numbers = [], [], count()
        self.fleet = Fleet(GCD, 8, 16)
        self.fleet.update([Host(f"node{n}", f"block{n // 2}") for n in range(nodes)])

    def step(self):
        """Go to the next end and fill the GCDs; returns what began."""
        if self.ends:
            self.now, _, ended = heapq.heappop(self.ends)
            self.fleet.end(ended.resident, ended.resident.spots, self.now)
        begun = self.place()
        while len(self.ready) < CANDIDATES * self.fleet.free + self.extra:
            self.ready.append(self.more(self.now))
            begun += self.place()
        return begun

    def place(self):
        placed, self.ready = place(self.ready, self.fleet, self.now)
        for one in placed:
            end = self.now + one.segment.seconds * one.segment.lasts
            heapq.heappush(self.ends, (end, next(self.numbers), one))
        return [one.segment for one in placed]


def others(seed, shortest, longest, widths, wrong, nodes=1):
    chance = random.Random(seed)

    def more(now):
        seconds, width = chance.uniform(shortest, longest), chance.choice(widths)
        return segment(seconds, width, now, chance.uniform(1.0, wrong))

    machine = Machine(more, nodes)
    machine.step()
    return machine


@settings(deadline=None, max_examples=60, phases=[Phase.explicit, Phase.generate])
@given(
    seed=st.integers(0, 1000),
    seconds=st.floats(1.0, 100.0),
    width=st.integers(1, 8),
    shortest=st.floats(10.0, 100.0),
    widths=st.sampled_from([[1], [1, 8], [2, 4, 8], [1, 1, 1, 8], [8], [3, 5]]),
    wrong=st.sampled_from([1.0, 1.2, 5.0]),
    extra=st.sampled_from([0, 1, 3]),
)
def test_whatever_comes_every_segment_is_placed(
    seed, seconds, width, shortest, widths, wrong, extra
):
    """Also where more comes all the time than there is room for."""
    machine = others(seed, shortest, 100.0, widths, wrong)
    machine.extra = extra
    waiting = segment(seconds, width, machine.now)
    machine.ready.append(waiting)
    # Those that had waited before it go first, then nobody; what runs takes `wrong` times as long.
    longest_wait = (LATE + len(machine.ready) + 2) * 100.0 * wrong
    while waiting not in machine.step():
        assert machine.now < longest_wait, "it still waits"


@pytest.mark.parametrize("wrong", [1.0, 5.0])
@pytest.mark.parametrize("width", [2, 16, 24])
def test_a_gang_gets_its_nodes_though_others_wait_for_every_gcd(width, wrong):
    machine = others(width, 10.0, 100.0, [1], wrong, nodes=4)
    gang = segment(10.0, width, machine.now)
    machine.ready.append(gang)
    while gang not in machine.step():
        assert machine.now < 25 * 100.0 * wrong, "it still waits"
    if wrong == 1.0 and width <= 16:
        assert machine.now <= 250.0


@pytest.mark.parametrize("gang_seconds", [100.0, 1000.0])
@pytest.mark.parametrize("width", [2, 8])
def test_a_gang_does_not_stand_behind_what_is_asked_for_later(width, gang_seconds):
    """Short or long: among trials of 400 to 800 s it begins when the first GCDs are free for it."""
    machine = others(0, 400.0, 800.0, [1], 1.0)
    gang = segment(gang_seconds, width, 0.0)
    machine.ready.append(gang)
    overtaking = 0
    while gang not in (begun := machine.step()):
        overtaking += len(begun)
    assert machine.now <= 800.0 and overtaking == 0


@pytest.mark.parametrize(
    ("widths", "least"), [([1, 2, 4], 0.88), ([1, 1, 1, 8], 0.80), ([1, 8], 0.80)]
)
def test_what_fairness_costs(widths, least):
    """Part of the time that the GCDs are busy, while gangs wait for each other."""
    machine = others(0, 36.0, 3600.0, widths, 1.0)
    work = 0.0
    for _ in range(400):
        work += sum(segment.seconds * segment.width for segment in machine.step())
    end = max(end for end, *_ in machine.ends)
    assert work / (8 * end) > least


def test_what_begins_now_counts_for_when_a_gang_can():
    """Eight GCDs are free, one of which goes to what was cut short, for 30 s."""
    cut_short = replace(segment(30.0, 1, 0.0), is_urgent=True)
    gang, brief, long = segment(10.0, 8, 0.0), segment(20.0, 1, 0.0), segment(40.0, 1, 0.0)
    bundles, rest = on_one_node([long, gang, brief, cut_short], GCD, 8)
    assert bundles == [[cut_short], [brief]]
    assert sorted(rest, key=id) == sorted([gang, long], key=id)
