"""A lost study is made anew from the ledger."""

import errno
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest
from campaign_cases import CONFIG, write_config
from phase_cases import SITE
from rich.console import Console

from hydragnn_flow.campaign import rebuild
from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.objectives import outcome_of
from hydragnn_flow.campaign.rebuild import rebuild_study
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.config import load_config
from hydragnn_flow.errors import InputError
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import Search, TrialRecord, read_trials
from hydragnn_flow.search.storage import end_of, read_journal
from hydragnn_flow.segment import SegmentResult
from hydragnn_flow.training.checkpoints.checkpoint import save_checkpoint

SPACE = {
    **CONFIG["search"]["space"],
    "Architecture.num_gaussians": {"int": [8, 40], "when": {"Architecture.mpnn_type": ["SchNet"]}},
}


def searched(folder, finish=False, **changes):
    """A run directory as a driver leaves it that is killed amid 24 trials, four in flight.

    Every ninth segment diverges, and every seventh is lost first. With ``finish``, those in flight
    have ended too.
    """
    search = {"trials": 24, "min_epochs": 1, "reduction_factor": 2, "space": SPACE}
    search |= {"sampler": "random"} | changes
    config = load_config(write_config(folder, search=search))
    directory = RunDirectory(folder / "run")
    directory.record_start(config)
    driver = Driver(directory, config)
    while driver.search.asked < config.search.trials or (finish and driver.flying):
        driver.step()
    driver.search.close()
    return directory


@pytest.fixture
def remade(store):
    """As the next driver begins; its configuration names no earlier searches any more."""
    return partial(made_anew, store)


def made_anew(store, directory):
    config = load_config(directory.path.parent / "small.yaml")
    search = config.search.model_copy(update={"warm_start": ()})
    config = config.model_copy(update={"search": search})
    directory.check(config)
    directory.record_start(config)
    view = CampaignView(Console(quiet=True))
    TrialPhase(Context(config, SITE, directory, store, "token", view)).search.close()


class Driver:
    """The campaign's loop, with a die for a trainer."""

    def __init__(self, directory, config):
        self.directory, self.config, self.die = directory, config, random.Random(4)
        self.search = Search(directory.journal, config.search, config.num_epoch, config.seed)
        self.flying: list[tuple[TrialRecord, int]] = []
        self.results: dict[int, list[SegmentResult]] = {}

    def step(self):
        while len(self.flying) < 4:
            promoted = self.search.promote()
            if promoted is not None:
                self.flying.append((promoted[0], promoted[1] + 1))
            elif self.search.asked < self.config.search.trials:
                self.flying.append((self.search.ask(), 0))
            else:
                break
        self.search.commit()
        for trial, _ in self.flying:
            network = self.config.network_with(trial.parameters)
            file = self.directory.trial(trial.number) / "checkpoint-1.pt"
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                progress = {"epoch": 0, "step": 1}
                save_checkpoint(file, {"network": network.to_json(), "progress": progress})
        trial, rung = self.flying.pop(self.die.randrange(len(self.flying)))
        lot = self.die.randrange(63)
        if lot % 7 == 0:
            self.end(trial, rung, status="killed", reason="its node was lost")
            self.flying.append((trial, rung))
        elif lot % 9 == 0:
            result = self.end(trial, rung, status="diverged", reason="loss is NaN")
            self.search.fail(trial.number, f"{result.status}: {result.reason}")
        else:
            result = self.end(trial, rung, status="ok", best_val_error=self.die.random())
            outcome = outcome_of(self.config.search, self.results[trial.number])
            if self.search.report(trial.number, rung, outcome) == "goes_on":
                self.flying.append((trial, rung + 1))

    def end(self, trial, rung, **fields):
        epochs = (0, *self.search.rungs.epochs(trial.number))
        fields |= {"from_epoch": epochs[rung], "to_epoch": epochs[rung + 1]}
        fields |= {"seconds": self.die.random(), "parameters": trial.parameters}
        result = SegmentResult(kind="trial", number=trial.number, rung=rung, **fields)
        self.results.setdefault(trial.number, []).append(result)
        self.directory.record([result])
        return result


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
    "hyperband": {"rungs": "hyperband"},
    "none": {"rungs": "none"},
    "constrained": {"constraints": {"seconds": 0.8}, "objectives": ["val_error", "seconds"]},
}


