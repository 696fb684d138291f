"""Predictions beside weights: theirs or none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hydragnn_flow.training.predictions import (
    FILES,
    Predicted,
    are_kept,
    load_predictions,
    made_by,
    save_predictions,
)

BY = made_by({"best_epoch": 3, "best_val_error": 0.1})
PREDICTIONS: Predicted = {
    "energy": np.linspace(0, 1, 5)[:, None],
    # A target may have any such name.
    "weights": np.ones((5, 1)),
    "file": np.zeros((5, 1)),
    "allow_pickle": np.zeros((5, 1)),
    "forces": np.linspace(-1, 1, 24).reshape(8, 3).astype(np.float32),
}


@dataclass
class Split:
    """As many graphs as have predictions above."""

    name: str = "valset"

    def __len__(self) -> int:
        return 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_predictions(tmp_path, Split(), PREDICTIONS, BY)  # type: ignore[arg-type]
    return tmp_path


def test_they_come_back_as_they_were(folder: Path) -> None:
    found = load_predictions(folder, "valset", BY)
    assert found is not None and found.keys() == PREDICTIONS.keys()
    for name, values in PREDICTIONS.items():
        np.testing.assert_array_equal(found[name], values)
        assert found[name].dtype == np.float64
    assert are_kept(folder, "valset", BY)
    assert load_predictions(folder, "testset", BY) is None
    assert not are_kept(folder, "testset", BY)
    assert [path.name for path in folder.iterdir()] == [FILES["valset"]]


def test_what_atoms_have_is_kept_in_single_precision(folder: Path) -> None:
    """A total energy is not: of a million electronvolts it would keep a tenth of one."""
    large = {"energy": np.full((5, 1), -1e6 - 1e-6), "forces": np.full((8, 3), 1 / 3)}
    save_predictions(folder, Split(), large, BY)  # type: ignore[arg-type]
    found = load_predictions(folder, "valset", BY)
    assert found is not None
    np.testing.assert_array_equal(found["energy"], large["energy"])
    np.testing.assert_array_equal(found["forces"], large["forces"].astype(np.float32))
    assert (folder / FILES["valset"]).stat().st_size < 1500


@pytest.mark.parametrize("other", [{"best_epoch": 4}, {"best_val_error": np.nextafter(0.1, 1)}])
def test_those_of_other_weights_are_none(folder: Path, other: dict[str, float]) -> None:
    by = made_by({"best_epoch": 3, "best_val_error": 0.1} | other)
    assert load_predictions(folder, "valset", by) is None
    assert not are_kept(folder, "valset", by)


def test_a_damaged_file_is_none(folder: Path) -> None:
    path = folder / FILES["valset"]
    whole = path.read_bytes()
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        assert load_predictions(folder, "valset", BY) is None
        assert not are_kept(folder, "valset", BY)
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found = load_predictions(folder, "valset", BY)
        assert found is None or all(
            np.array_equal(found[name], values) for name, values in PREDICTIONS.items()
        )


def test_what_an_earlier_version_kept_is_none(folder: Path) -> None:
    """It knew its weights by a digest."""
    np.savez(
        folder / FILES["valset"],
        **{"digest of the weights": np.array("00"), "energy": PREDICTIONS["energy"]},
    )
    assert load_predictions(folder, "valset", BY) is None
    assert not are_kept(folder, "valset", BY)
