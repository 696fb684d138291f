"""Numbers and names as people read them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydragnn_flow.search import TrialRecord

SPLITS = {
    "trainset": "training",
    "valset": "validation",
    "calibrationset": "calibration",
    "testset": "test",
}
"""Splits of a store in words."""
SIMULATED_RUN = "Simulated: nothing was trained; times and errors are made up."
"""What is said of a simulated run."""


def number(value: float) -> str:
    """Three significant digits, whole numbers and thousands in full; empty for NaN."""
    if math.isnan(value):
        return ""
    if abs(value) < 1e7 and (value == round(value) or abs(value) >= 1000):
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def cell(value: Any) -> str:
    """A value of a table as text; empty if it is missing."""
    if isinstance(value, float):
        return number(value)
    return "" if value is None or str(value) == "<NA>" else str(value)


def percent(fraction: float) -> str:
    """A fraction as a percentage with one decimal."""
    return f"{fraction * 100:.1f} %"


def signed(value: float) -> str:
    """One decimal and the sign, which a hyphen would be too short for."""
    return f"{value:+.1f}".replace("-", "\N{MINUS SIGN}")


def objective_label(name: str) -> str:
    """An objective of `search.objectives` in words."""
    words = {
        "val_error": "validation error",
        "val_loss": "validation loss",
        "train_loss": "training loss",
        "throughput": "throughput [structures/s]",
        "seconds": "training time [s]",
        "joules": "energy [J]",
    }
    return words.get(name, name)


def told_state(trial: TrialRecord) -> str:
    """A trial's state, whether it waits to be promoted, and whether it broke a constraint."""
    state = "waiting" if trial.waits else trial.state
    return state if trial.feasible else f"{state}, beyond a limit"
