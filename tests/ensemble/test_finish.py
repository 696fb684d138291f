"""The end of a campaign: calibrated on validation data, tested once, told as it was."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ensemble_cases import untrained_ensemble

from hydragnn_flow.data import GraphSplit, GraphStore
from hydragnn_flow.ensemble import ensemble as module


def test_each_member_predicts_each_split_once(
    alloy_store: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Counter[str] = Counter()
    split_batches = module.split_batches

    def counted(split: GraphSplit, size: int) -> Any:
        read[split.name] += 1
        return split_batches(split, size)

    monkeypatch.setattr(module, "split_batches", counted)
    untrained_ensemble(tmp_path, alloy_store, members=2)
    assert read == {"valset": 2, "testset": 2}


def test_errors_are_those_of_the_tables(alloy_store: GraphStore, tmp_path: Path) -> None:
    untrained_ensemble(tmp_path, alloy_store)
    summary = json.loads((tmp_path / "ensemble" / "ensemble.json").read_text())
    assert summary["best_member"] == 1
    assert [member["reason"] for member in summary["members"]] == ["", "diverged"]
    table = pd.read_parquet(tmp_path / "predictions" / "test.parquet")
    found = summary["test"]["energy"]
    for column, who in (("energy_mean", "ensemble"), ("energy_member_1", "best_member")):
        error = (table[column] - table["energy"]).abs()
        assert found[f"mae_{who}"] == pytest.approx(error.mean())
        assert found[f"mae_per_atom_{who}"] == pytest.approx(
            np.mean(error / alloy_store["testset"].n_atoms)
        )
    inside = table["energy"].between(table["energy_lo"], table["energy_hi"])
    assert found["coverage"] == pytest.approx(inside.mean())
