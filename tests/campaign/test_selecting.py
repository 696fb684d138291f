"""The choice of members is on disk before they train, and a restarted driver keeps to it."""

import json
import logging
from dataclasses import replace

from campaign_cases import MEMBERS
from phase_cases import run, well

from hydragnn_flow.campaign.members import select_trials
from hydragnn_flow.ensemble.summary import SELECTION


def test_a_restarted_driver_keeps_to_the_choice(campaign, caplog):
    caplog.set_level(logging.INFO, logger="hydragnn_flow.campaign")
    trials, _ = run(campaign(), well)
    context = campaign()
    chosen = select_trials(context, trials)
    file = context.directory.ensemble / SELECTION
    # The machine of this test predicts nothing: trials count by their criterion, and that is told.
    told = [message for message in caplog.messages if "validation predictions" in message]
    assert len(told) == 1 and "are missing or damaged" in told[0]
    assert len(chosen.chosen) == MEMBERS and chosen.chosen[0].trial == 0
    assert json.loads(file.read_text())["chosen"][0]["reason"] == chosen.chosen[0].reason
    # What would be chosen now does not matter any more.
    other = [replace(trial, feasible=trial.number != 0) for trial in trials]
    assert select_trials(campaign(), other) == chosen
    # So it is with a choice of version 1, which names no failed members.
    content = json.loads(file.read_text())
    del content["failed"]
    file.write_text(json.dumps({**content, "version": 1}))
    assert select_trials(campaign(), other) == chosen
    # Unless the choice cannot be read, or is of trials that the search does not have.
    file.write_text(file.read_text()[:-20])
    assert select_trials(campaign(), other).chosen[0].trial != 0
    without = [trial for trial in trials if trial.number != 1]
    assert 1 not in {choice.trial for choice in select_trials(campaign(), without).chosen}
