"""A lost study is made anew from the ledger."""

import errno
import math
import random
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import optuna
import pytest
from campaign_cases import CONFIG
from phase_cases import RATES, FakePool, badly, searched, well

from hydragnn_flow.campaign import rebuild
from hydragnn_flow.campaign.rebuild import rebuild_study
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.config import RunConfig
from hydragnn_flow.errors import InputError
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import read_trials
from hydragnn_flow.search.storage import end_of, read_journal
from hydragnn_flow.segment import SegmentResult
from hydragnn_flow.training.checkpoints.checkpoint import (
    checkpoints,
    load_checkpoint,
    save_checkpoint,
)

SPACE = {
    **CONFIG["search"]["space"],
    "Architecture.num_gaussians": {"int": [8, 40], "when": {"Architecture.mpnn_type": ["SchNet"]}},
}
SEARCH: dict[str, Any] = {"trials": 24, "min_epochs": 1, "reduction_factor": 2, "space": SPACE}
SEARCH["sampler"] = "random"


class OneByOne(FakePool):
    """Segments end one after the other, in any order."""

    def __init__(self, machine):
        super().__init__(machine)
        self.die = random.Random(5)
        self.flying: list[tuple[Future[list[SegmentResult]], Future[list[SegmentResult]]]] = []

    def run(self, ranks, node):
        self.flying.append((Future(), super().run(ranks, node)))
        return self.flying[-1][0]

    def update(self, demand=0):
        super().update(demand)
        if self.flying:
            later, ended = self.flying.pop(self.die.randrange(len(self.flying)))
            later.set_result(ended.result())


@pytest.fixture
def left(campaign):
    """The run directory that a driver leaves that is killed amid 24 trials, some in flight.

    Every ninth segment diverges, and every seventh is lost first.
    """

    def search(**changes):
        die = random.Random(4)

        def machine(spec):
            seconds = die.choice([0.1, 0.5, 1.0, math.inf])
            ended = replace(well(spec), best_val_error=die.random(), seconds=seconds)
            state = load_checkpoint(spec.checkpoint) | {"network": spec.network.to_json()}
            save_checkpoint(spec.checkpoint, state)
            if spec.number == 23:
                raise KeyboardInterrupt
            lot = die.randrange(63)
            if lot % 7 and lot % 9:
                return ended
            return badly(spec, "diverged" if lot % 7 else "killed")

        context = campaign(**SEARCH | changes)
        with pytest.raises(KeyboardInterrupt):
            searched(TrialPhase(context), OneByOne(machine))
        return context.directory

    return search


@pytest.fixture
def remade(campaign):
    """As the next driver begins; its configuration names no earlier searches any more."""

    def begin(**changes):
        TrialPhase(campaign(**SEARCH | changes)).search.close()

    return begin


def trials(directory):
    """All the study knows but times, and what the sampler notes for itself."""
    study = optuna.load_study(study_name="search", storage=read_journal(directory.journal))
    known = "number state params distributions values intermediate_values user_attrs constraints"
    return [
        {name: getattr(trial, name) for name in known.split()}
        for trial in study.get_trials(deepcopy=False)
    ]


RULES: dict[str, dict[str, Any]] = {
    "stopping": {},
    "none": {"rungs": "none"},
    "constrained": {"constraints": {"seconds": 0.8}, "objectives": ["val_error", "seconds"]},
}


@pytest.mark.parametrize("changes", RULES.values(), ids=RULES)
def test_the_study_of_a_killed_driver_is_what_its_ledger_says(left, remade, changes, caplog):
    """Trials that took infinitely long have failed there too, where that is an objective."""
    directory = left(**changes)
    before, ledger = trials(directory), directory.segments.read_bytes()
    assert {trial["state"].name for trial in before} >= {"COMPLETE", "FAIL", "RUNNING"}
    failed = [trial["user_attrs"] for trial in before if trial["state"].name == "FAIL"]
    assert any("inf)" in why["reason"] for why in failed) is ("objectives" in changes), failed
    directory.journal.unlink()
    with caplog.at_level("INFO", "hydragnn_flow"):
        remade(**changes)
    assert f"{directory.journal}: was missing; made anew from segments.jsonl, 24" in caplog.text
    assert len(before) == 24
    assert trials(directory) == before
    assert directory.segments.read_bytes() == ledger
    assert not list(directory.path.glob(".study*"))


def test_without_parameters_in_the_ledger_the_folders_have_them(left, remade):
    # HydraGNN's empty word, which a checked network leaves out.
    space = RATES | {"Architecture.global_attn_engine": {"choices": ["", "GPS"]}}
    directory = left(space=space)
    before = trials(directory)
    results = list(directory.results())
    directory.segments.unlink()
    directory.record([replace(result, parameters={}) for result in results])
    in_flight = max({trial["number"] for trial in before} - {one.number for one in results})
    checkpoints(directory.trial(in_flight))[0].write_bytes(b"damaged")
    directory.journal.unlink()
    remade(space=space)
    after, lost = trials(directory), read_trials(directory.path)[in_flight]
    assert lost.state == "failed" and lost.reason.startswith("lost: ")
    assert after.pop(in_flight)["number"] == before.pop(in_flight)["number"]
    assert after == before


def test_numbers_allow_for_earlier_studies_and_enqueued_trials(tmp_path, left, remade):
    earlier = left().path.rename(tmp_path / "earlier")
    enqueue = [{"Architecture.hidden_dim": 7}, {"Training.batch_size": 2}]
    directory = left(warm_start=[str(earlier)], enqueue=enqueue)
    before = trials(directory)
    directory.journal.unlink()
    for _ in range(2):
        remade(enqueue=enqueue)
        assert trials(directory) == before, "something was enqueued again"


def test_a_study_that_is_there_and_a_search_that_has_not_begun_are_left_alone(tmp_path, left):
    directory = left()
    whole, config = directory.journal.read_bytes(), directory.config()
    assert rebuild_study(directory, config.search) == 0
    assert directory.journal.read_bytes() == whole
    new = RunDirectory(tmp_path / "new")
    new.record_start(config)
    assert rebuild_study(new, config.search) == 0
    assert not new.journal.exists()


def test_a_rebuilding_that_was_killed_is_done_again(left, remade, monkeypatch):
    directory = left()
    before = trials(directory)
    directory.journal.unlink()
    with monkeypatch.context() as killing:
        killing.setattr(rebuild, "_from_folder", Mock(side_effect=KeyboardInterrupt))
        killing.setattr(Path, "unlink", lambda *arguments, **options: None)
        with pytest.raises(KeyboardInterrupt):
            remade()
    assert not directory.journal.exists()
    assert list(directory.path.glob(".study*"))
    remade()
    assert trials(directory) == before
    assert not list(directory.path.glob(".study*"))


def test_a_study_is_made_anew_though_its_end_cannot_be_written(left, remade, monkeypatch):
    directory = left()
    before = trials(directory)
    directory.journal.unlink()
    end_of(directory.journal).write_text("12\n")  # of the study that is lost
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("hydragnn_flow.search.storage.write_text", Mock(side_effect=full))
    remade()
    assert trials(directory) == before


def test_another_search_is_refused_though_the_study_is_lost(left):
    directory = left()
    directory.journal.unlink()
    directory.store.mkdir()
    with pytest.raises(InputError, match="belongs to another configuration"):
        directory.check(RunConfig.model_validate(CONFIG))