@pytest.mark.parametrize("changes", RULES.values(), ids=RULES)
def test_the_study_of_a_killed_driver_is_what_its_ledger_says(tmp_path, remade, changes):
    directory = searched(tmp_path, **changes)
    before, ledger = trials(directory), directory.segments.read_bytes()
    assert {trial["state"].name for trial in before} >= {"COMPLETE", "FAIL", "RUNNING"}
    directory.journal.unlink()
    remade(directory)
    assert len(before) == 24
    assert trials(directory) == before
    assert directory.segments.read_bytes() == ledger
    assert not list(directory.path.glob(".study*"))


def test_trials_that_wait_for_promotion_still_do(tmp_path, remade):
    directory = searched(tmp_path, finish=True, rungs="promotion")
    before = trials(directory)
    assert "RUNNING" in {trial["state"].name for trial in before}
    directory.journal.unlink()
    remade(directory)
    assert trials(directory) == before


def test_without_parameters_in_the_ledger_the_folders_have_them(tmp_path, remade):
    # HydraGNN's empty word, which a checked network leaves out.
    attention = {"Architecture.global_attn_engine": {"choices": ["", "GPS"]}}
    directory = searched(tmp_path, space=SPACE | attention)
    before = trials(directory)
    results = list(directory.results())
    directory.segments.unlink()
    directory.record([replace(result, parameters={}) for result in results])
    (directory.trial(3) / "checkpoint-1.pt").write_bytes(b"damaged")
    directory.journal.unlink()
    remade(directory)
    after, lost = trials(directory), read_trials(directory.path)[3]
    assert after[:3] + after[4:] == before[:3] + before[4:]
    assert lost.state == "failed" and lost.reason.startswith("lost: ")


def test_numbers_allow_for_earlier_studies_and_enqueued_trials(tmp_path, remade):
    (tmp_path / "earlier").mkdir()
    earlier = searched(tmp_path / "earlier")
    enqueue = [{"Architecture.hidden_dim": 7}, {"Training.batch_size": 2}]
    directory = searched(tmp_path, warm_start=[str(earlier.path)], enqueue=enqueue, trials=20)
    before = trials(directory)
    directory.journal.unlink()
    remade(directory)
    assert trials(directory) == before
    config = load_config(tmp_path / "small.yaml")
    Search(directory.journal, config.search, config.num_epoch, config.seed).close()
    assert trials(directory) == before  # nothing was enqueued again


def test_a_study_that_is_there_and_a_search_that_has_not_begun_are_left_alone(tmp_path):
    directory = searched(tmp_path)
    whole = directory.journal.read_bytes()
    config = load_config(tmp_path / "small.yaml")
    assert rebuild_study(directory, config.search) == 0
    assert directory.journal.read_bytes() == whole
    new = RunDirectory(tmp_path / "new")
    new.record_start(config)
    assert rebuild_study(new, config.search) == 0
    assert not new.journal.exists()


def test_a_rebuilding_that_was_killed_is_done_again(tmp_path, remade, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*arguments):
        raise Killed

    directory = searched(tmp_path)
    before = trials(directory)
    directory.journal.unlink()
    with monkeypatch.context() as killing:
        killing.setattr(rebuild, "_from_folder", killed)
        killing.setattr(Path, "unlink", lambda *arguments, **options: None)
        with pytest.raises(Killed):
            remade(directory)
    assert not directory.journal.exists()
    assert list(directory.path.glob(".study*"))
    remade(directory)
    assert trials(directory) == before
    assert not list(directory.path.glob(".study*"))


def test_a_study_is_made_anew_though_its_end_cannot_be_written(tmp_path, remade, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    directory = searched(tmp_path)
    before = trials(directory)
    directory.journal.unlink()
    end_of(directory.journal).write_text("12\n")  # of the study that is lost
    monkeypatch.setattr("hydragnn_flow.search.storage.write_text", full)
    remade(directory)
    assert trials(directory) == before


def test_another_search_is_refused_though_the_study_is_lost(tmp_path, remade):
    directory = searched(tmp_path)
    directory.journal.unlink()
    directory.store.mkdir()
    write_config(tmp_path, search={**CONFIG["search"], "space": SPACE, "trials": 24})
    with pytest.raises(InputError, match="belongs to another configuration"):
        remade(directory)
