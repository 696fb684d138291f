"""A limit of the energy that trials use, and of what a machine draws, which later plans know."""

import logging
from dataclasses import replace

import pytest
from campaign_cases import TRIALS
from phase_cases import run, well

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.setup.start import _is_complete
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.errors import InputError
from hydragnn_flow.report.stage import stage_of

KWH = 3.6e6


def counted(spec):
    return replace(well(spec), joules=1.0 * KWH)


def test_no_more_trials_are_asked_for_once_their_energy_is_used_up(campaign, caplog):
    """Two GCDs, so that one trial may be on its way when another ends; each takes a kWh."""
    caplog.set_level(logging.INFO)
    context = campaign(rungs="none", energy_kwh=2.5)
    trials, _ = run(context, counted)
    assert [trial.state for trial in trials] == ["complete"] * len(trials)
    assert 3 <= len(trials) <= 4 < TRIALS
    told = [r.getMessage() for r in caplog.records if r.levelno > logging.INFO]
    assert [line for line in told if "search.energy_kwh = 2.5 is used up" in line] == told
    assert len(told) == 1 and f"no more trials after {len(trials)} of {TRIALS}" in told[0]


def test_trials_that_have_begun_go_on_to_their_last_rung(campaign):
    trials, pool = run(campaign(energy_kwh=0.5), counted)
    assert 1 <= len(trials) <= 4 < TRIALS, "as many as two GCDs take at a time"
    assert trials[0].state == "complete" and len(pool.sent) > len(trials)


def test_a_search_alone_that_has_used_its_energy_is_over(campaign):
    """Of trials that were asked for; another limit continues it."""
    context = campaign(rungs="none", energy_kwh=2.5, objectives=["seconds"])
    assert not _is_complete(context.config, context.directory)
    steady = {"steps": 20, "steady_steps": 15, "steady_graphs": 60, "steady_seconds": 1.0}
    run(context, lambda spec: replace(counted(spec), gcds=["0"], **steady))
    assert _is_complete(context.config, context.directory)
    assert stage_of(context.directory.path).phase == "finished"
    more = context.config.search.model_copy(update={"energy_kwh": 10.0})
    further = context.config.model_copy(update={"search": more})
    assert not _is_complete(further, context.directory)


def test_a_later_driver_knows_what_was_used(campaign):
    first = campaign(rungs="none", energy_kwh=2.5)
    before = len(run(first, counted)[0])
    again = Context(first.config, first.site, first.directory, first.store, "", first.view)
    later = TrialPhase(again)
    assert later.context.ledger.trial_kwh == before
    assert later._to_come == 0


def test_a_limit_of_what_nobody_measures_is_refused_by_the_first_result(campaign):
    with pytest.raises(InputError, match=r"^search.energy_kwh cannot be measured on .*remove it"):
        run(campaign(energy_kwh=1.0), well)


def test_a_trial_that_was_not_counted_stays_where_others_are(campaign):
    def machine(spec):
        return well(spec) if spec.number == 3 else counted(spec)

    trials, _ = run(campaign(rungs="none", energy_kwh=100.0), machine)
    assert [trial.state for trial in trials] == ["complete"] * TRIALS
