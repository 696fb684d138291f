"""A job: what the function of `search.objective` is asked to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """One call of an objective: a trial, up to a budget."""

    number: int
    """Of the trial."""
    parameters: Mapping[str, Any]
    """Its values, by the names of `search.space`."""
    budget: int
    """How far to go, in the unit of `search.epochs`, all earlier calls of the trial included."""
    directory: Path
    """The trial's own folder, the same in each of its calls: the place for checkpoints, with which
    a call goes on where an earlier one, or one that was killed, has stopped."""
    seed: int
    """Seed of the trial."""
