"""The benchmark of the store runs and prints its table; how fast is not for tests to say."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "benchmarks" / "store.py"


def test_the_table_of_two_rows(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    command = [sys.executable, PROGRAM, "--quick", "--only", "memory", "--only", "stream"]
    command += ["--scratch", tmp_path / "scratch", "--json", tmp_path / "figures.json"]
    peers = {"numpy.memmap", "list of Data"}
    if checkout := request.config.getoption("--hydragnn"):
        command += ["--hydragnn", checkout]
        peers.add("HydraGNN, preload=True")
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    table = [line.split("|") for line in run.stdout.splitlines() if line.startswith("|")]
    paths = {"memory, batches of 128", "memory, compact profile", "stream, batches of 128"}
    assert {cells[1].strip() for cells in table[2:]} == paths
    assert {cells[3].strip() for cells in table[2:]} == peers
    assert "leave out --quick" in run.stdout
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures["lines"]) == len(table) - 2
    for line in figures["lines"]:
        assert all(math.isfinite(line[key]) and line[key] > 0 for key in ("value", "ratio"))
    assert list((tmp_path / "scratch").iterdir()) == []
