"""Early members begin on idle GCDs, give way to trials, and change nothing of the ensemble."""

import logging
from dataclasses import replace

import pytest
from campaign_cases import CONFIG
from phase_cases import NODE, SITE, run, trained, well
from rich.console import Console

from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.early_members import EarlyMembers
from hydragnn_flow.campaign.member_task import member_task, trained_epochs
from hydragnn_flow.campaign.members import MemberPhase
from hydragnn_flow.campaign.on_site.selecting import (
    begun_early,
    numbered,
    select_trials,
    write_selection,
)
from hydragnn_flow.config import RunConfig
from hydragnn_flow.data import prepare_store
from hydragnn_flow.ensemble import Member
from hydragnn_flow.ensemble.selection import Choice, Early, Selection
from hydragnn_flow.ensemble.summary import SELECTION, failed_members
from hydragnn_flow.errors import InputError
from hydragnn_flow.placement import Gcd
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.report.stage import stage_of
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.simulation import Conditions
from hydragnn_flow.simulation import campaign as simulated
from hydragnn_flow.simulation.campaign import Stage, play
from hydragnn_flow.simulation.truth import DrawnTruth
from hydragnn_flow.simulation.workers import SimulatedWorkers
from hydragnn_flow.training.checkpoints.checkpoint import checkpoints

MEMBERS = 4
GPU = replace(NODE, gcd=Gcd(64, 1e8, 1e8, 1e-3, 0.5, 3), device="cuda")
MACHINE = replace(SITE, node=GPU, nodes=2)


class Killed(BaseException):
    """The end of a driver that nobody has told."""


