"""Names of splits: HydraGNN's for training, validation and test, this package's for calibration."""

from __future__ import annotations

from hydragnn_flow.config.sources import Role

TRAIN, VALIDATION, TEST = "trainset", "valset", "testset"
"""HydraGNN's names of the training, validation and test split."""
CALIBRATION = "calibrationset"
"""Split used only for the weights and error bars of an ensemble; HydraGNN has none."""
SPLIT_OF_ROLE: dict[Role, str] = {
    "train": TRAIN,
    "val": VALIDATION,
    "calibration": CALIBRATION,
    "test": TEST,
}
"""Name of the split by role of its structures in a source."""
