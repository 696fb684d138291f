"""A campaign on simulated GCDs and a clock of their own, without Parsl and without waiting."""

from __future__ import annotations

import ast
import heapq
import itertools
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

import pytest
from campaign_cases import MEMBERS, TRIALS
from phase_cases import SITE, Campaign, change_gcd, member_phase, well

import hydragnn_flow.campaign
from hydragnn_flow.campaign.machine import Clock, Event, WallClock, Workers
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.execution import PoolName, RankGroup
from hydragnn_flow.segment import SegmentResult

HOURS_OF_AN_EPOCH = 2.0


class Simulated:
    """Workers whose segments take hours of a clock that moves from end to end.

    Parameters
    ----------
    gcd, node
        Workers of each pool.
    """

    def __init__(self, gcd: int, node: int) -> None:
        self._free = {"gcd": gcd, "node": node}
        self._now = 0.0
        self._order = itertools.count()
        self._ends: list[
            tuple[float, int, PoolName, Future[list[SegmentResult]], list[SegmentResult]]
        ] = []

    def monotonic(self) -> float:
        return self._now

    def next(self, events: SimpleQueue[Event], seconds: float) -> Event | None:
        if events.empty() and seconds > 0:
            self._move(seconds)
        return None if events.empty() else events.get()

    def _move(self, seconds: float) -> None:
        if not self._ends:
            self._now += seconds
            return
        self._now, _, pool, future, results = heapq.heappop(self._ends)
        self._free[pool] += 1
        future.set_result(results)

    def free(self, pool: PoolName) -> int:
        return self._free[pool]

    def run(self, pool: PoolName, groups: Sequence[RankGroup]) -> Future[list[SegmentResult]]:
        assert self._free[pool] > 0
        self._free[pool] -= 1
        future: Future[list[SegmentResult]] = Future()
        results = [self._result(group) for group in groups]
        end = self._now + max(result.seconds for result in results)
        heapq.heappush(self._ends, (end, next(self._order), pool, future, results))
        return future

    def _result(self, group: RankGroup) -> SegmentResult:
        spec, ranks = group.spec, group.world or len(group.gcds or (0,))
        hours = HOURS_OF_AN_EPOCH * (spec.until_epoch - spec.after_epoch) / ranks
        return replace(well(spec), seconds=3600 * hours, node="n", gcds=["0"])

    def update(self, gcd: int = 0, node: int = 0) -> None: ...

    def waiting(self) -> str:
        return ""

    def record(self, node: str, work: Hashable, worked: bool) -> None: ...

    def avoid(self, node: str, reason: str) -> None: ...


def no_time_passes(*_: object) -> NoReturn:
    raise AssertionError("the campaign waits by the clock of this machine")


@pytest.mark.parametrize(("gcds", "rounds"), [(2, 3), (6, 1)])
def test_a_campaign_runs_to_its_end_on_simulated_gcds(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, gcds: int, rounds: int
) -> None:
    """Days of training, one trial on a GCD at a time."""
    monkeypatch.setattr(time, "sleep", no_time_passes)
    monkeypatch.setattr(WallClock, "next", no_time_passes)
    monkeypatch.setattr(WallClock, "monotonic", no_time_passes)
    context = campaign(rungs="none")
    machine = Simulated(gcds, node=gcds // 2)
    context.clock, context.site = machine, replace(SITE, nodes=gcds // 2)
    change_gcd(context, most_segments=1)
    trials = TrialPhase(context).run(machine)
    assert [trial.state for trial in trials] == ["complete"] * TRIALS
    seconds_of_a_trial = 3600 * HOURS_OF_AN_EPOCH * context.config.num_epoch
    assert machine.monotonic() == pytest.approx(rounds * seconds_of_a_trial)
    members = member_phase(context, trials[:MEMBERS]).run(machine)
    assert all(not member.reason for member in members)
    further = context.config.ensemble.epochs - context.config.num_epoch
    passed = machine.monotonic() - rounds * seconds_of_a_trial
    assert 0 < passed <= 3600 * HOURS_OF_AN_EPOCH * further


def test_a_wall_clock_waits_for_events_no_longer_than_it_is_told() -> None:
    events: SimpleQueue[str] = SimpleQueue()
    clock = WallClock()
    before = clock.monotonic()
    assert clock.next(events, 0.02) is None
    assert clock.monotonic() - before >= 0.02
    events.put("over")
    assert clock.next(events, 60.0) == "over"
    assert clock.next(events, 0.0) is None


def test_simulated_workers_are_workers() -> None:
    """For the type checker."""
    workers: Workers = Simulated(1, 1)
    clock: Clock = Simulated(1, 1)
    assert workers.free("gcd") == 1 and clock.monotonic() == 0.0


@pytest.mark.parametrize("module", ["context", "dispatch", "machine", "members", "trials"])
def test_the_loop_imports_no_parsl(module: str) -> None:
    source = Path(hydragnn_flow.campaign.__path__[0], f"{module}.py").read_text()
    imported = {
        node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    assert not {name for name in imported if name.startswith(("parsl", "hydragnn_flow.execution."))}
