"""A campaign small enough for tests: every stage, seconds each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from segment_cases import NETWORK

TRIALS = 6
MEMBERS = 2

CONFIG: dict[str, Any] = {
    "name": "small",
    "seed": 3,
    "data": {
        "source": {"format": "emt_alloys", "structures": 60, "atoms": [8, 16]},
        "split": {"val": 0.2, "test": 0.2},
    },
    "network": NETWORK,
    "search": {
        "trials": TRIALS,
        "min_epochs": 2,
        "reduction_factor": 3,
        "space": {
            "Architecture.mpnn_type": {"choices": ["SchNet", "EGNN", "PNA"]},
            "Architecture.hidden_dim": {"int": [4, 8]},
            "Training.Optimizer.learning_rate": {"float": [1e-3, 1e-2], "log": True},
            "Training.batch_size": {"choices": [2, 4]},
        },
    },
    "ensemble": {"size": MEMBERS, "epochs": 8, "coverage": 0.9},
}


def write_config(folder: Path, **changes: Any) -> Path:
    """CONFIG with top-level keys replaced, as a file."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, **changes}))
    return path
