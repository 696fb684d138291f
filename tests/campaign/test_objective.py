"""Campaigns that call a function of the user's."""

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from driver_cases import PATIENCE, TWO_CORES, is_at_work, lines, start, start_until
from job_cases import answer
from optuna import load_study

from hydragnn_flow.campaign import function_task as objective_task
from hydragnn_flow.campaign import functions as objective
from hydragnn_flow.campaign.context import Ledger
from hydragnn_flow.campaign.function_task import answer_file, run
from hydragnn_flow.config import load_config
from hydragnn_flow.config.objective import ObjectiveConfig
from hydragnn_flow.config.run import load_campaign
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import load_site
from hydragnn_flow.execution.binding import bound_to
from hydragnn_flow.execution.jobs import MOST_LOSSES, Retries
from hydragnn_flow.locks import locked
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search.storage import STUDY, read_journal
from hydragnn_flow.segment import Segment, SegmentResult, TrainingOutcome

TESTS = Path(__file__).resolve().parents[1]
SEARCH: dict[str, Any] = {
    "objective": "own_objective:quadratic",
    "epochs": 9,
    "min_epochs": 1,
    "trials": 6,
    "space": {"x": {"float": [0.0, 1.0]}},
}


def write(folder, values=None, **search):
    path = folder / "objective.yaml"
    sections = {"name": "mine", "search": {**SEARCH, **search}, **(values or {})}
    path.write_text(yaml.safe_dump(sections))
    return path


def request(folder, objective="quadratic", **changes):
    asked = {"number": 0, "parameters": {"x": 0.5}, "budget": 3, "seed": 7, "pause": 0}
    asked |= {"objective": f"own_objective:{objective}", "objectives": ["value"]}
    return asked | {"directory": str(folder)} | changes


def answered(folder, asked):
    returned = run(asked)
    assert returned == json.loads(answer_file(folder, asked["budget"]).read_text())
    return returned


def test_a_configuration_is_read(tmp_path):
    file = write(tmp_path)
    config = load_campaign(file)
    assert isinstance(config, ObjectiveConfig)
    assert config.search.rung_epochs(config.search.epochs) == (1, 3, 9)
    assert ObjectiveConfig.model_validate_json(config.model_dump_json()) == config
    # Other commands say that there is nothing to plan.
    with pytest.raises(InputError, match=r"search\.objective.*hydragnn-flow run"):
        load_config(file)


@pytest.mark.parametrize(
    ("values", "search", "said"),
    [
        ({"network": {}}, {}, "network does not go with search.objective.*remove one"),
        ({"name": "a/b"}, {}, "name: .*letters"),
        ({}, {"objective": "own_objective:missing"}, "search.objective.*no 'missing'"),
        ({}, {"objective": "nowhere:f"}, "search.objective.*no module 'nowhere'"),
        ({}, {"objective": "own_objective:__doc__"}, "search.objective.*cannot be called"),
        ({}, {"keep_checkpoints": "best"}, "keep_checkpoints is for networks.*remove it"),
        ({}, {"objectives": ["seconds"]}, "search.objectives.*begin with an error"),
        ({}, {"objectives": ["a", "a"]}, "search.objectives.*given twice"),
        ({}, {"constraints": {"joules": 3}}, "search.constraints.*'joules'.*gcd_hours"),
        ({}, {"epoch": 3}, "unknown key 'epoch'.*did you mean 'epochs'"),
    ],
)
def test_a_wrong_key_is_named(tmp_path, values, search, said):
    path = write(tmp_path, values, **search)
    with pytest.raises(InputError, match=rf"{path}.*{said}"):
        load_campaign(path)


def test_a_call_goes_on_in_its_folder_and_is_made_once(tmp_path):
    first = answered(tmp_path, request(tmp_path, budget=1))
    second = answered(tmp_path, request(tmp_path, budget=3))
    again = answered(tmp_path, request(tmp_path, budget=3))
    assert first["values"]["value"] == pytest.approx(0.04 + 1)
    assert second["values"]["value"] == pytest.approx(0.04 + 1 / 3)
    assert again == second
    assert json.loads((tmp_path / "state.json").read_text()) == {"done": 3, "calls": 2}


def test_an_answer_on_a_disk_that_is_away_is_waited_for(tmp_path, monkeypatch):
    asked = request(tmp_path)
    answer, read, failures = answered(tmp_path, asked), Path.read_bytes, [errno.ESTALE, errno.EIO]

    def away(path):
        if failures:
            raise OSError(failures.pop(), "the disk is away")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", away)
    monkeypatch.setattr("hydragnn_flow.files.time.sleep", lambda seconds: None)
    assert run(asked) == answer and not failures


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (1, "error", ("KeyError in own_objective.py, line", "'depth'")),
        (3, "diverged", ("NaN",)),
        (4, "error", ("no number for 'value'", "much")),
    ],
)
def test_a_failure_is_an_answer(tmp_path, number, status, said):
    failure = answered(tmp_path, request(tmp_path, "fails", number=number))
    assert failure["status"] == status
    assert all(words in failure["reason"] for words in said)


