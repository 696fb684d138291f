"""Output and error handling common to all commands."""

from __future__ import annotations

import errno
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from hydragnn_flow.errors import InputError
from hydragnn_flow.processes import ignore_endings, leaving_in_order

# C0 except tab and newline, DEL, and C1: control characters that a terminal would obey.
_CONTROLS = dict.fromkeys({*range(32), *range(127, 160)} - {9, 10})


class Terminal(Console):
    """Terminal output that drops control characters, so that texts in files cannot control it."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else text.translate(_CONTROLS), style, control)

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError as error:
            error.filename = "/dev/stdout"  # none of the paths of the command
            raise


console = Terminal()

# Errors that the system raises without the name of a file: the data of one already open.
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def using(*named: Path | None) -> Iterator[None]:
    """Context manager: convert an OSError at a path that the user named into an InputError.

    Parameters
    ----------
    named
        Path that the command writes, then its other paths. The error of a full disk that names no
        file is ascribed to the first path.
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


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator of a command: turn each field of its dataclass parameters into an option."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters = []
    given = inspect.signature(command).parameters.values()
    for parameter in sorted(given, key=lambda parameter: parameter.name in groups):  # own first
        if (kind := groups.get(parameter.name)) is None:
            of_kind = {parameter.name: (hints[parameter.name], parameter.default)}
        else:
            types = get_type_hints(kind, include_extras=True)
            of_kind = {field.name: (types[field.name], field.default) for field in fields(kind)}
        parameters += [
            inspect.Parameter(name, parameter.KEYWORD_ONLY, annotation=hint, default=default)
            for name, (hint, default) in of_kind.items()
        ]

    @wraps(command)
    def flat(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    # typer reads this attribute (PEP 362), which the type of functions lacks.
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return flat


class Stopped(SystemExit):
    """Exit of a command that a signal stopped, after its last message has been printed."""


@contextmanager
def interruptible(told: str = "stopped; the same command continues from here") -> Iterator[None]:
    """Context manager: print ``told`` and exit if Ctrl-C or another signal stops the command."""
    try:
        with leaving_in_order():
            yield
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code in (None, 0, 1):  # completion in a shell
            raise
        ignore_endings()  # the next message is the last
        if isinstance(stop, Stopped):
            raise
        with suppress(SystemExit):  # raised by rich if nobody reads the output any more
            say(told)
        raise Stopped(stop.code if isinstance(stop, SystemExit) else 130) from None


def show(rows: Sequence[Mapping[str, Any]], title: str = "") -> None:
    """Print a table to the terminal, with the keys of ``rows`` as names of the columns.

    Parameters
    ----------
    rows
        Cells of each row by the name of the column; a missing cell stays empty.
    title
        Line above the table.
    """
    import pandas as pd

    from hydragnn_flow.report.tables import terminal

    if title:
        say(title)
    console.print(terminal(pd.DataFrame(list(rows)).astype(object).fillna("")))


def _existing(run_dir: Path) -> Path:
    with using(run_dir):
        if not (run_dir / "run.yaml").is_file():
            raise InputError(
                f"{run_dir}: is not the directory of a run (no run.yaml); check the path"
            )
    return run_dir


def writable(
    *suffixes: str, option: str = "--out"
) -> Callable[[Path | list[Path] | None], Path | list[Path] | None]:
    """Return a check of the files that an option names: it refuses files that cannot be written.

    Parameters
    ----------
    suffixes
        Endings that a file may have.
    option
        Name of the option for messages.
    """

    def check(given: Path | list[Path] | None) -> Path | list[Path] | None:
        for out in given if isinstance(given, list) else [given] if given else []:
            _check_writable(out, suffixes, option)
        return given

    return check


def _check_writable(out: Path, suffixes: Sequence[str], option: str) -> None:
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


def _finished(run_dir: Path) -> Path:
    from hydragnn_flow.ensemble.summary import read_summary

    with using(run_dir):
        read_summary(run_dir)
    return run_dir


def existing_data(data: Path) -> Path:
    """Return the given path of structures; raise InputError if nothing exists there."""
    with using(data):
        if not data.exists():
            raise InputError(f"{data}: does not exist; correct the path of the structures")
    return data


Config = Annotated[Path, typer.Argument(help="Run configuration (YAML).", metavar="CONFIG")]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="Directory of the data files; overrides data.path in CONFIG."),
]
RunDir = Annotated[
    Path,
    typer.Argument(help="Directory of a run.", metavar="RUN_DIR", callback=_existing),
]
FinishedRun = Annotated[
    Path,
    typer.Argument(
        help="Directory of a finished run, or an exported ensemble.",
        metavar="RUN_DIR",
        callback=_finished,
    ),
]

DataSetName = Annotated[
    str | None,
    typer.Option(
        "--data-set",
        help="Data set, of several that the ensemble was trained on, as whose structures these are "
        "predicted: its level of theory. Graphs of a store with those data sets say theirs.",
        metavar="NAME",
    ),
]


def say(text: str) -> None:
    """Print a line unchanged: without markup, and without line breaks, which would split paths."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def short(path: Path) -> str:
    """Return a path as text, relative to the working directory if it lies there."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
