"""Checkpoints of ended trials: what no member can come of is deleted, where that is asked for."""

from dataclasses import replace
from typing import Any

import pytest
from phase_cases import RATES, badly, leave_checkpoint, run, well

from hydragnn_flow.campaign.members import select_trials
from hydragnn_flow.campaign.trials import KeptCheckpoints, TrialPhase
from hydragnn_flow.ensemble import selection
from hydragnn_flow.errors import InputError
from hydragnn_flow.search import read_trials
from hydragnn_flow.training.checkpoints.checkpoint import checkpoints

BEST = 3
TRIALS = 12
SEARCH: dict[str, Any] = {"trials": TRIALS, "space": RATES, "rungs": "none"}
BEST_ALONE: dict[str, Any] = {**SEARCH, "keep_checkpoints": "best"}


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(selection, "_MOST_TRIALS", BEST)
    monkeypatch.setattr(selection, "_RESERVE", 0)


def having(context):
    """Trials that have a checkpoint."""
    return [n for n in range(TRIALS) if checkpoints(context.directory.trial(n))]


def better_later(spec):
    """Trials of larger numbers are better; each third diverges on its way."""
    if spec.number % 3 == 2:
        leave_checkpoint(spec)
        failed = badly(spec, "diverged")
        return replace(failed, checkpoint=spec.checkpoint.name)
    result = well(spec)
    return replace(result, best_val_error=10.0 - spec.number)


@pytest.mark.parametrize(
    ("search", "kept"),
    [(BEST_ALONE, [7, 9, 10]), (SEARCH, list(range(TRIALS)))],
    ids=["best", "all"],
)
def test_the_best_are_kept_where_asked_for_and_can_be_chosen(campaign, search, kept):
    context = campaign(**search)
    records, _ = run(context, better_later)
    assert having(context) == kept
    chosen = select_trials(context, records).chosen
    assert {choice.trial for choice in chosen} <= {7, 9, 10}


def test_the_next_driver_knows_which_were_kept(campaign):
    run(campaign(**BEST_ALONE | {"trials": 6}), better_later)
    context = campaign(**BEST_ALONE)
    assert having(context) == [1, 3, 4]
    TrialPhase(context).search.close()
    assert having(context) == [1, 3, 4]
    records, _ = run(context, better_later)
    assert having(context) == [7, 9, 10]
    # A larger ensemble is chosen from what was kept.
    with pytest.raises(InputError, match=r"more than the 3 trials whose checkpoints .* lower"):
        select_trials(campaign(ensemble={"size": BEST + 1}, **BEST_ALONE), records)


def test_each_message_passing_type_keeps_its_best(campaign):
    space = RATES | {"Architecture.mpnn_type": {"choices": ["PNA", "SchNet"]}}
    types = [{"Architecture.mpnn_type": "PNA" if n < 6 else "SchNet"} for n in range(TRIALS)]
    context = campaign(**BEST_ALONE | {"space": space}, enqueue=types)
    run(context, better_later)
    assert having(context) == [1, 3, 4, 7, 9, 10]


def test_nothing_is_deleted_before_the_verdict_is_on_disk(campaign, monkeypatch):
    """A driver that is killed in between judges again, and may let another trial go on."""
    context = campaign(**BEST_ALONE)
    seen: list[tuple[set[int], set[int]]] = []
    real = KeptCheckpoints.delete

    def delete(kept):
        before = set(having(context))
        real(kept)
        on_disk = {t.number for t in read_trials(context.directory.path) if t.state != "running"}
        seen.append((before - set(having(context)), on_disk))

    monkeypatch.setattr(KeptCheckpoints, "delete", delete)
    run(context, better_later)
    assert any(deleted for deleted, _ in seen)
    assert all(deleted <= on_disk for deleted, on_disk in seen)
