"""Progress of a campaign in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

# In a file there is no bar to redraw; a line appears after each such share.
_LOG_SHARE = 0.1


class CampaignView:
    """A live progress display on a terminal, a few plain lines elsewhere.

    Parameters
    ----------
    console
        Where to print.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._progress = Progress(
            TextColumn("[bold]{task.description:<11}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._logged: dict[str, float] = {}

    def __enter__(self) -> CampaignView:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self.console.print(text, highlight=False)

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
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total, note=note)
        self._progress.update(self._tasks[stage], completed=done, total=total, note=note)
        share, logged = done / total if total else 1.0, self._logged.get(stage, 0.0)
        worth_a_line = share >= logged + _LOG_SHARE or logged < share == 1.0
        if not self.console.is_terminal and worth_a_line:
            self._logged[stage] = share
            self.say(f"{stage}: {done}/{total} {note}".rstrip())

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
            Smallest value of the first objective.
        total
            Trials the search may have.
        """
        count = dict(states)
        notes = [f"{count.pop('running', 0) - ready - waiting} running"]
        notes += [f"{waiting} waiting"] if waiting else []
        note = "  ".join([*notes, *(f"{n} {state}" for state, n in sorted(count.items()))])
        if best is not None:
            note += f"  best {best:.4g}"
        self.step("search", sum(count.values()), total, note)
