"""Checkpoints of ended trials: what no member can come of is deleted, where that is asked for."""

from dataclasses import replace

import pytest
from phase_cases import badly, leave_checkpoint, run, well

from hydragnn_flow.campaign.members import select_trials
from hydragnn_flow.campaign.trials import KeptCheckpoints, TrialPhase
from hydragnn_flow.ensemble import selection
from hydragnn_flow.errors import InputError
from hydragnn_flow.search import read_trials
from hydragnn_flow.training.checkpoints.checkpoint import checkpoints

BEST = 3
TRIALS = 12
SPACE = {"Training.Optimizer.learning_rate": {"float": [1e-3, 1e-2], "log": True}}


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


@pytest.mark.parametrize("rungs", ["stopping", "promotion", "none"])
def test_the_best_are_kept_where_asked_for_and_can_be_chosen(campaign, rungs):
    settings = {"keep_checkpoints": "best"} if rungs != "none" else {}
    context = campaign(trials=TRIALS, space=SPACE, rungs=rungs, **settings)
    records, _ = run(context, better_later)
    assert having(context) == ([7, 9, 10] if settings else list(range(TRIALS)))
    chosen = select_trials(context, records).chosen
    assert {choice.trial for choice in chosen} <= {7, 9, 10}


def test_the_next_driver_knows_which_were_kept(campaign):
    settings = {"space": SPACE, "rungs": "none", "keep_checkpoints": "best"}
    run(campaign(trials=6, **settings), better_later)
    context = campaign(trials=TRIALS, **settings)
    assert having(context) == [1, 3, 4]
    TrialPhase(context).search.close()
    assert having(context) == [1, 3, 4]
    run(context, better_later)
    assert having(context) == [7, 9, 10]


def test_each_message_passing_type_keeps_its_best(campaign):
    space = SPACE | {"Architecture.mpnn_type": {"choices": ["PNA", "SchNet"]}}
    types = [{"Architecture.mpnn_type": "PNA" if n < 6 else "SchNet"} for n in range(TRIALS)]
    context = campaign(
        trials=TRIALS, space=space, enqueue=types, rungs="none", keep_checkpoints="best"
    )
    run(context, better_later)
    assert having(context) == [1, 3, 4, 7, 9, 10]


def test_nothing_is_deleted_before_the_verdict_is_on_disk(campaign, monkeypatch):
    """A driver that is killed in between judges again, and may let another trial go on."""
    context = campaign(trials=TRIALS, space=SPACE, rungs="none", keep_checkpoints="best")
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


def test_a_larger_ensemble_is_chosen_from_what_was_kept(campaign):
    settings = {"trials": TRIALS, "space": SPACE, "rungs": "none", "keep_checkpoints": "best"}
    records, _ = run(campaign(**settings), better_later)
    context = campaign(**settings)
    larger = context.config.ensemble.model_copy(update={"size": BEST + 1})
    context.config = context.config.model_copy(update={"ensemble": larger})
    with pytest.raises(InputError, match=r"more than the 3 trials whose checkpoints .* lower"):
        select_trials(context, records)