@pytest.fixture(scope="module")
def config():
    """Forty trials of very different length, and members of as many epochs again."""
    space = {**CONFIG["search"]["space"], "Architecture.hidden_dim": {"int": [4, 128], "log": True}}
    search = {**CONFIG["search"], "trials": 40, "rungs": "none", "space": space}
    training = {**CONFIG["network"]["Training"], "num_epoch": 40}
    return RunConfig.model_validate(
        {
            **CONFIG,
            "network": {**CONFIG["network"], "Training": training},
            "search": search,
            "ensemble": {"size": MEMBERS, "epochs": 100},
        }
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("early") / "store.gs"
    with prepare_store(config.data, 4.0, None, 3, path) as found:
        yield found


@pytest.fixture
def campaign_in(config, store):
    """Simulate the campaign in a folder, or go on with it there."""

    def ran(path, seed=0):
        directory = RunDirectory(path)
        view = CampaignView(Console(quiet=True))
        play(
            Stage(config, MACHINE, directory, store, view),
            lambda context: DrawnTruth(context.estimator, MACHINE, seed),
            conditions=Conditions(),
            seed=seed,
        )
        return path

    return ran


def members(path):
    """What became of each member, by its parameters; and no other has left anything."""
    directory = RunDirectory(path)
    found = [one for one in directory.results() if one.kind == "member"]
    last = {one.number: one for one in found if one.status == "ok"}
    kept = {int(folder.name) for folder in (directory.ensemble / "members").iterdir()}
    assert kept <= last.keys() and len(kept) == MEMBERS
    return {
        str(last[number].parameters): [
            row for one in found if one.number == number for row in one.history
        ]
        for number in kept
    }


def began_early(path):
    results = list(RunDirectory(path).results())
    search_ended = max(one.ended for one in results if one.kind == "trial")
    return {one.number for one in results if one.kind == "member" and one.started < search_ended}


@pytest.mark.parametrize("seed", [0, 2])
def test_members_that_began_early_are_what_they_would_have_been(
    campaign_in, tmp_path, seed, monkeypatch
):
    """None shares a GCD with a trial, and the search ends when it would without them."""
    early = campaign_in(tmp_path / "early", seed)
    ahead = began_early(early)
    assert ahead
    monkeypatch.setattr(EarlyMembers, "begin", lambda *_: None)
    late = campaign_in(tmp_path / "late", seed)
    assert not began_early(late)
    chosen = members(late)
    assert members(early).keys() == chosen.keys()
    for parameters, history in members(early).items():
        epochs = [row for row in history if row in chosen[parameters]]
        assert epochs[-1] == chosen[parameters][-1]
    spans = []
    for path in (early, late):
        results = list(RunDirectory(path).results())
        if path == early:
            shared = {one.number for one in results if one.kind == "member" and one.together > 1}
            assert not shared & ahead
        trials = [one for one in results if one.kind == "trial"]
        spans.append(max(one.ended for one in trials) - min(one.started for one in trials))
    assert spans[0] == pytest.approx(spans[1], rel=0.01)


def test_a_driver_that_is_killed_goes_on_with_its_early_members(campaign_in, tmp_path, monkeypatch):
    path = tmp_path / "run"
    whole = members(campaign_in(tmp_path / "whole"))
    sent: list[int] = []

    class Fragile(SimulatedWorkers):
        def run(self, ranks, node):
            if ranks[0].spec.kind == "member":
                sent.append(ranks[0].spec.number)
            return super().run(ranks, node)

        def update(self, demand):
            if sent:
                raise Killed
            super().update(demand)

    monkeypatch.setattr(simulated, "SimulatedWorkers", Fragile)
    with pytest.raises(Killed):
        campaign_in(path)
    told = str(stage_of(path))
    assert told.startswith("search:") and told.endswith(f"{len(sent)} members began early")
    monkeypatch.setattr(simulated, "SimulatedWorkers", SimulatedWorkers)
    assert members(campaign_in(path)).keys() == whole.keys()


def test_a_member_keeps_its_number_unless_its_trial_was_continued(campaign):
    run(campaign(), well)
    context = campaign()
    trained_for = max(one.to_epoch for one in context.ledger.trials[1])
    early = [Early(5, 0, 1), Early(1, 0, trained_for), Early(2, 0, trained_for - 1)]
    line = [Choice(number, 0, "by hand") for number in (0, 1, 2)]
    selection = Selection(line[:2], line[2:], early)
    assert [*numbered(context, selection).items()] == [(3, line[0]), (1, line[1]), (4, line[2])]
    write_selection(context, selection, [])
    assert begun_early(campaign()) == early


def test_one_that_fails_is_replaced_whatever_the_numbers(campaign):
    trials, pools = run(campaign(), well)
    context = campaign()
    epochs = max(one.to_epoch for one in context.ledger.trials[trials[1].number])
    early = [Early(trials[5].number, 0, 0), Early(trials[1].number, 0, epochs)]
    (context.directory.ensemble / "members" / "0").mkdir(parents=True)
    line = [Choice(trial.number, 0, "by hand") for trial in trials[:4]]
    selection = Selection(line[:2], line[2:], early)

    def machine(spec):
        ended = well(spec)
        return replace(ended, status="diverged", checkpoint="") if spec.number == 1 else ended

    pools.machine, pools.sent = machine, []
    found: list[Member] = trained(MemberPhase(context, selection, trials), pools)
    assert {spec.number for spec in pools.sent} == {1, 2, 3}
    assert [(one.member, one.trial) for one in found] == [
        (2, trials[0].number),
        (3, trials[2].number),
    ]
    assert found[1].choice.startswith("in place of member 1, which failed")
    assert not (context.directory.ensemble / "members" / "0").exists()


def ended(context, trial, number, status):
    """Have an early member end before the search does."""
    task = member_task(context, number, Choice(trial.number, 0, "by hand"), trial).sent()
    result = well(task.spec)
    if status != "ok":
        result = replace(result, status=status, checkpoint="")
        for file in checkpoints(task.spec.folder):
            file.unlink()
    context.record([result.expected(task.forecast(1.0))])


@pytest.mark.parametrize("status", ["ok", "diverged"])
def test_one_that_is_not_chosen_has_no_say(campaign, status, caplog):
    caplog.set_level(logging.INFO)
    trials, pools = run(campaign(), well)
    context = campaign()
    early = [Early(trials[4].number, 0, trained_epochs(context, trials[4].number))]
    ended(context, trials[4], 0, status)
    line = [Choice(trial.number, 0, "by hand") for trial in trials]
    selection = Selection(line[:2], line[2:], early)
    pools.sent = []
    found = trained(MemberPhase(context, selection, trials), pools)
    assert {spec.number for spec in pools.sent} == {member.member for member in found} == {1, 2}
    assert failed_members(context.directory.ensemble) == []
    ledger = len(campaign().ledger.members)
    MemberPhase(campaign(), selection, trials)
    assert len(campaign().ledger.members) == ledger
    assert "trained again" not in caplog.text


def test_one_that_was_dropped_begins_anew_where_it_is_next_in_line(campaign):
    trials, pools = run(campaign(), well)
    context = campaign()
    early = [Early(trials[2].number, 0, trained_epochs(context, trials[2].number))]
    ended(context, trials[2], 0, "ok")
    line = [Choice(trial.number, 0, "by hand") for trial in trials[:3]]
    selection = Selection(line[:2], line[2:], early)

    def machine(spec):
        result = well(spec)
        return replace(result, status="diverged", checkpoint="") if spec.number == 1 else result

    pools.machine, pools.sent = machine, []
    found = trained(MemberPhase(context, selection, trials), pools)
    assert {member.trial for member in found} == {trials[1].number, trials[2].number}
    assert sorted(spec.number for spec in pools.sent) == [0, 1, 2]


def test_where_the_choice_at_the_end_is_lost_its_members_are_kept(campaign):
    trials, pools = run(campaign(), well)
    context = campaign()
    trained(MemberPhase(context, select_trials(context, trials), trials), pools)
    (context.directory.ensemble / SELECTION).write_text("")
    pools.sent, again = [], campaign()
    trained(MemberPhase(again, select_trials(again, trials), trials), pools)
    assert pools.sent == []


def test_where_the_early_choice_is_lost_no_number_is_used_twice(campaign, caplog):
    caplog.set_level(logging.INFO, logger="hydragnn_flow.campaign")
    trials, _ = run(campaign(), well)
    context = campaign()
    early = [Early(trials[4].number, 0, trained_epochs(context, trials[4].number))]
    ended(context, trials[4], 0, "ok")
    write_selection(context, Selection([], [], early), [])
    (context.directory.ensemble / SELECTION).write_text("")
    again = campaign()
    selection = select_trials(again, trials)
    assert 0 not in [*numbered(again, selection)]
    assert "selection.json: is lost or damaged; its members are trained anew" in caplog.text
    MemberPhase(again, selection, trials)


def test_one_that_failed_is_not_sent_again_before_the_search_is_over(campaign):
    trials, pools = run(campaign(), well)
    context = campaign()
    early = [Early(trials[0].number, 0, trained_epochs(context, trials[0].number))]
    ended(context, trials[0], 0, "diverged")
    write_selection(context, Selection([], [], early), [])
    pools.sent, again = [], campaign()
    EarlyMembers(again)._look(Dispatch(again, pools), trials)
    assert pools.sent and 0 not in {spec.number for spec in pools.sent}


def test_until_the_choice_the_ensemble_can_be_changed(campaign):
    run(campaign(), well)
    context = campaign()
    context.directory.record_start(context.config)
    directory, config = RunDirectory(context.directory.path), context.config
    longer = config.model_copy(
        update={
            "ensemble": config.ensemble.model_copy(update={"epochs": config.ensemble.epochs + 1})
        }
    )
    more = config.model_copy(
        update={"search": config.search.model_copy(update={"trials": config.search.trials + 1})}
    )
    write_selection(context, Selection([], [], [Early(0, 0, 8)]), [])
    for other in (config, longer, more):
        directory.check(other)
        assert not directory.is_extended(other)
        assert directory.is_for_another_ensemble(other) == (other is longer)
    write_selection(context, Selection([Choice(0, 0, "by hand")], []), [])
    with pytest.raises(InputError, match="members are chosen"):
        directory.check(longer)
    assert directory.is_extended(more) and not directory.is_for_another_ensemble(longer)
