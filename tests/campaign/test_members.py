"""The ensemble phase, with the machine faked and everything else real."""

import errno
import json
import math
from collections import Counter
from dataclasses import replace

import optuna
import pytest
from campaign_cases import MEMBERS
from phase_cases import (
    LARGE_STEPS,
    FakePool,
    badly,
    leave_checkpoint,
    member_phase,
    run,
    slow_gcds,
    trained,
    well,
)

from hydragnn_flow import files
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.members import MemberPhase, select_trials
from hydragnn_flow.campaign.phases import run_phases
from hydragnn_flow.ensemble.selection import Choice, Selection
from hydragnn_flow.ensemble.summary import SELECTION, failed_members
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.placement import Host
from hydragnn_flow.search.records import best_first
from hydragnn_flow.search.storage import end_of, read_journal, record_members
from hydragnn_flow.training.checkpoints import checkpoint
from hydragnn_flow.training.checkpoints.checkpoint import (
    FILE,
    checkpoints,
    load_checkpoint,
    save_checkpoint,
)


@pytest.fixture
def trials(campaign):
    """Those of a search in which all went well."""
    return run(campaign(), well)[0]


def test_a_restarted_driver_keeps_to_its_choice_of_members(campaign, trials, caplog):
    caplog.set_level("INFO", "hydragnn_flow.campaign")
    context = campaign()
    chosen = select_trials(context, trials)
    file = context.directory.ensemble / SELECTION
    # The machine of this test predicts nothing: trials count by their criterion, and that is told.
    assert caplog.text.count("are missing or damaged") == 1
    assert len(chosen.chosen) == MEMBERS and chosen.chosen[0].trial == 0
    assert json.loads(file.read_text())["chosen"][0]["reason"] == chosen.chosen[0].reason
    # What would be chosen now does not matter any more.
    other = [replace(trial, feasible=trial.number != 0) for trial in trials]
    assert select_trials(campaign(), other) == chosen
    # Unless the choice cannot be read, or is of trials that the search does not have.
    file.write_text(file.read_text()[:-20])
    assert select_trials(campaign(), other).chosen[0].trial != 0
    without = [trial for trial in trials if trial.number != 1]
    assert 1 not in {choice.trial for choice in select_trials(campaign(), without).chosen}


@pytest.fixture
def sent_again(campaign, trials):
    """Train the first members on a machine, and return what was sent."""

    def send(machine=well):
        pools = FakePool(machine)
        members = trained(member_phase(campaign(), trials[:MEMBERS]), pools)
        assert [member.trial for member in members] == [t.number for t in trials[:MEMBERS]]
        assert all(not member.reason for member in members)
        return pools.sent

    return send


def test_a_member_is_trained_again_only_where_its_checkpoint_was_taken_away(
    campaign, trials, sent_again
):
    troubles = [1, 1]

    def machine(spec):
        if spec.number == 1 and troubles:
            troubles.pop()
            return badly(spec, "killed")
        return well(spec)

    assert Counter(spec.number for spec in sent_again(machine)) == {0: 1, 1: 3}
    assert not sent_again()
    file = campaign().directory.ensemble / "members" / "1" / FILE
    file.unlink()
    (again,) = sent_again()
    assert again.number == 1
    assert load_checkpoint(file)["attempt"] == again.attempt
    # Nor is what a killed driver has left of that taken for the whole.
    file.unlink()
    member_phase(campaign(), trials[:MEMBERS])
    leave_checkpoint(replace(again, attempt="ofthefirstepoch"))
    assert [spec.number for spec in sent_again()] == [1]


def test_a_member_whose_checkpoint_is_damaged_is_trained_again(sent_again, monkeypatch, caplog):
    """It does not become what an earlier sending left."""
    caplog.set_level("INFO")
    spec = next(spec for spec in sent_again() if spec.number == 1)
    file = spec.folder / FILE
    state, content = load_checkpoint(file), bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    save_checkpoint(
        spec.folder / "checkpoint-before.pt",
        state | {"progress": state["progress"] | {"epoch": spec.epochs.until_epoch - 1}},
    )
    # Nor is a disk that fails for a moment taken for damage.
    monkeypatch.setattr(files, "SECONDS_BETWEEN_TRIES", 0.0)
    monkeypatch.setattr(checkpoint, "SECONDS_TO_RECOVER", 0.0)
    real, failures = files.open_regular, [OSError(errno.ESTALE, "stale")]

    def away(path):
        if failures:
            raise failures.pop()
        return real(path)

    monkeypatch.setattr(checkpoint, "open_regular", away)
    (again,) = sent_again()
    assert again.number == 1 and not failures
    assert f"{file}: is not a readable checkpoint (its checksum is wrong)" in caplog.text
    assert "member 1 is trained again" in caplog.text
    # One that another sending has trained as far is as good as the one that is named, and is taken.
    (damaged,) = checkpoints(spec.folder)
    damaged = damaged.replace(spec.folder / again.checkpoint.name)
    save_checkpoint(spec.folder / "checkpoint-late.pt", state)
    damaged.write_bytes(b"damaged")
    assert not sent_again()
    assert load_checkpoint(file)["attempt"] == spec.attempt


