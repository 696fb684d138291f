"""The ensemble phase, with the machine faked and everything else real."""

from __future__ import annotations

from dataclasses import replace

import pytest
from campaign_cases import MEMBERS
from phase_cases import (
    SITE,
    Campaign,
    FakePools,
    badly,
    run,
    well,
)

from hydragnn_flow.campaign.members import MemberPhase
from hydragnn_flow.ensemble import select_top
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import PoolName
from hydragnn_flow.segment import SegmentResult, SegmentSpec


def test_a_member_whose_checkpoint_was_taken_away_is_trained_again(campaign: Campaign) -> None:
    trials, _ = run(campaign(), well)
    pools = FakePools(well)
    MemberPhase(campaign(), trials[:MEMBERS]).run(pools)
    folder = campaign().directory.ensemble / "members"
    (folder / "1" / "checkpoint.pt").unlink()
    again = FakePools(well)
    MemberPhase(campaign(), trials[:MEMBERS]).run(again)
    assert [spec.number for spec in again.sent] == [1]
    assert (folder / "1" / "checkpoint.pt").read_text() == again.sent[0].attempt
    # Nor is what a killed driver has left of that taken for the whole.
    (folder / "1" / "checkpoint.pt").unlink()
    MemberPhase(campaign(), trials[:MEMBERS])
    (folder / "1" / "checkpoint.pt").write_text("of the first epoch")
    once_more = FakePools(well)
    MemberPhase(campaign(), trials[:MEMBERS]).run(once_more)
    assert [spec.number for spec in once_more.sent] == [1]


def test_members_of_other_trials_are_refused(campaign: Campaign) -> None:
    """A study made anew may choose a trial that had been given up."""

    def machine(spec: SegmentSpec) -> SegmentResult:
        return badly(spec) if (spec.kind, spec.number) == ("trial", 0) else well(spec)

    settings = {"failures": {"lost": "retry"}}
    context = campaign(**settings)
    trials, _ = run(context, machine)
    MemberPhase(context, select_top(trials, MEMBERS)).run(FakePools(machine))
    context.directory.journal.unlink()
    context = campaign(**settings)
    trials, _ = run(context, well)
    with pytest.raises(InputError, match=r"member 0 .* than trial 0, .* restore study.journal"):
        MemberPhase(context, select_top(trials, MEMBERS))


def test_members(campaign: Campaign) -> None:
    trials, _ = run(campaign(), well)
    chosen = trials[:MEMBERS]
    context = campaign()
    troubles = [1, 1]

    def machine(spec: SegmentSpec) -> SegmentResult:
        if spec.number == 1 and troubles:
            troubles.pop()
            return badly(spec, "killed")
        return well(spec)

    members = MemberPhase(context, chosen).run(FakePools(machine))
    assert [member.trial for member in members] == [trial.number for trial in chosen]
    assert all(not member.reason for member in members)
    # What is recorded is not trained again.
    pools = FakePools(well)
    MemberPhase(campaign(), chosen).run(pools)
    assert not pools.sent


def test_a_member_on_several_nodes_is_a_gang(campaign: Campaign) -> None:
    trials, _ = run(campaign(), well)
    context = campaign()
    context.site = replace(SITE, nodes=3)
    pools = FakePools(well, workers=3)
    members = MemberPhase(context, trials[:2]).run(pools)
    assert all(not member.reason for member in members)
    gangs = [job for job in pools.groups if job.world is not None]
    assert [(job.first_rank, job.gcds) for job in gangs] == [(0, (0, 1)), (2, (0, 1))]
    assert len(pools.groups) == 3, "the other member has a node of its own"


def test_a_member_wider_than_the_nodes_there_are_keeps_none_of_them_idle(
    campaign: Campaign,
) -> None:
    """Its other nodes may wait in a queue for hours, or have been lost."""

    class Growing(FakePools):
        asked = 0

        def free(self, pool: PoolName) -> int:
            self.asked += 1
            assert self.asked < 100, "nothing is sent"
            return 3 if self.groups else 1

    trials, _ = run(campaign(), well)
    context = campaign()
    context.site = replace(SITE, nodes=3)
    pools = Growing(well)
    members = MemberPhase(context, trials[:2]).run(pools)
    assert all(not member.reason for member in members)
    assert [job.world for job in pools.groups] == [None, 4, 4]


def test_a_member_that_diverges_stays_what_its_trial_was(campaign: Campaign) -> None:
    trials, _ = run(campaign(), well)
    context = campaign()
    phase = MemberPhase(context, trials[:MEMBERS])
    members = phase.run(FakePools(lambda spec: badly(spec, "diverged")))
    assert all(member.reason.startswith("diverged") for member in members)
    for member in members:
        own = context.directory.ensemble / "members" / str(member.member) / "checkpoint.pt"
        trial = context.directory.trial(member.trial) / "checkpoint.pt"
        assert own.read_text() == trial.read_text()


def test_a_member_that_cannot_be_trained_stops_the_run(campaign: Campaign) -> None:
    trials, _ = run(campaign(), well)
    with pytest.raises(CampaignStopped, match=r"member \d .*disk full"):
        MemberPhase(campaign(), trials[:MEMBERS]).run(FakePools(badly))
    members = MemberPhase(campaign(), trials[:MEMBERS]).run(FakePools(well))
    assert all(not member.reason for member in members)
