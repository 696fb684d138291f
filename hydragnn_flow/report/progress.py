"""Progress of a campaign in the terminal, or as lines of a log."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Mapping, Sequence

from rich import progress
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hydragnn_flow.execution.pools.workers_file import in_words
from hydragnn_flow.log import Running


def running_table(segments: Sequence[Running], total: int, rows: int) -> Table:
    """Return a table of running segments: epoch, losses, and the time until each will end.

    Parameters
    ----------
    segments
        Running segments (jobs of training); those whose last epoch is known come first.
    total
        Number of running segments, of which ``segments`` may be a part.
    rows
        Maximum number of rows of the table.
    """
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("at work", no_wrap=True)
    for name in ("epoch", "training loss", "validation error", "time left"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in heapq.nsmallest(rows, segments, key=lambda one: one.last_epoch is None):
        name, last = f"{one.kind} {one.number}", one.last_epoch
        if last is None:
            table.add_row(name, f"none yet, of {one.to_epoch}")
            continue
        left = in_words(max(0.0, last.end - time.time()))
        losses = f"{last.loss:.4g}", f"{last.error:.4g}"
        table.add_row(name, f"{last.number} of {one.to_epoch}", *losses, left)
    if total > rows:
        table.caption, table.caption_justify = Text(f"and {total - rows:,} more"), "left"
    return table


class _Bars(progress.Progress):
    """Progress bars, with the note of each in a line below them, and then a table."""

    table: Table | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        for task in self.tasks:
            if note := task.fields["note"]:
                yield Text(f"{'':<11} {note}")
        if self.table is not None:
            yield Padding(self.table, (1, 0, 0, 0))


class CampaignView:
    """Progress bars of a campaign in a terminal; outside a terminal, a few plain lines.

    Parameters
    ----------
    console
        Console to print to; by default standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._progress = _Bars(
            progress.TextColumn("[bold]{task.description:<11}"),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(elapsed_when_finished=False),
            console=self.console,
            disable=not self.console.is_terminal,
            refresh_per_second=2,  # a frame costs 4 ms of CPU, on a laptop those of the trainings
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
        """Update the bar of a stage: ``done`` of ``total`` units, and a note below the bars.

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

    def running(self, segments: Iterable[Running], total: int) -> None:
        """Update the table of running segments below the bars; a log has none.

        Parameters
        ----------
        segments
            Running segments (jobs of training), of thousands a sample.
        total
            Number of running segments.
        """
        if self.console.is_terminal:
            self._progress.table = running_table([*segments], total, 5) if total else None
