"""The study and the ledger, each made anew from the other."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import optuna
import pytest
from campaign_cases import CONFIG, write_config

from hydragnn_flow.campaign.objectives import outcome_of
from hydragnn_flow.campaign.rebuild import (
    ledger_from_study,
    rebuild_records,
    study_from_ledger,
)
from hydragnn_flow.config import RunConfig, load_config
from hydragnn_flow.config.network import write_network
from hydragnn_flow.errors import InputError
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import Search, TrialRecord, read_trials
from hydragnn_flow.search.journal import read_journal
from hydragnn_flow.search.storage import StudyStorage
from hydragnn_flow.training.segment import SegmentResult

SPACE = {
    **CONFIG["search"]["space"],
    "Architecture.num_gaussians": {"int": [8, 40], "when": {"Architecture.mpnn_type": ["SchNet"]}},
}


def searched(folder: Path, finish: bool = False, **changes: Any) -> RunDirectory:
    """A run directory as a driver leaves it that is killed amid 24 trials, four in flight.

    Every ninth segment diverges, and every seventh is lost first. With ``finish``, those in flight
    have ended too.
    """
    search = {"trials": 24, "min_epochs": 1, "reduction_factor": 2, "space": SPACE}
    search |= {"failures": {"diverged": "record", "out_of_memory": "record"}, "sampler": "random"}
    config = load_config(write_config(folder, search=search | changes))
    directory = RunDirectory(folder / "run")
    directory.claim(config)
    driver = Driver(directory, config)
    while driver.search.asked < config.search.trials or (finish and driver.flying):
        driver.step()
    driver.search.close()
    return directory


class Driver:
    """The campaign's loop, with a die for a trainer."""

    def __init__(self, directory: RunDirectory, config: RunConfig) -> None:
        self.directory, self.config, self.die = directory, config, random.Random(4)
        self.search = Search(directory.journal, config.search, config.num_epoch, config.seed)
        self.flying: list[tuple[TrialRecord, int]] = []
        self.results: dict[int, list[SegmentResult]] = {}

    def step(self) -> None:
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
            network = self.config.network_values(trial.parameters)
            write_network(self.directory.trial(trial.number), network)
        trial, rung = self.flying.pop(self.die.randrange(len(self.flying)))
        lot = self.die.randrange(63)
        if lot % 7 == 0:
            self.end(trial, rung, status="killed", reason="its node was lost")
            self.flying.append((trial, rung))
        elif lot % 9 == 0:
            result = self.end(trial, rung, status="diverged", reason="loss is NaN")
            self.search.fail(trial.number, f"{result.status}: {result.reason}")
        else:
            result = self.end(trial, rung, status="ok", best_val_loss=self.die.random())
            outcome = outcome_of(self.config.search, self.results[trial.number])
            if self.search.report(trial.number, rung, outcome) == "goes_on":
                self.flying.append((trial, rung + 1))

    def end(self, trial: TrialRecord, rung: int, **fields: Any) -> SegmentResult:
        epochs = (0, *self.search.rungs.epochs(trial.number))
        result = SegmentResult(
            kind="trial",
            number=trial.number,
            rung=rung,
            from_epoch=epochs[rung],
            to_epoch=epochs[rung + 1],
            seconds=self.die.random(),
            parameters=trial.parameters,
            **fields,
        )
        self.results.setdefault(trial.number, []).append(result)
        self.directory.record([result])
        return result


def trials(directory: RunDirectory) -> list[dict[str, Any]]:
    """All the study knows but times, and what the sampler notes for itself."""
    study = optuna.load_study(study_name="search", storage=read_journal(directory.journal))
    return [
        {
            "number": trial.number,
            "state": trial.state,
            "params": trial.params,
            "distributions": trial.distributions,
            "values": trial.values,
            "intermediate": trial.intermediate_values,
            "attributes": trial.user_attrs,
            "constraints": trial.constraints,
        }
        for trial in study.get_trials(deepcopy=False)
    ]


RULES: dict[str, dict[str, Any]] = {
    "stopping": {},
    "hyperband": {"rungs": "hyperband"},
    "none": {"rungs": "none"},
    "constrained": {"constraints": {"seconds": 0.8}, "objectives": ["val_loss", "seconds"]},
}


