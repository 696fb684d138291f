"""Display of a running campaign to its user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class View(Protocol):
    """A progress display; `CampaignView` is that of the terminal."""

    def say(self, text: str) -> None:
        """Show a sentence."""
        ...

    def step(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Show how far a stage is.

        Parameters
        ----------
        stage
            `prepare`, `search`, `ensemble`, …
        done, total
            Of the stage's units.
        note
            What else to say beside the bar.
        """
        ...

    def search(
        self, states: Mapping[str, int], ready: int, waiting: int, best: float | None, total: int
    ) -> None:
        """Show the number of trials in each state, and the best value so far.

        Parameters
        ----------
        states
            Trials in each of Optuna's states.
        ready, waiting
            Those of the running ones that have no GCD yet, and that wait to be promoted.
        best
            Best value of the first objective.
        total
            Trials the search may have.
        """
        ...