def test_members_of_other_trials_are_refused(campaign):
    """A study made anew may choose a trial that had been given up."""

    def machine(spec):
        return badly(spec) if (spec.kind, spec.number) == ("trial", 0) else well(spec)

    context = campaign()
    trials, _ = run(context, machine)
    trained(member_phase(context, sorted(trials, key=best_first())[:MEMBERS]), FakePool(machine))
    context.directory.journal.unlink()
    context = campaign()
    trials, _ = run(context, well)
    with pytest.raises(InputError, match=r"member 0 .* than trial 0, .* restore study.journal"):
        member_phase(context, sorted(trials, key=best_first())[:MEMBERS])


@pytest.mark.parametrize(
    ("slow", "nodes"), [(True, 1), (False, 3)], ids=["nodes to come", "short training"]
)
def test_members_that_gain_nothing_by_more_gcds_have_one_each(campaign, slow, nodes):
    """They wait for no node, which may be lost; nor does it pay to join several for moments."""
    trials, _ = run(campaign(**LARGE_STEPS), well)
    context = campaign(**LARGE_STEPS, nodes=3)
    if slow:
        slow_gcds(context)
    pools = FakePool(well, nodes=nodes)
    members = trained(member_phase(context, trials[:2]), pools)
    assert all(not member.reason for member in members)
    assert [rank.world for rank in pools.ranks] == [1, 1]


def test_a_member_on_several_nodes_is_a_gang(campaign):
    trials, _ = run(campaign(**LARGE_STEPS), well)
    pools = FakePool(well, nodes=3)
    members = trained(member_phase(slow_gcds(campaign(**LARGE_STEPS, nodes=3)), trials[:2]), pools)
    assert all(not member.reason for member in members)
    wide = [(rank.number, node) for rank, node in pools.placed if rank.world == 4]
    nodes = [node for _, node in wide]
    assert [number for number, _ in wide] == [0, 1, 2, 3]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    others = {node for rank, node in pools.placed if rank.world == 2}
    assert len(others) == 1 and others.isdisjoint(nodes), "the other has a node of its own"


