"""Splits: HydraGNN's names of training, validation and test, and ours of calibration."""

from __future__ import annotations

from hydragnn_flow.config.sources import Role

TRAIN, VALIDATION, TEST = "trainset", "valset", "testset"
"""HydraGNN's names of its splits."""
CALIBRATION = "calibrationset"
"""Split used only for the weights and error bars of an ensemble; HydraGNN has none."""
SPLIT_OF_ROLE: dict[Role, str] = {
    "train": TRAIN,
    "val": VALIDATION,
    "calibration": CALIBRATION,
    "test": TEST,
}
"""Split for the structures that a source provides for each role."""