def test_several_objectives_are_returned_by_name(tmp_path):
    asked = request(tmp_path, "several", objectives=["error", "size", "seconds"])
    assert answered(tmp_path, asked)["values"] == {"error": 0.25, "size": 0.5}
    for wrong in (None, "0.5", True, 10**400):
        returned = {"value": 1.0, "seconds": wrong}
        status, reason, _ = objective_task._checked(returned, ["value", "seconds"])
        assert (status, "no number for 'seconds'" in reason) == ("error", True)
    lacking = request(tmp_path, "several", objectives=["loss"], budget=4)
    assert "no 'loss'" in answered(tmp_path, lacking)["reason"]


def test_a_disk_that_is_full_within_a_function_is_waited_for(tmp_path):
    """By the next sending, which goes out later; the function is called once for each."""
    task = "hydragnn_flow.campaign.function_task:run"
    asked = request(tmp_path / "trials" / "0", "short_of_room")
    for _ in range(2):
        assert answer(task, asked)["status"] == "lost"
    assert answer(task, asked)["status"] == "ok"
    assert json.loads(answer_file(tmp_path / "trials" / "0", 3).read_text())["status"] == "ok"
    assert (tmp_path / "trials" / "0" / "calls").read_text() == "xxx"
    assert sum(Retries(losses=losses).pause for losses in range(MOST_LOSSES)) > 240


@pytest.mark.parametrize(
    ("error", "file", "lost"),
    [
        ("EROFS", "inside", True),
        ("ESTALE", "", True),
        ("EROFS", "/usr/share/mine.log", False),
        ("ENOSPC", "/tmp/mine", False),
        ("ENOENT", "inside", False),
        ("ETIMEDOUT", "", False),
        ("EHOSTDOWN", "inside", False),
    ],
)
def test_only_the_disk_of_the_run_is_not_the_functions_fault(tmp_path, error, file, lost):
    """And whoever is at fault, nothing is called twice."""
    folder = tmp_path / "trials" / "0"
    files = [file.replace("inside", str(folder / "file"))] if file else []
    asked = request(folder, "short_of_room", parameters={"x": 0.5, "errno": error, "files": files})
    status = answer("hydragnn_flow.campaign.function_task:run", asked)["status"]
    assert status == ("lost" if lost else "ok")
    assert (folder / "calls").read_text() == "x"
    if not lost:
        own = json.loads(answer_file(folder, 3).read_text())
        assert own["status"] == "error" and "Error in own_objective.py" in own["reason"]


def test_the_longest_call_is_known_after_a_restart(tmp_path):
    """By which a call that hangs is told."""
    directory, config = RunDirectory(tmp_path), load_campaign(write(tmp_path))
    assert isinstance(config, ObjectiveConfig)
    directory.record_start(config)
    outcome = TrainingOutcome(status="ok", to_epoch=2, seconds=10.0)
    directory.record([SegmentResult.of(Segment(kind="trial", number=0, rung=0), outcome)])
    ledger = Ledger(directory, "")
    campaign = objective._Campaign(config, load_site("local"), directory, ledger, CampaignView())
    assert campaign._longest == 5.0


def test_two_calls_of_a_trial_are_never_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("hydragnn_flow.campaign.function_task.SECONDS_TO_WAIT", 0.1)
    hold = "with locked(pathlib.Path(sys.argv[1]), 1): print(1, flush=True); time.sleep(60)"
    code = f"import pathlib, sys, time\nfrom hydragnn_flow.locks import locked\n{hold}"
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        with pytest.raises(TimeoutError, match="still holds"):
            run(request(tmp_path))
        other.kill()
    with locked(tmp_path / "lock", 1.0):
        pass


@pytest.fixture(autouse=True)
def _drivers_find_our_modules(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), *sys.path]))


def paths(folder):
    return folder / "objective.yaml", folder / "run", folder / "output"


def three_calls(run):
    return lines(run / "segments.jsonl") >= 3


def exit_code(folder):
    return start(*paths(folder)).wait(PATIENCE)


def trials(folder):
    with (folder / "run" / "trials.csv").open() as file:
        return {int(row["trial"]): row for row in csv.DictReader(file)}


