"""The benchmarks run and print their tables; how fast and how accurate is not for tests to say."""

from __future__ import annotations

import json
import math
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver_cases import PATIENCE
from ensemble_cases import untrained_ensemble
from ensemble_quality.outcome import area_of_perfect
from model_accuracy.outcome import Outcome
from model_accuracy.trainings import Trainings
from parallel_checks import scaling
from scaling_cases import study
from search_race.quality import QUICK_SETTING

from hydragnn_flow.data import GraphStore
from hydragnn_flow.ensemble.measures import COVERAGES, coverage_needed, miscalibration_area
from hydragnn_flow.training.profile_result import Parts

PROGRAMS = Path(__file__).resolve().parents[1] / "benchmarks"


def run(program: str, *arguments: str | Path) -> tuple[str, list[list[str]], Any]:
    """What a benchmark prints, the cells of its tables without headings, and its JSON.

    It runs in this process, as Python would run it in one of its own.
    """
    printed = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(sys, "argv", [program, *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(PROGRAMS / program), run_name="__main__")
    assert end.value.code == 0
    return _read(printed.getvalue(), Path(arguments[-1]))


def run_apart(program: str, *arguments: str | Path) -> tuple[str, list[list[str]], Any]:
    """The same in a process of its own."""
    command = [sys.executable, PROGRAMS / program, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert process.returncode == 0, process.stderr
    return _read(process.stdout, Path(arguments[-1]))


def _read(printed: str, figures: Path) -> tuple[str, list[list[str]], Any]:
    lines = [line for line in printed.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    return printed, cells[2:], json.loads(figures.read_text(encoding="utf-8"))


def test_trainings_that_end_at_once_are_all_kept(tmp_path: Path) -> None:
    seeds, kept = range(64), Trainings(tmp_path / "trainings.jsonl", "code")

    def train(seed: int) -> Outcome:
        return kept.get({"seed": seed}, lambda: Outcome(1.0, seed, seed, (float(seed),)))

    with ThreadPoolExecutor(len(seeds)) as threads:
        outcomes = list(threads.map(train, seeds))

    def again() -> Outcome:
        raise AssertionError("has been trained")

    assert [kept.get({"seed": seed}, again) for seed in seeds] == outcomes
    with pytest.raises(AssertionError, match="has been trained"):
        Trainings(tmp_path / "trainings.jsonl", "other code").get({"seed": 0}, again)


def test_forces(tmp_path: Path) -> None:
    arguments = ["--quick", "--only", "SchNet", "--json", tmp_path / "figures.json"]
    _, rows, figures = run("forces.py", *arguments)
    precision, cut = (table["rows"][0] for table in figures["tables"])
    single, half = (cell["value"] for cell in precision[1:])
    assert single < 1e-4 < half < 0.1
    whole, jumps = (cell["value"] for cell in cut[1:3])
    assert whole < 0.01 < 1 < jumps  # meV
    assert any("leaves out 5" in remark for remark in figures["remarks"])
    assert [cells[1] for cells in rows if cells[1] == "SchNet"] == ["SchNet"] * 2


def test_applicability(alloy_store: GraphStore, tmp_path: Path) -> None:
    directory = untrained_ensemble(tmp_path / "run", alloy_store)
    (directory / "store.gs").symlink_to(alloy_store.path)
    printed, table, figures = run(
        "applicability.py", directory, "--quick", "--json", tmp_path / "figures.json"
    )
    assert table[0][1] == "run" and "Too little was measured" in printed
    (found,) = figures["details"]
    assert found["test"] == len(alloy_store["testset"]) >= found["test_flagged"]
    assert found["outside"] == 15
    assert 0.6 * found["outside"] <= found["flagged"] <= found["held"]
    assert sum(found["missed"].values()) == found["outside"] - found["held"]
    assert not {"new element", "cluster of 1"} & set(found["missed"])


@pytest.mark.parametrize("structures", [25, 48])
def test_chance_limits_the_miscalibration_area(structures: int) -> None:
    """Of errors that are drawn from their error bars, one sample in 20 is beyond."""
    rng = np.random.default_rng(1)
    areas = []
    for _ in range(400):
        errors = rng.normal(0, 1, structures)
        held = (coverage_needed(errors, np.ones(structures))[:, None] <= COVERAGES).mean(axis=0)
        areas.append(float(miscalibration_area(held)))
    beyond = np.mean(np.array(areas) > area_of_perfect(structures))
    assert 0.02 < beyond < 0.09


def test_parts_that_do_not_add_up_miss_the_target() -> None:
    """The study itself is run by tests/slurm."""
    found = study({2: 0.8}, {2: 0.9})
    lines = list(scaling.lines_of(found))
    assert [line.met for line in lines] == [True] * 6
    assert [line.value for line in lines] == pytest.approx([2.0] * 6)
    point = found.of("strong")[1]
    assert point.profile is not None
    off = replace(point.profile, parts=Parts(0.01, 0.04))
    again = list(scaling.lines_of(found.with_point(replace(point, profile=off))))
    assert [line.met for line in again] == [True] * 4 + [False, True]
    assert len(scaling.table_of(found).rows) == 4


def test_search_quality(tmp_path: Path) -> None:
    arguments = ["--quick", "--seeds", "0", "--results", tmp_path / "searches.jsonl"]
    printed, _, figures = run("search_quality.py", *arguments, "--json", tmp_path / "figures.json")
    standings = figures["details"]["standings"]
    assert {standing["engine"] for standing in standings} == set(QUICK_SETTING.engines)
    for standing in standings:
        assert all(map(math.isfinite, standing["end"].values()))
    assert figures["quick"] and "Too little was measured" in printed
    # What has been searched is not searched again.
    before = (tmp_path / "searches.jsonl").read_bytes()
    run("search_quality.py", *arguments, "--json", tmp_path / "again.json")
    assert (tmp_path / "searches.jsonl").read_bytes() == before
