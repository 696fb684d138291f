"""The driver's judgement of bad ends, with the machine faked and everything else real."""

from collections import Counter
from dataclasses import replace

import pytest
from campaign_cases import CONFIG, TRIALS
from parsl.executors.high_throughput.errors import ManagerLost, WorkerLost
from phase_cases import SITE, badly, leave_checkpoint, run, well

from hydragnn_flow.errors import CampaignStopped
from hydragnn_flow.execution.jobs import MOST_LOSSES, MOST_TRIES
from hydragnn_flow.execution.pools.interchange import NeverCame
from hydragnn_flow.segment import SegmentSpec


@pytest.mark.parametrize("status", ["killed", "error", "interrupted", "lost", ""])
def test_what_may_be_an_accident_is_tried_again(campaign, status):
    """As where a worker is lost with what it ran, and answers nothing."""
    accidents = {(1, 0), (2, 0), (0, 1)}

    def machine(spec):
        if (spec.number, spec.rung) in accidents:
            accidents.remove((spec.number, spec.rung))
            if not status:
                raise ConnectionError("node 7 is gone")
            return badly(spec, status)
        return well(spec)

    context = campaign()
    trials, _ = run(context, machine)
    assert not accidents
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    reason = "disk full" if status else "node 7 is gone"
    assert any(reason in result.reason for result in context.directory.results())


def test_a_lost_node_is_not_charged_to_its_trials(campaign):
    """More often than a trial may kill its worker; but a trial that only ever loses nodes ends."""
    lost: Counter[int] = Counter()
    worked = False

    def machine(spec):
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


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ManagerLost, "its node node7 was lost"), (NeverCame, "node7 took it no more")],
)
def test_a_gang_of_which_a_part_ends_badly_is_called_off_and_sent_again(campaign, error, reason):
    """It is on two nodes, one of which is lost or takes no more work."""
    space = {**CONFIG["search"]["space"], "Resources.gcds": {"choices": [4]}}
    sent: list[SegmentSpec] = []

    def machine(spec):
        sent.append(spec)
        if len(sent) == 1:
            raise error(b"m", "node7")
        return well(spec)

    context = campaign(space=space)
    context.site = replace(SITE, nodes=2)
    trials, pools = run(context, machine)
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    assert pools.called_off == [("node1", sent[0].attempt, reason)]
    again = next(spec for spec in sent[3:] if spec.number == sent[0].number)
    assert again.attempt != sent[0].attempt
    if error is ManagerLost:
        first, *_ = context.directory.results()
        assert (first.status, first.reason) == ("lost", reason)
        assert again.start.may_have_begun and not sent[0].start.may_have_begun


@pytest.mark.parametrize(
    ("status", "tries", "reason"),
    [
        ("diverged", 1, "diverged: disk full"),
        ("error", MOST_TRIES, "without getting further"),
    ],
)
def test_a_trial_that_diverges_or_never_gets_further_has_failed(campaign, status, tries, reason):
    trials, pools = run(
        campaign(),
        lambda spec: badly(spec, status) if spec.number == 2 else well(spec),
    )
    assert trials[2].state == "failed" and reason in trials[2].reason
    assert sum(spec.number == 2 for spec in pools.sent) == tries


def test_a_trial_that_gets_further_each_time_is_not(campaign):
    """Three walltimes must not end a healthy trial."""
    ends = 0

    def machine(spec):
        nonlocal ends
        if spec.number == 0 and spec.rung == 0 and ends < 3 * MOST_TRIES:
            ends += 1
            leave_checkpoint(spec)
            return badly(spec, "killed")
        return well(spec)

    trials, _ = run(campaign(), machine)
    assert ends == 3 * MOST_TRIES
    assert trials[0].state in ("complete", "pruned")


def test_where_nothing_ever_works_the_trials_keep_their_chance(campaign):
    with pytest.raises(CampaignStopped, match="disk full"):
        run(campaign(), badly)
    trials, _ = run(campaign(), well)
    assert len(trials) == TRIALS
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
