"""A campaign on simulated GCDs and a clock of their own, without Parsl and without waiting."""

import ast
import heapq
import itertools
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest
from campaign_cases import MEMBERS, TRIALS
from phase_cases import NODE, SITE, change_gcd, hosts, member_phase, searched, trained, well

import hydragnn_flow.campaign
from hydragnn_flow.campaign import dispatch
from hydragnn_flow.campaign.dispatch import SECONDS_BETWEEN_CHECKS, SECONDS_BETWEEN_RECORDS
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.execution.jobs import WallClock
from hydragnn_flow.segment import SegmentResult

HOURS_OF_AN_EPOCH = 2.0


class Simulated:
    """Workers whose segments take hours of a clock that moves from end to end.

    Parameters
    ----------
    nodes
        How many.
    most
        Segments that may be on a GCD at the same time.
    """

    def __init__(self, nodes, most=1):
        self._hosts, self._most = hosts(nodes), most
        self._busy = Counter[tuple[str, int | None]]()
        self._now = 0.0
        self._order = itertools.count()
        self._ends: list[
            tuple[
                float,
                int,
                set[tuple[str, int | None]],
                Future[list[SegmentResult]],
                list[SegmentResult],
            ]
        ] = []

    def monotonic(self):
        return self._now

    def next(self, events, seconds):
        until = self._now + seconds
        while events.empty() and self._now < until:
            self._move(until - self._now)
        return None if events.empty() else events.get()

    def _move(self, seconds):
        # Where the campaign looks again and again for what has ended, hours pass at once.
        is_later = bool(self._ends) and self._ends[0][0] > self._now + seconds
        if not self._ends or (is_later and seconds < SECONDS_BETWEEN_CHECKS):
            self._now += seconds
            return
        self._now, _, places, future, results = heapq.heappop(self._ends)
        self._busy.subtract(places)
        future.set_result(results)

    def hosts(self):
        return self._hosts

    def call_off(self, node, attempt, reason): ...

    def release(self, node, attempt): ...

    def run(self, ranks, node):
        places = {(node, rank.gcd) for rank in ranks}
        self._busy.update(places)
        assert len(places) == len(ranks)
        assert all(self._busy[place] <= self._most for place in places)
        future: Future[list[SegmentResult]] = Future()
        results = [self._result(rank) for rank in ranks]
        end = self._now + max(result.seconds for result in results)
        heapq.heappush(self._ends, (end, next(self._order), places, future, results))
        return future

    def _result(self, rank):
        spec = rank.spec
        hours = HOURS_OF_AN_EPOCH * (spec.epochs.until_epoch - spec.epochs.after_epoch) / rank.world
        return replace(well(spec), seconds=3600 * hours, node="n", gcds=["0"])

    def update(self, demand=0): ...

    def waiting(self):
        return ""

    def record(self, node, work, worked): ...

    def avoid(self, node, reason): ...


class Brief(Simulated):
    """Segments of seconds that end one shortly after the other."""

    def __init__(self, nodes):
        super().__init__(nodes)
        self.began: dict[int, float] = {}

    def run(self, ranks, node):
        self.began[ranks[0].spec.number] = self._now
        return super().run(ranks, node)

    def _result(self, rank):
        return replace(super()._result(rank), seconds=10.0 + 0.05 * rank.spec.number)


def test_segments_that_end_within_a_moment_are_recorded_together(campaign, monkeypatch):
    monkeypatch.setattr(dispatch, "MANY", 1)
    context, machine = campaign(rungs="none"), Brief(3)
    context.clock, context.site = machine, replace(SITE, nodes=3)
    change_gcd(context, most_segments=1)
    recorded: list[tuple[float, list[float]]] = []
    record, began = context.ledger.record, machine.began

    def recording(results):
        if results:
            ends = [began[result.number] + result.seconds for result in results]
            recorded.append((machine.monotonic(), ends))
        record(results)

    monkeypatch.setattr(context.ledger, "record", recording)
    searched(TrialPhase(context), machine)
    delays = [now - end for now, ends in recorded for end in ends]
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(recorded)]
    # The first is not kept waiting, nor is the last when it alone is left.
    assert recorded[0][0] == 10.0 and len(delays) == TRIALS
    assert len(recorded) < TRIALS and gaps[0] > SECONDS_BETWEEN_RECORDS - 1e-6
    assert min(delays) > -1e-6 and max(delays) < SECONDS_BETWEEN_RECORDS + 1e-6


def no_time_passes(*_):
    raise AssertionError("the campaign waits by the clock of this machine")


@pytest.mark.parametrize(("nodes", "rounds"), [(1, 3), (3, 1)])
def test_a_campaign_runs_to_its_end_on_simulated_gcds(campaign, monkeypatch, nodes, rounds):
    """Days of training, one trial on a GCD at a time."""
    monkeypatch.setattr(time, "sleep", no_time_passes)
    monkeypatch.setattr(WallClock, "next", no_time_passes)
    monkeypatch.setattr(WallClock, "monotonic", no_time_passes)
    context = campaign(rungs="none")
    assert len(NODE.gcds) * nodes * rounds == TRIALS
    machine = Simulated(nodes)
    context.clock, context.site = machine, replace(SITE, nodes=nodes)
    change_gcd(context, most_segments=1)
    trials = searched(TrialPhase(context), machine)
    assert [trial.state for trial in trials] == ["complete"] * TRIALS
    seconds_of_a_trial = 3600 * HOURS_OF_AN_EPOCH * context.config.num_epoch
    assert machine.monotonic() == pytest.approx(rounds * seconds_of_a_trial, abs=1.0)
    members = trained(member_phase(context, trials[:MEMBERS]), machine)
    assert all(not member.reason for member in members)
    further = context.config.ensemble.epochs - context.config.num_epoch
    passed = machine.monotonic() - rounds * seconds_of_a_trial
    assert 0 < passed <= 3600 * HOURS_OF_AN_EPOCH * further + 1.0


def test_a_wall_clock_waits_for_events_no_longer_than_it_is_told():
    events: SimpleQueue[str] = SimpleQueue()
    clock = WallClock()
    before = clock.monotonic()
    assert clock.next(events, 0.02) is None
    assert clock.monotonic() - before >= 0.02
    events.put("over")
    assert clock.next(events, 60.0) == "over"
    assert clock.next(events, 0.0) is None


@pytest.mark.parametrize(
    "module",
    [
        *(f"campaign/{name}" for name in ("context", "dispatch", "members", "trials")),
        *(f"execution/{name}" for name in ("jobs", "workers/rank")),
    ],
)
def test_the_loop_imports_no_parsl(module):
    source = Path(hydragnn_flow.__path__[0], f"{module}.py").read_text(encoding="utf-8")
    imported = {
        node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    with_parsl = ("parsl", "hydragnn_flow.execution.pools", "hydragnn_flow.execution.sites")
    assert not {name for name in imported if name.startswith(with_parsl)}
