"""Records of a run: what two drivers must not both write, and files that are lost or away."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from campaign_cases import TRIALS
from phase_cases import run, well

from hydragnn_flow import files
from hydragnn_flow.campaign.driver import _finish
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import sole_driver
from hydragnn_flow.log import NOTICE
from hydragnn_flow.search import Search, read_trials


def test_a_search_goes_on_without_its_study(campaign, caplog):
    def machine(spec):
        if spec.number == 4:
            raise KeyboardInterrupt
        return well(spec)

    context = campaign()
    with pytest.raises(KeyboardInterrupt):
        run(context, machine)
    known = read_trials(context.directory.path)
    context.directory.journal.unlink()
    caplog.set_level(NOTICE, "hydragnn_flow")
    trials, pools = run(campaign(), well)
    ran = [trial for trial in known if trial.number < 4]
    assert [trial.parameters for trial in trials[:4]] == [trial.parameters for trial in ran]
    assert {trial.state for trial in trials} <= {"complete", "pruned"}
    assert len(trials) == TRIALS
    assert {spec.number for spec in pools.sent if spec.rung == 0} == {4, 5}
    journal = context.directory.journal
    assert caplog.messages[0] == f"{journal}: was missing; made anew from segments.jsonl, 4 trials"


def test_a_study_older_than_its_ledger_is_refused(campaign):
    context = campaign()
    journal = context.directory.journal
    phase = TrialPhase(context)
    phase.search.ask()
    phase.search.close()
    old = journal.read_bytes()
    run(campaign(), well)
    journal.write_bytes(old)
    with pytest.raises(InputError, match="restore both from a copy"):
        TrialPhase(campaign())


@pytest.mark.parametrize("when", ["a result comes", "a trial is asked for"])
def test_a_driver_that_another_has_replaced_writes_nothing_more(campaign, monkeypatch, when):
    """Its lock is gone, say, with the node that the file system took for dead."""
    context = campaign()
    directory = context.directory
    left: list[bytes] = []

    def on_disk():
        return [directory.journal.read_bytes(), directory.segments.read_bytes()]

    def replaced_while(function):
        def calling(argument):
            if directory.segments.exists() and not left:
                with sole_driver(directory.path):  # which leaves its token there
                    left.extend(on_disk())
            return function(argument)

        return calling

    if when == "a trial is asked for":
        monkeypatch.setattr(Search, "ask", replaced_while(Search.ask))
    with pytest.raises(CampaignStopped, match="has taken it over"):
        run(context, replaced_while(well) if when == "a result comes" else well)
    assert left and on_disk() == left
    with pytest.raises(CampaignStopped, match="has taken it over"):
        _finish(context, ())


def test_a_disk_that_is_away_for_a_moment_stops_no_campaign(campaign, monkeypatch):
    context, look, away = campaign(trials=2), Path.stat, [3]

    def stat(self, **options):
        if self.name == "driver.json" and away[0]:
            away[0] -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return look(self, **options)

    monkeypatch.setattr(files, "SECONDS_BETWEEN_TRIES", 0.0)
    monkeypatch.setattr(Path, "stat", stat)
    trials, _ = run(context, well)
    assert len(trials) == 2
    assert away == [0]


def test_of_trials_that_have_ended_only_what_members_need_stays_in_memory(campaign):
    """For the driver that ran them and for the next; of the others nothing is missing."""

    def machine(spec):
        if spec.number == 5:
            raise KeyboardInterrupt
        result = replace(well(spec), history=[[spec.epochs.until_epoch, 1.0, 1.0, 1.0]])
        too_large = spec.number == 1 and spec.rung and spec.network.Training.accumulation_steps == 1
        return replace(result, status="out_of_memory", to_epoch=0) if too_large else result

    context = campaign()
    with pytest.raises(KeyboardInterrupt):
        run(context, machine)
    on_disk = list(context.directory.results())
    after = campaign()
    phase = TrialPhase(after)
    for ledger in (context.ledger, after.ledger):
        for record in read_trials(context.directory.path):
            whole = [r for r in on_disk if r.number == record.number]
            kept = ledger.trials[record.number]
            if record.state == "running":
                assert kept == whole
            else:
                assert kept[-1].checkpoint == whole[-1].checkpoint
                assert kept[-1].best_val_error == whole[-1].best_val_error
                assert not any(r.history or r.metrics or r.parameters for r in kept)
                tried, in_all = ([r.status for r in of] for of in (kept, whole))
                assert tried.count("out_of_memory") == in_all.count("out_of_memory")
                assert tried.count("ok") == 1
    phase.search.close()
