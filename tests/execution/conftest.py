"""Lanes of the test process: warm from one test of a file to the next."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hydragnn_flow.execution.workers import worker
from hydragnn_flow.execution.workers.lane import Lane


def _end(lanes: dict[tuple[int, int], Lane]) -> None:
    for lane in lanes.values():
        lane.kill()
    lanes.clear()


@pytest.fixture(scope="module", autouse=True)
def _end_lanes() -> Iterator[None]:
    """A lane takes five seconds to start, so a test ends only those that it damages."""
    yield
    _end(worker._lanes)


@pytest.fixture
def own_lanes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a test whose lanes are cold at first, or bound as no other test wants them."""
    lanes: dict[tuple[int, int], Lane] = {}
    monkeypatch.setattr(worker, "_lanes", lanes)
    yield
    _end(lanes)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a command on the PATH, before all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def put(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return put


@pytest.fixture
def in_a_slurm_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the site `allocation` can tell from the environment."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "6")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "72(x5),64")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "99999999999")
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