def test_members_on_several_jobs_all_begin_at_once(campaign):
    """None is wider than its part of a job, however many nodes there are in all."""

    trials, _ = run(campaign(**LARGE_STEPS), well)
    context = slow_gcds(campaign(**LARGE_STEPS))
    context.site = replace(context.site, nodes=4, blocks=2, scheduler="slurm")
    phase = member_phase(context, trials[:3])
    pools = FakePool(well)
    pools.hosts = lambda: [Host(f"node{k}", f"block{k // 2}") for k in range(4)]
    assert phase._send(Dispatch(context, pools), [phase._task(k) for k in phase._asked]) == []
    assert {rank.spec.number for rank in pools.ranks} == {0, 1, 2}
    assert max(rank.world for rank in pools.ranks) == 4
    for number in range(3):
        nodes = {node for rank, node in pools.placed if rank.spec.number == number}
        assert len({int(node[-1]) // 2 for node in nodes}) == 1, "ranks in several jobs"


@pytest.mark.parametrize("saved", [False, True])
def test_where_the_line_ends_a_member_stays_what_its_trial_was(campaign, trials, saved):
    """Also where it was saved before its first validation, with weights that nobody has judged."""
    context = campaign()

    def machine(spec):
        if saved:
            leave_checkpoint(spec)  # of weights as drawn
        ended = badly(spec, "diverged")
        return replace(ended, best_val_error=math.inf, best_val_loss=math.inf) if saved else ended

    phase = member_phase(context, trials[:MEMBERS], trials[MEMBERS : MEMBERS + 1])
    members = trained(phase, FakePool(machine))
    assert [member.member for member in members] == list(range(MEMBERS))
    assert all(member.reason.startswith("diverged") for member in members)
    for member in members:
        own = context.directory.ensemble / "members" / str(member.member) / FILE
        (trial,) = checkpoints(context.directory.trial(member.trial))
        assert own.read_bytes() == trial.read_bytes()
        assert checkpoints(own.parent) == [own]


def test_seeds_of_a_trial_begin_from_scratch(campaign, trials):
    pools, context = FakePool(well), campaign(ensemble={"bootstrap": True})
    selection = Selection([Choice(trials[0].number, repeat, "") for repeat in range(3)], [])
    trained(MemberPhase(context, selection, trials), pools)
    first, *others = sorted(pools.sent, key=lambda spec: spec.number)
    assert first.start.trial_checkpoint is not None and first.epochs.after_epoch > 0
    for spec in others:
        assert spec.start.trial_checkpoint is None and spec.epochs.after_epoch == 0
    until = context.config.ensemble.epochs
    assert {spec.epochs.decay for spec in pools.sent} == {(first.epochs.after_epoch, until)}
    assert len({spec.seed for spec in pools.sent}) == 3
    assert all(spec.epochs.bootstrap for spec in pools.sent)


def test_optuna_reads_from_the_study_which_trials_are_members(campaign):
    """Those that were trained, not those that were chosen."""

    def machine(spec):
        return badly(spec, "diverged") if (spec.kind, spec.number) == ("member", 1) else well(spec)

    context = campaign()
    members = run_phases(context, lambda: FakePool(machine))
    journal = context.directory.journal
    study = optuna.load_study(study_name="search", storage=read_journal(journal))
    chosen = [
        choice["trial"]
        for choice in json.loads((context.directory.ensemble / SELECTION).read_text())["chosen"]
    ]
    assert study.user_attrs["members"] == [member.trial for member in members] != chosen
    before = journal.read_bytes()
    assert before.count(b'{"members":') == 2
    record_members(journal, [member.trial for member in members])
    assert journal.read_bytes() == before and end_of(journal).exists()


@pytest.mark.parametrize(("status", "tries"), [("diverged", 1), ("error", 3), ("killed", 3)])
def test_a_member_that_cannot_be_trained_is_replaced_by_the_next_in_line(
    campaign, trials, status, tries
):
    line = trials[:2], trials[2:4]

    def machine(spec):
        if spec.number in (0, 2):
            return replace(badly(spec, status), reason=f"fault {'AB'[spec.number // 2]}")
        return well(spec)

    pools, context = FakePool(machine), campaign()
    members = trained(member_phase(context, *line), pools)
    assert Counter(spec.number for spec in pools.sent) == {0: tries, 1: 1, 2: tries, 3: 1}
    assert [(member.member, member.trial) for member in members] == [
        (k, trials[k].number) for k in (1, 3)
    ]
    assert members[0].choice == "by hand"
    assert members[1].choice == f"in place of member 2, which failed ({status}: fault B)"
    assert [vars(failed) for failed in failed_members(context.directory.ensemble)] == [
        {"member": k, "trial": trials[k].number, "reason": f"{status}: fault {'A-B'[k]}"}
        for k in (0, 2)
    ]
    # The next driver asks for nothing more and knows that they have had their chances.
    pools = FakePool(well)
    assert trained(member_phase(campaign(), *line), pools) == members
    assert not pools.sent


def test_a_fault_of_all_members_does_not_use_up_the_line(campaign, trials):
    line = trials[:2], trials[2:5]

    def machine(spec):
        reason = "disk full" if spec.number == 0 else f"members/{spec.number}: the store is gone"
        return replace(badly(spec), reason=reason)

    pools, context = FakePool(machine), campaign()
    with pytest.raises(CampaignStopped, match=r"member \d cannot be trained .*store is gone"):
        trained(member_phase(context, *line), pools)
    assert 4 not in {spec.number for spec in pools.sent}
    # Once it is there again, those it kept from being trained get another chance.
    assert [failed.member for failed in failed_members(context.directory.ensemble)] == [0]
    members = trained(member_phase(campaign(), *line), FakePool(well))
    assert [member.member for member in members] == [1, 2]
    assert all(not member.reason for member in members)


@pytest.mark.parametrize(
    ("reserve", "status", "reasons", "said"),
    [
        (0, "error", ["disk full"], r"member \d .*disk full"),
        (2, "lost", ["disk full"], r"member \d .*lost: disk full"),  # it replaces no member
        (2, "error", "ABCD", r"none of 4 members .*error: [A-D].*/log"),
    ],
    ids=["no reserve", "lost nodes", "no candidate"],
)
def test_members_that_cannot_be_trained_stop_the_run(
    campaign, trials, reserve, status, reasons, said
):
    line = trials[:2], trials[2 : 2 + reserve]

    def machine(spec):
        return replace(badly(spec, status), reason=reasons[spec.number % len(reasons)])

    with pytest.raises(CampaignStopped, match=said):
        trained(member_phase(campaign(), *line), FakePool(machine))
    if len(reasons) == 1:
        members = trained(member_phase(campaign(), *line), FakePool(well))
        assert [member.reason for member in members] == ["", ""]
