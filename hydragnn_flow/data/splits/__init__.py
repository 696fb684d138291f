"""Division of structures into training, validation, calibration and test."""

from hydragnn_flow.config.sources import Role

TRAIN, VALIDATION, TEST = "trainset", "valset", "testset"
"""The names HydraGNN gives its splits."""
CALIBRATION = "calibrationset"
"""Split that serves nothing but weights and error bars of an ensemble; HydraGNN has none."""
SPLIT_OF_ROLE: dict[Role, str] = {
    "train": TRAIN,
    "val": VALIDATION,
    "calibration": CALIBRATION,
    "test": TEST,
}
"""Split of the structures that a source gives for each purpose."""
