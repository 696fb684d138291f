"""The benchmarks of execution run; how fast they are is not for tests to say."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import psutil
import pytest
from execution_race.start import Stages, table
from results import Number
from test_benchmarks import run_apart


def test_blocks_are_shown_by_medians_beside_their_spread() -> None:
    fast, slow, slower = (Stages(*[seconds] * len(fields(Stages))) for seconds in (1.0, 2.0, 4.0))
    shown = table({"local": [slower, fast, slow], "a private Slurm": [fast]})
    assert list(shown.columns) == ["", "local", "a private Slurm"]
    assert shown.rows[0] == ["all of it", Number(10.0, "", 5.0, 20.0), Number(5.0, "", 5.0, 5.0)]
    assert len(shown.rows) == 1 + len(fields(Stages))
    assert all(row[1] == Number(2.0, "", 1.0, 4.0) for row in shown.rows[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [
        pytest.param("campaign", marks=pytest.mark.xdist_group("scale")),  # begins with the first
        "interchange",
        "days",  # `files` takes minutes: strace follows every process of four campaigns
    ],
)
def test_scale(row: str, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    arguments: list[str | Path] = ["--quick", "--only", row, "--scratch", scratch]
    printed, _, figures = run_apart("scale.py", *arguments, "--json", tmp_path / "figures.json")
    lines = figures["details"]["lines"]
    assert {line["row"] for line in lines} == {row}
    assert all(math.isfinite(line["value"]) for line in lines)
    assert "Too little was measured" in printed
    twice = [line["value"] for line in lines if "done twice" in line["what"]]
    assert twice == ([0, 0] if row == "campaign" else [])
    assert not scratch.exists() or list(scratch.iterdir()) == []
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in _command(p)]


def _command(process: psutil.Process) -> str:
    return " ".join(process.info["cmdline"] or ())
