"""The driver's judgement of bad ends, with the machine faked and everything else real."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from campaign_cases import CONFIG, TRIALS
from parsl.executors.high_throughput.errors import ManagerLost, WorkerLost
from phase_cases import (
    SITE,
    Campaign,
    badly,
    leave_checkpoint,
    run,
    well,
)

from hydragnn_flow.errors import CampaignStopped
from hydragnn_flow.execution.pools.interchange import NeverCame
from hydragnn_flow.retries import MOST_LOSSES, MOST_TRIES
from hydragnn_flow.segment import SegmentResult, SegmentSpec


@pytest.mark.parametrize("status", ["killed", "error", "interrupted", "lost"])
def test_what_may_be_an_accident_is_tried_again(campaign: Campaign, status: str) -> None:
    accidents = {(1, 0), (2, 0), (0, 1)}

    def machine(spec: SegmentSpec) -> SegmentResult:
        if (spec.number, spec.rung) in accidents:
            accidents.remove((spec.number, spec.rung))
            return badly(spec, status)
        return well(spec)

    trials, _ = run(campaign(), machine)
    assert not accidents
    assert {trial.state for trial in trials} <= {"complete", "pruned"}


def test_a_lost_worker_is_an_accident(campaign: Campaign) -> None:
    lost = 0

    def machine(spec: SegmentSpec) -> SegmentResult:
        nonlocal lost
        lost += 1
        if lost == 3:
            raise ConnectionError("node 7 is gone")
        return well(spec)

    context = campaign()
    trials, _ = run(context, machine)
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    assert any("node 7 is gone" in result.reason for result in context.directory.results())


def test_a_lost_node_is_not_charged_to_its_trials(campaign: Campaign) -> None:
    """More often than a trial may kill its worker; but a trial that only ever loses nodes ends."""
    lost: Counter[int] = Counter()
    worked = False

    def machine(spec: SegmentSpec) -> SegmentResult:
        nonlocal worked
        if not worked:  # or it would be the machine that is to blame
            worked = True
            return well(spec)
        lost[spec.number] += 1
        if spec.number == 1 and lost[1] <= 2 * MOST_TRIES:
            raise ManagerLost(b"m", "node7")
        if spec.number == 2:
            raise WorkerLost(1, "node9")
        if spec.number == 3:
            raise ManagerLost(b"m", "node8")
        return well(spec)

    context = campaign()
    trials, _ = run(context, machine)
    assert lost[1] > 2 * MOST_TRIES
    assert trials[1].state in ("complete", "pruned")
    assert trials[2].state == "failed" and "its worker was lost (WorkerLost" in trials[2].reason
    assert lost[2] == MOST_TRIES
    assert trials[3].state == "failed" and "node8 was lost" in trials[3].reason
    assert lost[3] == MOST_LOSSES


def test_a_gang_of_which_a_part_ends_badly_is_called_off_and_sent_again(
    campaign: Campaign,
) -> None:
    """It is on two nodes, one of which is lost."""
    space = {**CONFIG["search"]["space"], "Resources.gcds": {"choices": [4]}}
    sent: list[SegmentSpec] = []

    def machine(spec: SegmentSpec) -> SegmentResult:
        sent.append(spec)
        if len(sent) == 1:
            raise ManagerLost(b"m", "node7")
        return well(spec)

    context = campaign(space=space)
    context.site = replace(SITE, nodes=2)
    trials, pools = run(context, machine)
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    first, *_ = context.directory.results()
    assert (first.status, first.reason) == ("lost", "its node node7 was lost")
    assert pools.called_off == [("node1", sent[0].attempt, "its node node7 was lost")]
    again = next(spec for spec in sent[3:] if spec.number == sent[0].number)
    assert again.attempt != sent[0].attempt
    assert again.may_have_begun and not sent[0].may_have_begun


def test_a_gang_of_which_a_rank_never_came_is_called_off_at_once(campaign: Campaign) -> None:
    """And not charged, where a loss would be recorded as a failure."""
    space = {**CONFIG["search"]["space"], "Resources.gcds": {"choices": [4]}}
    sent: list[SegmentSpec] = []

    def machine(spec: SegmentSpec) -> SegmentResult:
        sent.append(spec)
        if len(sent) == 1:
            raise NeverCame(b"m", "node7")
        return well(spec)

    context = campaign(space=space, failures={"lost": "record"})
    context.site = replace(SITE, nodes=2)
    trials, pools = run(context, machine)
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    assert pools.called_off == [("node1", sent[0].attempt, "node7 took it no more")]


@pytest.mark.parametrize("status", ["diverged", "out_of_memory", "killed", "lost"])
def test_a_failure_is_recorded_where_the_configuration_says_so(
    campaign: Campaign, status: str
) -> None:
    failures = {"diverged": "record", "out_of_memory": "record", "lost": "record"}
    trials, pools = run(
        campaign(failures=failures),
        lambda spec: badly(spec, status) if spec.number == 2 else well(spec),
    )
    assert trials[2].state == "failed"
    assert trials[2].reason == f"{status}: disk full"
    assert sum(spec.number == 2 for spec in pools.sent) == 1


def test_a_diverged_trial_may_be_tried_again(campaign: Campaign) -> None:
    trials, pools = run(
        campaign(failures={"diverged": "retry"}),
        lambda spec: badly(spec, "diverged") if spec.number == 2 else well(spec),
    )
    assert trials[2].state == "failed"
    assert sum(spec.number == 2 for spec in pools.sent) == MOST_TRIES


def test_a_trial_that_never_gets_further_is_failed(campaign: Campaign) -> None:
    trials, pools = run(campaign(), lambda spec: (badly if spec.number == 2 else well)(spec))
    assert trials[2].state == "failed"
    assert "without getting further" in trials[2].reason
    assert sum(spec.number == 2 for spec in pools.sent) == MOST_TRIES


def test_a_trial_that_gets_further_each_time_is_not(campaign: Campaign) -> None:
    """Three walltimes must not end a healthy trial."""
    ends = 0

    def machine(spec: SegmentSpec) -> SegmentResult:
        nonlocal ends
        if spec.number == 0 and spec.rung == 0 and ends < 3 * MOST_TRIES:
            ends += 1
            leave_checkpoint(spec)
            return badly(spec, "killed")
        return well(spec)

    trials, _ = run(campaign(), machine)
    assert ends == 3 * MOST_TRIES
    assert trials[0].state in ("complete", "pruned")


def test_where_nothing_ever_works_the_trials_keep_their_chance(
    campaign: Campaign,
) -> None:
    with pytest.raises(CampaignStopped, match="disk full"):
        run(campaign(), badly)
    trials, _ = run(campaign(), well)
    assert len(trials) == TRIALS
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
