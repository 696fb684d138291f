"""Progress of a campaign in the terminal, or as lines of a log."""

from __future__ import annotations

from collections.abc import Mapping

from rich import progress
from rich.console import Console


class CampaignView:
    """Progress bars of a campaign in a terminal; outside a terminal, a few plain lines.

    Parameters
    ----------
    console
        Console to print to; by default standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._progress = progress.Progress(
            progress.TextColumn("[bold]{task.description:<11}"),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(elapsed_when_finished=False),
            progress.TextColumn("{task.fields[note]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._tasks: dict[str, progress.TaskID] = {}
        self._logged: dict[str, float] = {}

    def __enter__(self) -> CampaignView:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line of text above the bars."""
        self.console.print(text, highlight=False)

    def step(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Update the bar of a stage: ``done`` of ``total`` units, and a note behind the bar.

        Outside a terminal, a line is printed after each tenth of the ``total``.
        """
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total, note=note)
        self._progress.update(self._tasks[stage], completed=done, total=total, note=note)
        fraction, logged = done / total if total else 1.0, self._logged.get(stage, 0.0)
        # A file has no bar to redraw.
        worth_a_line = fraction >= logged + 0.1 or logged < fraction == 1.0
        if not self.console.is_terminal and worth_a_line:
            self._logged[stage] = fraction
            self.say(f"{stage}: {done}/{total} {note}".rstrip())

    def search(self, states: Mapping[str, int], ready: int, best: float | None, total: int) -> None:
        """Update the bar of the search: number of trials by state, and the best value so far.

        Parameters
        ----------
        states
            Number of trials by state; ``running`` includes trials that are ready.
        ready
            Number of running trials whose next segment is ready to be sent.
        best
            Best value of the objective so far, or None.
        total
            Number of trials that the search will have.
        """
        count = dict(states)
        words = [f"{count.pop('running', 0) - ready} running"]
        note = "  ".join([*words, *(f"{n} {state}" for state, n in sorted(count.items()))])
        if best is not None:
            note += f"  best {best:.4g}"
        self.step("search", sum(count.values()), total, note)
