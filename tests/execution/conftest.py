"""Trainer processes of the test process, warm from one test to the next; a pool on paper."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from block_cases import GCDS, AtOnce, Machine
from trainer_cases import end_all

from hydragnn_flow.execution import Node
from hydragnn_flow.execution.pools.blocks import Blocks
from hydragnn_flow.execution.pools.waits import WAITS
from hydragnn_flow.execution.workers import worker
from hydragnn_flow.execution.workers.trainer_process import Trainers

# Trainer processes find the modules of the tests, whichever test starts them.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])


_MADE: dict[Node, Trainers] = {}


def _trainers_of(node: Node) -> Trainers:
    return _MADE.setdefault(node, Trainers(node))


def _end_all() -> None:
    for trainers in _MADE.values():
        end_all(trainers)
    _MADE.clear()


@pytest.fixture(scope="module", autouse=True)
def _end_trainers(request: pytest.FixtureRequest) -> Iterator[None]:
    """A trainer process takes five seconds to start, so a test ends only those that it damages.

    Files of the group `trainers` leave theirs to each other.
    """
    worker.trainers_of = _trainers_of  # type: ignore[assignment]
    group = request.node.get_closest_marker("xdist_group")
    if group is not None and group.args == ("trainers",):
        yield
        return
    _end_all()
    yield
    _end_all()


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


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def pool(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Blocks:
    for name in ("idle", "without_workers", "each_node", "fruitless"):
        monkeypatch.setattr(WAITS, name, 0.0)
    blocks = Blocks("here", machine, AtOnce(), GCDS, "pending")
    machine.changed = blocks.refresh
    return blocks
