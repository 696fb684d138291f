"""The search phase, with the machine faked and everything else real."""

import itertools
import re
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest
from campaign_cases import CONFIG, TRIALS
from phase_cases import FakePool, badly, change_gcd, hosts, run, searched, task_of, well

import hydragnn_flow.campaign
from hydragnn_flow.campaign import dispatch as dispatch_module
from hydragnn_flow.campaign import trials as trials_module
from hydragnn_flow.campaign.dispatch import SECONDS_BETWEEN_RECORDS, Dispatch
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import jobs
from hydragnn_flow.execution.jobs import Clock
from hydragnn_flow.search import Outcome
from hydragnn_flow.segment import SegmentResult
from hydragnn_flow.simulation.blocks import VirtualClock


def test_fewer_trials_than_were_asked_for_end_the_search(campaign):
    """With all that had begun, and workers to end it."""

    class Greedy(FakePool):
        wanted = 0

        def update(self, demand=0):
            self.wanted = demand

        def hosts(self):
            return hosts(min(-(-self.wanted // 2), self.nodes))

    phase = TrialPhase(campaign(trials=12))
    for _ in range(12):
        phase.search.ask()
    for number in range(9):
        phase.search.fail(number, "diverged: loss is nan")
    phase.search.close()
    trials = searched(TrialPhase(campaign(trials=2)), Greedy(well))
    assert {trial.state for trial in trials[9:]} <= {"complete", "pruned"}


@pytest.mark.parametrize(("launch_seconds", "asked"), [(0.0, 2), (1.0, 5)])
def test_no_more_trials_are_asked_for_than_fill_the_free_gcds(campaign, launch_seconds, asked):
    """What computes all the time fills a GCD; of what waits for its launches four share one.

    While it is not known how they get on together, one of four has a GCD to itself.
    """
    context = campaign(trials=10)
    change_gcd(context, most_segments=4, launch_seconds=launch_seconds, step_seconds=0.0)
    before: list[int] = []
    phase, pools = TrialPhase(context), FakePool(well)
    pools.update = lambda demand: before.append(phase.search.asked)
    searched(phase, pools)
    assert before[:2] == [0, asked]


def test_the_first_trials_are_sent_before_the_last_are_asked_for(campaign, monkeypatch):
    monkeypatch.setattr(trials_module, "_MOST_AT_ONCE", 2)
    context = campaign(trials=20, nodes=4)
    asked: list[int] = []

    class Counting(FakePool):
        def run(self, *args):
            asked.append(phase.search.asked)
            ended = super().run(*args)
            if len(asked) > 8:
                return ended
            held.append((Future(), ended))
            if len(asked) == 8:  # until then none has ended
                for answer, before in held:
                    answer.set_result(before.result())
            return held[-1][0]

    held: list[tuple[Future[list[SegmentResult]], Future[list[SegmentResult]]]] = []
    phase = TrialPhase(context)
    searched(phase, Counting(well, nodes=4))
    assert asked[0] == 2
    assert asked[7] >= 8, "not all free GCDs got work before the driver waited for results"


def test_a_gang_whose_ranks_do_not_follow_one_that_has_ended_is_called_off(campaign, monkeypatch):
    monkeypatch.setattr(jobs, "SECONDS_TO_FOLLOW", 0.0)

    class Hanging(FakePool):
        def run(self, ranks, node):
            answer = super().run(ranks, node)
            return Future() if ranks[0].number else answer

    space = {**CONFIG["search"]["space"], "Resources.gcds": {"choices": [4]}}
    context = campaign(space=space, nodes=2)
    phase, pools = TrialPhase(context), Hanging(lambda spec: badly(spec, "diverged"), nodes=2)
    dispatch = Dispatch(context, pools)
    phase._ask()
    phase._send(dispatch)
    for _ in range(2):
        assert dispatch.wait() == []
    assert pools.called_off == [("node1", pools.sent[0].attempt, "disk full")]
    phase.search.close()


def test_the_rule_ends_every_trial(campaign):
    context = campaign()
    trials, pools = run(context, well)
    assert len(trials) == TRIALS
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    assert len({spec.attempt for spec in pools.sent}) == len(pools.sent)
    assert any(trial.state == "complete" for trial in trials)
    ends = {result.to_epoch for result in context.directory.results() if result.number == 0}
    assert max(ends) == context.config.num_epoch
    assert ends <= set(context.config.rungs)


# Each goes with the data by itself; `mlp_per_node` only where all structures are of one size.
NODE_HEADS = {"Architecture.output_heads.node.type": {"choices": ["mlp", "mlp_per_node"]}}
# Each pair goes together; all three do not.
HEADS = {
    "Architecture.hidden_dim": {"choices": [32, 33]},
    "Architecture.global_attn_heads": {"choices": [1, 4]},
    "Architecture.global_attn_engine": {"choices": ["", "GPS"]},
}


@pytest.mark.parametrize("space", [NODE_HEADS, HEADS], ids=["for the data", "at all"])
def test_a_network_that_cannot_be_fails_its_trial_alone(campaign, space):
    changes = {"space": space, "sampler": "random", "trials": 24}
    trials, pools = run(campaign(**changes), well)
    failed = {trial.number for trial in trials if trial.state == "failed"}
    assert 0 < len(failed) < 24
    assert failed.isdisjoint(spec.number for spec in pools.sent)
    assert all(trials[number].reason.startswith("error: network") for number in failed)
    assert {trial.state for trial in trials} <= {"complete", "pruned", "failed"}


def test_a_driver_takes_up_trials_that_cannot_be(campaign):
    """As the driver leaves them that is killed before it has seen that."""
    changes = {"space": NODE_HEADS, "sampler": "random"}
    phase = TrialPhase(campaign(**changes))
    asked = [phase.search.ask() for _ in range(TRIALS)]
    phase.search.close()
    trials, _ = run(campaign(**changes), well)
    assert [trial.state == "failed" for trial in trials] == [
        "mlp_per_node" in trial.parameters.values() for trial in asked
    ]
    assert any(trial.state == "failed" for trial in trials)


def test_where_no_network_can_be_the_search_says_so(campaign):
    space = {"Architecture.output_heads.node.type": {"choices": ["mlp_per_node"]}}
    context = campaign(space=space, trials=1000)
    with pytest.raises(InputError, match=r"search\.space: none of the .* network.*mlp_per_node"):
        run(context, well)
    assert len(TrialPhase(campaign(space=space, trials=1000)).search.records) < 100


def test_a_verdict_stands_after_a_restart(campaign):
    """A trial that went on is not pruned because better ones came before the next driver."""
    phase = TrialPhase(campaign())
    first = phase.search.ask()
    assert phase.search.report(first.number, 0, Outcome((5.0,))) == "goes_on"
    for value in (1.0, 2.0, 3.0):
        phase.search.report(phase.search.ask().number, 0, Outcome((value,)))
    phase.search.close()
    result = well(task_of(phase.context, first).spec)
    phase.context.directory.record([replace(result, best_val_error=5.0)])
    again = TrialPhase(campaign())
    assert again.search.records[0].state == "running"
    ready = [task for task in again._ready if task.spec.number == 0]
    assert [task.spec.rung for task in ready] == [1]


def test_segments_that_end_within_a_moment_are_recorded_together(campaign, monkeypatch):
    monkeypatch.setattr(dispatch_module, "MANY", 1)
    context, clock = campaign(rungs="none", nodes=3), VirtualClock()
    context.clock = clock
    change_gcd(context, most_segments=1)
    ends: dict[int, float] = {}

    class Brief(FakePool):
        """Segments of seconds that end one shortly after the other."""

        def run(self, ranks, node):
            done, number = super().run(ranks, node), ranks[0].spec.number
            ends[number] = clock.monotonic() + 10.0 + 0.05 * number
            later: Future[list[SegmentResult]] = Future()
            clock.at(ends[number], lambda: later.set_result(done.result()))
            return later

    recorded: list[tuple[float, list[float]]] = []
    record = context.ledger.record

    def recording(results):
        if results:
            recorded.append((clock.monotonic(), [ends[result.number] for result in results]))
        record(results)

    monkeypatch.setattr(context.ledger, "record", recording)
    searched(TrialPhase(context), Brief(well, nodes=3))
    delays = [now - end for now, of in recorded for end in of]
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(recorded)]
    # The first is not kept waiting, nor is the last when it alone is left.
    assert recorded[0][0] == 10.0 and len(delays) == TRIALS
    assert len(recorded) < TRIALS and gaps[0] > SECONDS_BETWEEN_RECORDS - 1e-6
    assert min(delays) > -1e-6 and max(delays) < SECONDS_BETWEEN_RECORDS + 1e-6


def test_a_wall_clock_waits_for_events_no_longer_than_it_is_told():
    events: SimpleQueue[str] = SimpleQueue()
    clock = Clock()
    before = clock.monotonic()
    assert clock.next(events, 0.02) is None
    assert clock.monotonic() - before >= 0.02
    events.put("over")
    assert clock.next(events, 60.0) == "over"
    assert clock.next(events, 0.0) is None


def test_the_loop_imports_no_parsl():
    """So that campaigns are simulated without it."""
    loop = [f"campaign/{name}" for name in ("context", "dispatch", "members", "trials")]
    with_parsl = r"parsl|hydragnn_flow\.execution\.(pools|sites)"
    for module in (*loop, "execution/jobs", "execution/workers/rank"):
        source = Path(hydragnn_flow.__path__[0], f"{module}.py").read_text(encoding="utf-8")
        assert not re.search(rf"^\s*(from|import) ({with_parsl})", source, re.MULTILINE), module


def test_what_has_waited_longest_is_sent_first(campaign):
    """Though it is the shortest; a driver sends the longest first otherwise."""
    context = campaign()
    phase, pools = TrialPhase(context), FakePool(well)
    dispatch = Dispatch(context, pools)
    for _ in range(3):
        phase._ask()
    phase._ready = [
        replace(task, estimate=replace(task.estimate, seconds=seconds, busy=1.0))
        for task, seconds in zip(phase._ready, (5.0, 9.0, 7.0), strict=True)
    ]
    phase._gcds = 1
    phase._ready = phase._send(dispatch)
    first = next(task for task in phase._ready if task.spec.number == 0)
    phase._ready.remove(first)
    phase._ready.append(replace(first, ready_since=first.ready_since - 8.0))
    phase._gcds = 2
    phase._send(dispatch)
    assert [spec.number for spec in pools.sent] == [1, 0]
    phase.search.close()