@pytest.mark.parametrize("changes", RULES.values(), ids=RULES)
def test_the_study_of_a_killed_driver_is_what_its_ledger_says(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    directory = searched(tmp_path, **changes)
    before, ledger = trials(directory), directory.segments.read_bytes()
    assert {trial["state"].name for trial in before} >= {"COMPLETE", "FAIL", "RUNNING"}
    directory.journal.unlink()
    assert study_from_ledger(directory.path) == len(before) == 24
    assert trials(directory) == before
    assert directory.segments.read_bytes() == ledger
    assert not list(directory.path.glob(".study*"))


def test_trials_that_wait_for_promotion_still_do(tmp_path: Path) -> None:
    directory = searched(tmp_path, finish=True, rungs="promotion")
    before = trials(directory)
    waiting = [trial for trial in before if trial["state"].name == "RUNNING"]
    assert waiting
    directory.journal.unlink()
    study_from_ledger(directory.path)
    assert trials(directory) == before


def test_without_parameters_in_the_ledger_the_folders_have_them(tmp_path: Path) -> None:
    directory = searched(tmp_path)
    before = trials(directory)
    results = list(directory.results())
    directory.segments.unlink()
    for result in results:
        result.parameters = {}
    directory.record(results)
    (directory.trial(3) / "config.json").unlink()
    directory.journal.unlink()
    study_from_ledger(directory.path)
    after = trials(directory)
    assert after[:3] + after[4:] == before[:3] + before[4:]
    assert read_trials(directory.path)[3].state == "failed"
    assert read_trials(directory.path)[3].reason.startswith("lost: ")


def test_numbers_allow_for_earlier_studies_and_enqueued_trials(tmp_path: Path) -> None:
    (tmp_path / "earlier").mkdir()
    earlier = searched(tmp_path / "earlier")
    first, second = {"Architecture.hidden_dim": 7}, {"Training.batch_size": 2}
    directory = searched(
        tmp_path, warm_start=[str(earlier.path)], enqueue=[first, second], trials=20
    )
    before = trials(directory)
    directory.journal.unlink()
    assert study_from_ledger(directory.path) == 20
    assert trials(directory) == before
    config = load_config(tmp_path / "small.yaml")
    Search(directory.journal, config.search, config.num_epoch, config.seed).close()
    assert trials(directory) == before  # nothing was enqueued again


def test_a_damaged_study_is_kept_aside_and_a_whole_one_is_left_alone(tmp_path: Path) -> None:
    directory = searched(tmp_path)
    before, whole = trials(directory), directory.journal.read_bytes()
    with pytest.raises(InputError, match="is whole"):
        study_from_ledger(directory.path)
    with pytest.raises(InputError, match="is whole"):
        ledger_from_study(directory.path)
    assert directory.journal.read_bytes() == whole
    damaged = whole.replace(b'"op_code":4', b'"op_code":"', 1)
    directory.journal.write_bytes(damaged)
    study_from_ledger(directory.path)
    assert trials(directory) == before
    assert directory.journal.with_name("study.journal.damaged").read_bytes() == damaged


def test_nothing_is_changed_where_both_are_damaged(tmp_path: Path) -> None:
    directory = searched(tmp_path)
    files = (directory.journal, directory.segments)
    for file in files:
        file.write_bytes(b"damaged\n" + file.read_bytes())
    before = {file.name: file.read_bytes() for file in directory.path.glob("*") if file.is_file()}
    for rebuild in (study_from_ledger, ledger_from_study):
        with pytest.raises(InputError, match="line 1 is damaged"):
            rebuild(directory.path)
    after = {file.name: file.read_bytes() for file in directory.path.glob("*") if file.is_file()}
    assert after == before


def test_a_study_of_nothing_is_no_study(tmp_path: Path) -> None:
    directory = searched(tmp_path)
    before = trials(directory)
    directory.journal.unlink()
    with StudyStorage(directory.journal) as storage:
        optuna.create_study(study_name="search", storage=storage)
    study_from_ledger(directory.path)
    assert trials(directory) == before


def test_a_study_begun_anew_or_older_than_its_ledger_is_made_from_it(tmp_path: Path) -> None:
    """As a driver leaves it that has found the journal gone: with what is enqueued, and no more."""
    directory = searched(tmp_path, enqueue=[{"Architecture.hidden_dim": 7}])
    before, ledger = trials(directory), directory.segments.read_bytes()
    config = load_config(tmp_path / "small.yaml")
    directory.journal.unlink()
    Search(directory.journal, config.search, config.num_epoch, config.seed).close()
    assert len(trials(directory)) == 1
    assert rebuild_records(directory.path).endswith("study.journal: made anew, 24 trials")
    assert trials(directory) == before
    directory.journal.unlink()
    search = Search(directory.journal, config.search, config.num_epoch, config.seed)
    search.ask()
    search.close()
    rebuild_records(directory.path)
    assert trials(directory) == before
    assert directory.segments.read_bytes() == ledger


@pytest.mark.parametrize("rule", ["stopping", "hyperband"])
def test_a_lost_ledger_has_a_line_per_report_again(tmp_path: Path, rule: str) -> None:
    directory = searched(tmp_path, **RULES[rule])
    before = trials(directory)

    def told(result: SegmentResult) -> tuple[Any, ...]:
        span = (result.from_epoch, result.to_epoch)
        parameters = tuple(sorted(result.parameters.items()))
        return (result.number, result.rung, *span, result.best_val_loss, parameters)

    original = [told(result) for result in directory.results() if result.status == "ok"]
    directory.segments.unlink()
    made = ledger_from_study(directory.path)
    results = list(directory.results())
    assert made == len(results)
    assert sorted(told(result) for result in results if result.status == "ok") == sorted(original)
    assert all("rebuilt from the study" in result.reason for result in results)
    diverged = [result for result in results if result.status == "diverged"]
    failed = [trial["number"] for trial in before if trial["state"].name == "FAIL"]
    assert sorted(result.number for result in diverged) == failed != []
    assert {result.reason for result in diverged} == {"loss is NaN (rebuilt from the study)"}


def test_of_a_damaged_ledger_the_whole_lines_stay(tmp_path: Path) -> None:
    directory = searched(tmp_path)
    member = SegmentResult("member", 0, 0, from_epoch=0, to_epoch=8, status="ok")
    directory.record([member])
    lines = directory.segments.read_bytes().splitlines(keepends=True)
    before = list(directory.results())
    lost = [n for n, result in enumerate(before) if result.status == "ok"][3]
    lines[lost] = b"{" + lines[lost]
    directory.segments.write_bytes(b"".join(lines))
    assert ledger_from_study(directory.path) == 1
    after = list(directory.results())
    assert after[-1] == member
    assert all(result in after for result in before if result != before[lost])
    mended = [result for result in after if result not in before]
    assert [(result.number, result.rung) for result in mended] == [
        (before[lost].number, before[lost].rung)
    ]
    for number in range(24):
        rungs = [result.rung for result in after[:-1] if result.number == number]
        assert rungs == sorted(rungs)
    assert directory.segments.with_name("segments.jsonl.damaged").read_bytes() == b"".join(lines)


def test_a_ledger_that_the_study_cannot_tell_is_refused(tmp_path: Path) -> None:
    directory = searched(tmp_path)
    config = (directory.path / "run.yaml").read_text()
    (directory.path / "run.yaml").write_text(config.replace("- val_loss", "- train_loss"))
    directory.segments.unlink()
    with pytest.raises(InputError, match="'train_loss'"):
        ledger_from_study(directory.path)
    directory.journal.unlink()
    (directory.path / "run.yaml").write_text(config)
    with pytest.raises(InputError, match=r"study\.journal: is missing"):
        ledger_from_study(directory.path)
    assert not directory.segments.exists()


def test_the_command_makes_what_is_lost(tmp_path: Path) -> None:
    directory = searched(tmp_path)
    known = read_trials(directory.path)
    directory.journal.unlink()
    assert "study.journal: made anew, " in rebuild_records(directory.path)
    assert len(read_trials(directory.path)) == len(known)
    directory.segments.unlink()
    assert "segments.jsonl: made anew, " in rebuild_records(directory.path)
    assert {result.number for result in directory.results()} <= {t.number for t in known}
    with pytest.raises(InputError, match="is whole"):
        rebuild_records(directory.path)
