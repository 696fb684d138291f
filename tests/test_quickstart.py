"""Is what `make quickstart` has made any good?

    make quickstart && .venv/bin/python -m pytest -m quickstart tests/test_quickstart.py

The limits leave room. Errors are usually 4 to 6 meV/atom and 0.035 to 0.045 eV/Å, and intervals
calibrated on 48 structures hold 90 % of 48 others with a standard deviation of six points.
The data are the same each time, but which trials are pruned depends on who is first at a rung.
"""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hydragnn_flow import Ensemble, GraphStore

pytestmark = pytest.mark.quickstart

REPOSITORY = Path(__file__).parents[1]
RUN = REPOSITORY / "runs" / "quickstart"


@pytest.fixture(scope="module")
def summary():
    file = RUN / "ensemble" / "ensemble.json"
    assert file.is_file(), f"there is no {file}; run `make quickstart` to its end first"
    read: dict[str, Any] = json.loads(file.read_text())
    return read


def test_errors_are_small_and_far_below_those_of_the_mean_of_the_training_data(summary):
    found = summary["errors"]
    energy, force = (found[name]["mae"]["ensemble"] for name in ("energy per atom", "forces"))
    assert [of["unit"] for of in found.values()] == ["meV/atom", "eV/Å"]
    with GraphStore.open(RUN / "store.gs", mode="random") as store:
        train, test = store["trainset"], store["testset"]
        mean = (train.target("energy").ravel() / train.n_atoms).mean()
        errors = abs(test.target("energy").ravel() / test.n_atoms - mean)
        forces = abs(test.target("forces")).mean()
    assert energy["value"] / 1000 < min(0.012, errors.mean() / 10)
    assert force["value"] < min(0.1, forces / 3)


def test_intervals_hold_what_they_promise(summary):
    assert summary["coverage"] == 0.9
    for target in summary["errors"].values():
        assert 0.7 <= target["coverage"] <= 1


def test_every_file_and_column_that_the_readme_names_is_there():
    rows = list(_files_of_the_readme())
    assert len(rows) >= 4
    for names, columns in rows:
        for name in names:
            path = RUN / name
            assert path.exists(), name
            if path.suffix in (".csv", ".parquet"):
                read = pd.read_csv if path.suffix == ".csv" else pd.read_parquet
                assert set(columns) <= set(read(path))


def test_the_ensemble_loads_and_predicts_what_the_tables_say():
    ensemble = Ensemble.load(RUN)
    with GraphStore.open(RUN / "store.gs", mode="random") as store:
        again = ensemble.predict(store, split="testset").graphs
    saved = pd.read_parquet(RUN / "predictions" / "test.parquet")
    pd.testing.assert_series_equal(again["energy_mean"], saved["energy_mean"], rtol=1e-5)


def _files_of_the_readme():
    """Files and their columns, row by row of the table under "What comes out"."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    section = text.partition("## What comes out")[2].partition("\n## ")[0]
    for cell, content in re.findall(r"^\| (`[^|]+?) \| ([^|]+) \|$", section, flags=re.MULTILINE):
        names: list[str] = []
        for name in re.findall(r"`([^`]+)`", cell):
            # ".parquet" stands for the file before it with another ending.
            names.append(str(Path(names[-1]).with_suffix(name)) if name[0] == "." else name)
        yield names, re.findall(r"`(\w+)`", content)