@pytest.mark.slow
@pytest.mark.xdist_group("objective")
def test_a_killed_driver_goes_on(tmp_path):
    """No budget of a trial is computed twice, and trials end by their rungs."""
    write(tmp_path, space={**SEARCH["space"], "pause": {"choices": [0.2]}})
    driver = start_until(three_calls, "three calls", *paths(tmp_path))
    driver.kill()
    driver.wait()
    known = (tmp_path / "run" / "segments.jsonl").read_text()
    assert exit_code(tmp_path) == 0, (tmp_path / "output").read_text()
    ledger = (tmp_path / "run" / "segments.jsonl").read_text()
    assert ledger.startswith(known)
    calls = [json.loads(line) for line in ledger.splitlines()]
    times = Counter((call["number"], call["rung"]) for call in calls)
    assert set(times.values()) == {1}
    rows = trials(tmp_path)
    assert len(rows) == 6
    assert {row["state"] for row in rows.values()} == {"complete", "pruned"}
    for call in calls:
        state = json.loads((tmp_path / f"run/trials/{call['number']}/state.json").read_text())
        assert state["done"] >= call["to_epoch"]
    best = min(float(row["value"]) for row in rows.values())
    assert best < 1 / 9 + 0.1
    # Nothing is left to do, and the same command says so.
    assert exit_code(tmp_path) == 0
    assert (tmp_path / "run" / "segments.jsonl").read_text() == ledger
    write(tmp_path, space={"x": {"float": [0.0, 2.0]}})
    assert exit_code(tmp_path) == 2
    assert "search.space.pause differs" in (tmp_path / "output").read_text()


@pytest.mark.slow
@pytest.mark.xdist_group("objective")
def test_failures_are_named_results(tmp_path):
    write(tmp_path, objective="own_objective:fails", epochs=1, trials=6)
    assert exit_code(tmp_path) == 0, (tmp_path / "output").read_text()
    rows = trials(tmp_path)
    assert [row["state"] for row in rows.values()].count("failed") == 4
    assert "KeyError in own_objective.py, line" in rows[1]["reason"]
    assert f"killed by {signal.SIGKILL.name}" in rows[2]["reason"]
    assert rows[3]["reason"].startswith("diverged")
    assert "no number for 'value'" in rows[4]["reason"]
    study = load_study(study_name=STUDY, storage=read_journal(tmp_path / "run" / "study.journal"))
    assert all(trial.user_attrs["gcd_seconds"] > 0 for trial in study.trials)


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode:
        pytest.skip("needs root, and a machine that lets it mount a small disk")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.xdist_group("objective")
def test_a_disk_that_is_full_for_long_costs_no_trial(tmp_path, small_disk):
    """For longer than three calls in a row, each of which fails at once, would take."""
    (tmp_path / "run").symlink_to(small_disk / "run")
    (small_disk / "run").mkdir()
    write(tmp_path, space={**SEARCH["space"], "pause": {"choices": [0.1]}})
    driver = start_until(three_calls, "three calls", *paths(tmp_path))
    ballast = small_disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    for _ in range(130):  # who waits for it is the driver, or the calls, which come to it first
        assert driver.poll() is None, (tmp_path / "output").read_text()
        time.sleep(1)
    ballast.unlink()
    assert driver.wait(PATIENCE) == 0, (tmp_path / "output").read_text()
    assert {row["state"] for row in trials(tmp_path).values()} == {"complete", "pruned"}
    calls = [
        json.loads(line) for line in (tmp_path / "run/segments.jsonl").read_text().splitlines()
    ]
    assert {call["status"] for call in calls} == {"ok"}
    assert {*Counter((call["number"], call["rung"]) for call in calls).values()} == {1}


@pytest.mark.slow
@pytest.mark.xdist_group("objective")
def test_a_function_that_never_returns_ends_and_a_damaged_answer_is_asked_for_again(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(objective, "SECONDS_TO_BEGIN", 4.0)
    write(tmp_path, objective="own_objective:hangs", epochs=1, trials=4)
    config, run = load_campaign(tmp_path / "objective.yaml"), tmp_path / "run"
    assert isinstance(config, ObjectiveConfig)
    RunDirectory(run).record_start(config)
    damaged = answer_file(run / "trials" / "2", 1)
    damaged.parent.mkdir(parents=True)
    damaged.write_text('{"status": "ok", "val')
    with bound_to(TWO_CORES):
        objective.run_objective(config, load_site("local"), run)
    rows = trials(tmp_path)
    assert [rows[k]["state"] for k in range(4)] == ["failed", "failed", "complete", "complete"]
    for number in range(2):  # though no call had returned yet
        reason = rows[number]["reason"]
        assert "3 times: it hung: it neither returned nor wrote a file for" in reason
    assert "budget-1.json: is damaged" in (run / "trials" / "2" / "log").read_text()
    assert not is_at_work(int((run / "trials/1/sleeper").read_text()))
