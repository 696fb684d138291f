"""Display of a running campaign to its user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class View(Protocol):
    """Progress display of a campaign; `CampaignView` is that of the terminal."""

    def say(self, text: str) -> None:
        """Show a sentence."""
        ...

    def step(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Show the progress of a stage.

        Parameters
        ----------
        stage
            Name of the stage: `prepare`, `search`, `ensemble`, …
        done, total
            Finished and total number of the stage's units.
        note
            Further text to show with the bar.
        """
        ...

    def search(
        self, states: Mapping[str, int], ready: int, waiting: int, best: float | None, total: int
    ) -> None:
        """Show the number of trials in each state, and the best value so far.

        Parameters
        ----------
        states
            Number of trials in each of Optuna's states.
        ready, waiting
            Number of running trials that have no GCD yet, and of trials that wait to be promoted.
        best
            Best value so far of the first objective.
        total
            Maximum number of trials of the search.
        """
        ...
