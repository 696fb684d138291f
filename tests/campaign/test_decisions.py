"""Decisions of a campaign, as they stand in the driver's log."""

import logging
import re
from collections import Counter

import pytest
from phase_cases import badly, micro_batches, run, well


@pytest.fixture
def decisions(caplog):
    caplog.set_level(logging.INFO, logger="hydragnn_flow.campaign")
    return caplog


def said(decisions, of):
    """Messages that begin with the name of a trial or member."""
    return [message for message in decisions.messages if message.startswith(f"{of} ")]


def test_the_life_of_a_trial_is_told(campaign, decisions):
    sent: Counter[int] = Counter()

    def machine(spec):
        sent[spec.number] += 1
        if spec.number == 1 and sent[1] == 1:
            return badly(spec, "killed")
        if spec.number == 2:
            return badly(spec, "diverged")
        if spec.number == 3 and micro_batches(spec) < 2:
            return badly(spec, "out_of_memory")
        return well(spec)

    trials, _ = run(campaign(), machine)
    assert said(decisions, "trial 1")[0] == (
        "trial 1 is sent again (1 of 3 failures, 0 of 10 losses): killed: disk full"
    )
    assert said(decisions, "trial 2") == ["trial 2 has failed: diverged: disk full"]
    assert any(": 2 micro-batches a step, for " in line for line in said(decisions, "trial 3:"))
    verdicts = said(decisions, "trial 0,")
    assert verdicts[0] == (
        "trial 0, rung 0: goes on by the rule 'stopping': val_error = 1 after 2 epochs"
    )
    assert re.match(r"trial 0, rung \d: complete by", verdicts[-1])
    stopped = [trial.number for trial in trials if trial.state == "pruned"]
    assert stopped
    for number in stopped:
        assert ": stops by the rule" in said(decisions, f"trial {number},")[-1]
