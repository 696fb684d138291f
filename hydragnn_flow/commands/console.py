"""Output and refusals common to all commands."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from hydragnn_flow.errors import InputError
from hydragnn_flow.signals import ignore_endings, leaving_in_order

# C0 but tab and newline, DEL, C1: what a terminal obeys instead of showing it.
_CONTROLS = dict.fromkeys({*range(32), *range(127, 160)} - {9, 10})


class Terminal(Console):
    """A console that files of strangers cannot command: it leaves out their control characters."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else text.translate(_CONTROLS), style, control)

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError as error:
            error.filename = "/dev/stdout"  # no place that the command is about
            raise


console = Terminal()

# The system refuses these without naming a file: the data of one already open.
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def using(*named: Path | None) -> Iterator[None]:
    """Tell the user, in a sentence, when the system refuses a place the user named.

    Parameters
    ----------
    named
        The place that is written to, then others.
    """
    places = [place.absolute() for place in named if place is not None]
    try:
        yield
    except OSError as error:
        refused = None
        if isinstance(error.filename, (str, bytes)):
            refused = Path(os.fsdecode(error.filename)).absolute()
        elif error.errno in _FULL:
            refused = places[0]
        if refused is None or not any(
            place == refused or place in refused.parents or refused in place.parents
            for place in places
        ):
            raise
        raise InputError(
            f"{refused}: {error.strerror}; make it usable or name another place"
        ) from error


class Stopped(SystemExit):
    """Stopped by a signal, as the user has been told."""


@contextmanager
def interruptible(told: str = "stopped; the same command continues from here") -> Iterator[None]:
    """Say how a command that is stopped by Ctrl-C or another signal can be continued."""
    try:
        with leaving_in_order():
            yield
    except (KeyboardInterrupt, SystemExit) as stop:
        ignore_endings()  # what is said now is the last word
        if isinstance(stop, Stopped):
            raise
        with suppress(SystemExit):  # how rich leaves if nobody reads any more
            say(told)
        raise Stopped(stop.code if isinstance(stop, SystemExit) else 130) from None


def _existing(run_dir: Path) -> Path:
    with using(run_dir):
        if not (run_dir / "run.yaml").is_file():
            raise InputError(
                f"{run_dir}: is not the directory of a run (no run.yaml); check the path"
            )
    return run_dir


def writable(out: Path | None) -> Path | None:
    """Refuse, before anything is computed, a table that could not be written."""
    return refuse_unwritable(out, ".csv", ".parquet")


def refuse_unwritable(out: Path | None, *suffixes: str, option: str = "--out") -> Path | None:
    """Refuse a file that could not be written or ends otherwise than by one of some suffixes."""
    if out is None:
        return out
    if out.suffix not in suffixes:
        raise InputError(f"{option} {out}: must end in {' or '.join(suffixes)}")
    with using(out):
        if out.is_dir():
            raise InputError(f"{option} {out}: is a directory; name a file")
        if not out.parent.is_dir():
            raise InputError(f"{option} {out}: there is no directory {out.parent}; make it first")
        if not os.access(out.parent, os.W_OK | os.X_OK):
            raise InputError(
                f"{option} {out}: nothing may be written in {out.parent}; choose another"
            )
    return out


def _finished(run_dir: Path) -> Path:
    from hydragnn_flow.ensemble.summary import read_summary

    with using(run_dir):
        read_summary(run_dir)
    return run_dir


def existing_data(data: Path) -> Path:
    """Refuse a path of structures where there is nothing."""
    with using(data):
        if not data.exists():
            raise InputError(f"{data}: does not exist; correct the path of the structures")
    return data


RunDir = Annotated[
    Path,
    typer.Argument(
        help="Directory of a run.", metavar="RUN_DIR", show_default=False, callback=_existing
    ),
]
FinishedRun = Annotated[
    Path,
    typer.Argument(
        help="Directory of a finished run, or an exported ensemble.",
        metavar="RUN_DIR",
        show_default=False,
        callback=_finished,
    ),
]

Without = Annotated[
    list[int] | None,
    typer.Option(
        "--without",
        help="Leave this member out, by its number in ensemble.json; may be repeated. Weights of "
        "the others are scaled to add up to 1; intervals stay calibrated for all members.",
        metavar="K",
        show_default=False,
    ),
]


DataSetName = Annotated[
    str | None,
    typer.Option(
        "--data-set",
        help="Data set, of several that the ensemble was trained on, as whose structures these are "
        "predicted: its level of theory. Graphs of a store with those data sets say theirs.",
        metavar="NAME",
        show_default=False,
    ),
]


def say_without(members: list[int] | None) -> None:
    """Say what leaving members out means for the intervals."""
    if members:
        left_out = ", ".join(map(str, sorted(set(members))))
        say(f"left out: {left_out}; intervals are those calibrated with all members")


def say(text: str) -> None:
    """Print a line as it is: no markup, and no breaks in paths that a script may read."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def short(path: Path) -> str:
    """A path relative to the working directory, if it is below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
