"""`hydragnn-flow status`: what a driver and its blocks are at."""

from __future__ import annotations

import io
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from report_cases import CONFIGURATION
from rich.console import Console
from typer.testing import CliRunner

from hydragnn_flow import cli
from hydragnn_flow.execution import sole_driver
from hydragnn_flow.execution.pools.workers_file import WORKERS_FILE
from hydragnn_flow.log import FILE
from hydragnn_flow.report.status import status_table
from hydragnn_flow.search import JOURNAL


def block(state: str, minutes: float, reason: str = "") -> dict[str, Any]:
    return {"state": state, "since": time.time() - 60 * minutes, "reason": reason}


def workers() -> dict[str, Any]:
    return {
        "driver_pid": os.getpid(),
        "host": socket.gethostname(),
        "pools": {
            "gcd": {
                "workers": 16,
                "tasks": 12,
                "blocks": [
                    block("ended", 90),
                    block("running", 60),
                    block("pending", 3, "Resources"),
                    block("pending", 12.1, "Priority"),
                ],
            },
            "node": {"workers": 0, "tasks": 0, "blocks": [block("ended", 5)]},
        },
        "bad_nodes": ["frontier00007"],
    }


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(json.dumps(CONFIGURATION))
    (tmp_path / JOURNAL).touch()
    (tmp_path / WORKERS_FILE).write_text(json.dumps(workers()))
    return tmp_path


def shown(run_directory: Path) -> str:
    text = io.StringIO()
    Console(width=120, file=text).print(status_table(run_directory))
    return text.getvalue()


def test_blocks_that_run_and_wait_are_told_with_the_reason(run_directory: Path) -> None:
    with sole_driver(run_directory):
        text = shown(run_directory)
    assert f"driver: process {os.getpid()} on {socket.gethostname()}" in text
    assert (
        "pool gcd: 16 workers, 12 tasks, 1 block running, 2 blocks in the queue since 12 min "
        "(Priority)"
    ) in text
    assert "pool node" not in text
    assert "segments ended badly there: frontier00007" in text


def test_the_best_trials_kept_the_limits_and_their_value_is_named(run_directory: Path) -> None:
    (run_directory / JOURNAL).unlink()
    backend = optuna.storages.journal.JournalFileBackend(str(run_directory / JOURNAL))
    storage = optuna.storages.JournalStorage(backend)
    study = optuna.create_study(study_name="search", storage=storage)
    for value, excess in ((0.125, 1.0), (0.5, -1.0), (0.25, 0.0)):
        trial = study.ask()
        trial.set_constraint("gcd_hours", excess)
        trial.report(value, 3)
        study.tell(trial, value)
    rows = [line for line in shown(run_directory).splitlines() if "│" in line]
    assert [row.split("│")[3].strip() for row in rows] == ["0.25", "0.5", "0.125"]
    assert "complete, beyond a limit" in rows[2]
    assert "validation loss" in shown(run_directory)
    search = {**CONFIGURATION["search"], "objectives": ["val.forces"]}
    (run_directory / "run.yaml").write_text(json.dumps({**CONFIGURATION, "search": search}))
    text = shown(run_directory)
    assert "val.forces" in text and "validation loss" not in text


def test_a_run_without_a_driver_says_so_whatever_the_last_one_wrote(run_directory: Path) -> None:
    with sole_driver(run_directory):
        pass
    text = shown(run_directory)
    assert "no driver is at work" in text
    assert "pool gcd" not in text


def test_what_an_earlier_driver_wrote_is_not_shown_as_this_ones(run_directory: Path) -> None:
    others = json.dumps({**workers(), "driver_pid": 1})
    (run_directory / WORKERS_FILE).write_text(others)
    with sole_driver(run_directory):
        text = shown(run_directory)
    assert "driver: process" in text
    assert "pool gcd" not in text


def test_looking_leaves_the_lock_to_drivers(run_directory: Path) -> None:
    shown(run_directory)
    with sole_driver(run_directory):
        shown(run_directory)


def test_the_last_decisions_of_the_driver_are_shown_on_request(run_directory: Path) -> None:
    run = ["status", str(run_directory)]
    assert CliRunner().invoke(cli.app, [*run, "--log"]).exit_code == 0  # no driver has logged yet
    lines = [f"2026-11-23 05:00:{n:02}+0000 INFO    a.b: [decision] {n}\n" for n in range(30)]
    (run_directory / FILE).write_text("".join(lines))
    shown = CliRunner().invoke(cli.app, [*run, "--log"]).stdout
    assert shown.endswith("".join(lines[-20:]))
    assert lines[9] not in shown
    assert lines[-1] not in CliRunner().invoke(cli.app, run).stdout
