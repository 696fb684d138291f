"""Predictions in a checkpoint come back as they were."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hydragnn_flow.training.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from hydragnn_flow.training.predict import KEY, Predicted, kept, predictions_in

PREDICTIONS: Predicted = {
    "energy": np.linspace(-1e6, 1, 5)[:, None],  # in float32 it would keep a tenth
    "weights": np.ones((5, 1)),
    "forces": np.linspace(-1, 1, 24).reshape(8, 3),
}


@dataclass
class Split:
    """As many graphs as have predictions above."""

    name: str = "valset"

    def __len__(self):
        return 5


def test_they_come_back_as_they_were_what_atoms_have_in_single_precision(tmp_path):
    split: Any = Split()
    save_checkpoint(tmp_path / "c.pt", {KEY: {"valset": kept(PREDICTIONS, split)}})
    state = load_checkpoint(tmp_path / "c.pt")
    found = predictions_in(state, "valset")
    assert found is not None and found.keys() == PREDICTIONS.keys()
    for name, values in PREDICTIONS.items():
        expected = values.astype(np.float32) if name == "forces" else values
        np.testing.assert_array_equal(found[name], expected)
        assert found[name].dtype == np.float64
    assert predictions_in(state, "testset") is None
    assert predictions_in({}, "valset") is None
