"""The driver's judgement of bad ends and bad nodes, with the machine faked and the rest real."""

import itertools
from collections import Counter
from dataclasses import replace
from unittest.mock import Mock

import pytest
from campaign_cases import CONFIG, MEMBERS, TRIALS
from optuna import load_study
from parsl.executors.high_throughput.errors import ManagerLost, WorkerLost
from phase_cases import (
    FakePool,
    badly,
    leave_checkpoint,
    member_phase,
    refused,
    run,
    searched,
    trained,
    well,
)

from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution.jobs import MOST_LOSSES, MOST_TRIES
from hydragnn_flow.execution.pools.interchange import NeverCame
from hydragnn_flow.search.storage import STUDY, read_journal
from hydragnn_flow.segment import SegmentSpec


@pytest.mark.parametrize("status", ["killed", "interrupted", ""])
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
    losses = {1: ManagerLost(b"m", "n7"), 2: WorkerLost(1, "n9"), 3: ManagerLost(b"m", "n8")}

    def machine(spec):
        # The first of all works, or it would be the machine that is to blame.
        if spec.number not in losses or (spec.number == 1 and lost[1] > 2 * MOST_TRIES):
            return well(spec)
        lost[spec.number] += 1
        raise losses[spec.number]

    trials, _ = run(campaign(), machine)
    assert trials[1].state in ("complete", "pruned")
    assert trials[2].state == "failed" and "its worker was lost (WorkerLost" in trials[2].reason
    assert trials[3].state == "failed" and "n8 was lost" in trials[3].reason
    assert lost == {1: 2 * MOST_TRIES + 1, 2: MOST_TRIES, 3: MOST_LOSSES}


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

    context = campaign(space=space, nodes=2)
    trials, pools = run(context, machine)
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    assert pools.called_off == [("node1", sent[0].attempt, reason)]
    again = next(spec for spec in sent[3:] if spec.number == sent[0].number)
    assert again.attempt != sent[0].attempt
    if error is ManagerLost:
        first, *_ = context.directory.results()
        assert (first.status, first.reason) == ("lost", reason)
        assert again.start.may_have_begun and not sent[0].start.may_have_begun


def test_a_trial_that_diverges_or_never_gets_further_has_failed(campaign):
    status = {2: "diverged", 3: "error"}

    def machine(spec):
        if spec.number not in status:
            return well(spec)
        return replace(badly(spec, status[spec.number]), seconds=2.0, peak_memory_gib=0.5)

    context = campaign()
    trials, pools = run(context, machine)
    assert [trial.state for trial in trials[2:4]] == ["failed"] * 2
    storage = read_journal(context.directory.journal)
    attributes = load_study(study_name=STUDY, storage=storage).trials[3].user_attrs
    assert attributes["gcd_seconds"] == 2.0 * MOST_TRIES, "failures have a cost, too"
    assert (attributes["gcds"], attributes["peak_memory_gib"]) == (1, 0.5)
    assert trials[2].reason == "diverged: disk full"
    assert "without getting further" in trials[3].reason
    tries = Counter(spec.number for spec in pools.sent)
    assert (tries[2], tries[3]) == (1, MOST_TRIES)


def test_a_trial_that_gets_further_each_time_is_not(campaign):
    """Three walltimes must not end a healthy trial."""
    ends = ["killed"] * (3 * MOST_TRIES)

    def machine(spec):
        if spec.number == 0 and spec.rung == 0 and ends:
            leave_checkpoint(spec)
            return badly(spec, ends.pop())
        return well(spec)

    trials, _ = run(campaign(), machine)
    assert not ends
    assert trials[0].state in ("complete", "pruned")


def test_where_nothing_ever_works_the_trials_keep_their_chance(campaign):
    with pytest.raises(CampaignStopped, match="disk full"):
        run(campaign(), badly)
    trials, _ = run(campaign(), well)
    assert len(trials) == TRIALS
    assert {trial.state for trial in trials} <= {"complete", "pruned"}


class Noting(FakePool):
    """Notes how work on nodes ended."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.noted: list[tuple[str, bool]] = []

    def record(self, node, work, worked):
        self.noted.append((node, worked))
        super().record(node, work, worked)


def test_a_gang_that_ends_badly_tells_against_the_node_that_is_to_blame(campaign):
    space = {**CONFIG["search"]["space"], "Resources.gcds": {"choices": [2]}}
    bad_ends = [("killed", "bad"), ("lost", "good")]

    def machine(spec):
        status, node = bad_ends.pop() if bad_ends else ("", "good")
        return replace(badly(spec, status) if status else well(spec), node=node)

    pools = Noting(machine)
    searched(TrialPhase(campaign(space=space)), pools)
    assert [node for node, worked in pools.noted if not worked] == ["bad"]


def test_what_works_beside_a_failure_speaks_for_the_node(campaign):
    sent = itertools.count()
    pools = Noting(lambda spec: replace(badly(spec) if next(sent) == 1 else well(spec), node="n"))
    searched(TrialPhase(campaign()), pools)
    assert pools.noted[:2] == [("n", False), ("n", True)]


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_node_after_node_that_refuses_stops_the_run_and_blames_no_trial(campaign, nodes):
    """As where the store is damaged; once it is restored, all is trained."""
    context, sent = campaign(nodes=nodes), itertools.count()

    def machine(spec):
        return refused(spec, f"frontier{next(sent) % nodes:05d}")

    with pytest.raises(InputError, match="restore a copy"):
        run(context, machine)
    results = list(context.directory.results())
    assert {result.status for result in results} == {"refused"}
    assert len({result.node for result in results}) >= min(nodes, 3)
    assert len(results) <= 8, "it went on all the same"
    trials, _ = run(campaign(), well)
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    with pytest.raises(InputError, match="restore a copy"):
        trained(member_phase(campaign(), trials[:MEMBERS]), FakePool(machine))
    members = trained(member_phase(campaign(), trials[:MEMBERS]), FakePool(well))
    assert all(not member.reason for member in members)


def test_a_node_that_refuses_among_others_costs_no_trial_anything(campaign):
    sent = itertools.count()

    def machine(spec):
        # Two of three get to a bad node, until the pools keep off it.
        if next(sent) % 3 and not pools.health.is_of_no_use("bad"):
            return refused(spec, "bad")
        return replace(well(spec), node="good")

    pools = FakePool(machine, nodes=4)
    trials = searched(TrialPhase(campaign(nodes=4)), pools)
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    assert pools.health.is_of_no_use("bad")


def test_results_are_on_disk_before_nodes_are_judged_by_them(campaign):
    """To hold a node takes its time, in which the driver may be ended."""

    context = campaign(nodes=4)
    pools = FakePool(lambda spec: refused(spec, "bad") if spec.number == 1 else well(spec))
    pools.avoid = Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        searched(TrialPhase(context), pools)
    recorded = Counter(result.number for result in context.directory.results())
    assert recorded == Counter(spec.number for spec in pools.sent)


def test_trials_that_fail_wherever_they_are_sent_cost_no_node(campaign):
    sent = itertools.count()

    class Judging(FakePool):
        def record(self, node, work, worked):
            super().record(node, work, worked)
            assert not self.health.is_suspect(node)

    def machine(spec):
        node = f"node{next(sent) % 2}"
        return replace(badly(spec) if spec.number > 1 else well(spec), node=node)

    trials = searched(TrialPhase(campaign(nodes=2)), Judging(machine))
    assert [trial.state for trial in trials[2:]] == ["failed"] * (TRIALS - 2)
