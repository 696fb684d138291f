"""The benchmark of execution runs on real workers; how fast they are is not for tests to say."""

from __future__ import annotations

import math
import time
from pathlib import Path

import psutil
import pytest
from test_benchmarks import run_apart


@pytest.mark.slow
def test_execution(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    arguments: list[str | Path] = [
        "--quick",
        "--scratch",
        scratch,
        "--json",
        tmp_path / "figures.json",
    ]
    began = time.monotonic()
    printed, table, figures = run_apart("execution.py", *arguments)
    took = time.monotonic() - began
    lines = figures["details"]
    assert len(lines) == len(table)
    assert {line["row"] for line in lines} == {"warm", "throughput", "start"}
    assert all(math.isfinite(line["value"]) for line in lines)
    assert "Too little was measured" in printed
    # A process that is there need not be started.
    ratios = [line["ratio"] for line in lines if line["row"] == "warm" and line["ratio"]]
    assert len(ratios) == 4 and min(ratios) > 1
    # Differences of times taken in several processes: each comes after the one before.
    total, *parts = [line["value"] for line in lines if line["row"] == "start"]
    assert min(parts) > 0 and total < took
    assert list(scratch.iterdir()) == []
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in _command(p)]


def _command(process: psutil.Process) -> str:
    return " ".join(process.info["cmdline"] or ())
