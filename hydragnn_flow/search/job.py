"""Job: the argument of the function in `search.objective`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """One call of an objective: a trial, up to a number of epochs."""

    number: int
    """Number of the trial."""
    parameters: Mapping[str, Any]
    """Values of its hyper-parameters, by the names of `search.space`."""
    budget: int
    """Total length of the trial in the unit of `search.epochs`, earlier calls included."""
    directory: Path
    """Folder of the trial, the same in each of its calls. Checkpoints in it let a call continue
    where an earlier call, or a killed one, stopped."""
    seed: int
    """Seed of the trial."""
