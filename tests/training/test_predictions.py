"""Predictions beside weights: theirs or none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hydragnn_flow.training.predictions import FILES, Predicted, load_predictions, save_predictions

WEIGHTS = {
    "layer.weight": torch.linspace(-1, 1, 6).reshape(2, 3).t(),
    "layer.half": torch.ones(3, dtype=torch.bfloat16),
    "seen": torch.tensor(4),
    "mask": torch.tensor([True, False]),
}
PREDICTIONS: Predicted = {
    "energy": np.linspace(0, 1, 5)[:, None],
    # A target may have any such name.
    "weights": np.ones((5, 1)),
    "file": np.zeros((5, 1)),
    "allow_pickle": np.zeros((5, 1)),
    "forces": np.linspace(-1, 1, 24).reshape(8, 3),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_predictions(tmp_path, "valset", PREDICTIONS, WEIGHTS)
    return tmp_path


def test_they_come_back_as_they_were(folder: Path) -> None:
    contiguous = {name: values.clone().contiguous() for name, values in reversed(WEIGHTS.items())}
    found = load_predictions(folder, "valset", contiguous)
    assert found is not None and found.keys() == PREDICTIONS.keys()
    for name, values in PREDICTIONS.items():
        np.testing.assert_array_equal(found[name], values)
    assert load_predictions(folder, "testset", WEIGHTS) is None
    assert [path.name for path in folder.iterdir()] == [FILES["valset"]]


@pytest.mark.parametrize("name", WEIGHTS)
def test_those_of_other_weights_are_none(folder: Path, name: str) -> None:
    other = WEIGHTS[name].clone()
    last = (-1,) * other.dim()
    other[last] = 0 if other[last] else 1
    assert load_predictions(folder, "valset", WEIGHTS | {name: other}) is None
    renamed = {key.replace(name, "other"): values for key, values in WEIGHTS.items()}
    assert load_predictions(folder, "valset", renamed) is None


def test_a_damaged_file_is_none(folder: Path) -> None:
    path = folder / FILES["valset"]
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        assert load_predictions(folder, "valset", WEIGHTS) is None
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found = load_predictions(folder, "valset", WEIGHTS)
        assert found is None or all(
            np.array_equal(found[name], values) for name, values in PREDICTIONS.items()
        )


def test_what_an_earlier_version_kept_is_none(folder: Path) -> None:
    np.savez(folder / FILES["valset"], energy=PREDICTIONS["energy"])
    assert load_predictions(folder, "valset", WEIGHTS) is None
