"""`driver.log`: decisions of the driver and their reasons, one per line; display of a campaign.

Every module uses the logger of its own name. While a driver runs, records from level INFO on are
appended to the file, and do not reach the handlers of a user's script. Records from level NOTICE
on, which :func:`tell` makes, are shown to the user too.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

FILE = "driver.log"
NOTICE = 25
"""Level of messages that are also shown to the user; between INFO and WARNING."""
MOST_CHARACTERS = 1000
"""Maximum length of a message, so that a page of a scheduler's output does not fill the file."""
_LARGEST, _KEPT = 64 << 20, 4
"""Size at which the file is renamed to `driver.log.1` [bytes], and number of old files kept."""
_LAST_BYTES = 1 << 16
_logger = logging.getLogger(__name__)
_PACKAGE = "hydragnn_flow"
# Threads that drive a campaign, several in a script with apps, and level and propagation of the
# package's logger before the first.
_lock, _drivers, _before = threading.Lock(), list[int](), list[int]()

logging.addLevelName(NOTICE, "NOTICE")


def tell(logger: logging.Logger, message: str, *values: object) -> None:
    """Log a sentence that is also shown to the user.

    Parameters
    ----------
    logger
        Logger of the calling module.
    message, *values
        Format and its values, as in :meth:`logging.Logger.info`.
    """
    logger.log(NOTICE, message, *values)


@contextmanager
def driver_log(run_directory: Path, show: Callable[[str], None]) -> Iterator[None]:
    """Append the package's log records to `driver.log` during a ``with`` block.

    A file of more than 64 MiB is renamed, and at most four old ones are kept. If the disk is full
    or unreachable, lines are lost and counted, and the block goes on.

    Parameters
    ----------
    run_directory
        Existing run directory.
    show
        Function called with each message that :func:`tell` logs.
    """
    file, shown = _LogFile(run_directory / FILE), _Shown(show)
    package, parsl = logging.getLogger(_PACKAGE), logging.getLogger("parsl")
    me = threading.get_ident()

    def is_ours(record: logging.LogRecord) -> bool:
        return record.thread == me or record.thread not in _drivers

    file.addFilter(is_ours)
    shown.addFilter(is_ours)
    with _lock:
        if not _drivers:
            _before[:] = [package.level, package.propagate]
        _drivers.append(me)
        package.setLevel(logging.INFO)
        package.propagate = False
    package.addHandler(file)
    package.addHandler(shown)
    parsl.addHandler(file)  # its errors; pools/pool.py filters the rest
    here = f"process {os.getpid()} on {socket.gethostname()}"
    _logger.info("driver started: %s", here)
    try:
        yield
    except BaseException as error:
        _logger.info("driver stopped: %s: %s: %s", here, type(error).__name__, error)
        raise
    else:
        _logger.info("driver ended: %s", here)
    finally:
        parsl.removeHandler(file)
        package.removeHandler(shown)
        package.removeHandler(file)
        with _lock:
            _drivers.remove(me)
            if not _drivers:
                package.setLevel(_before[0])
                package.propagate = bool(_before[1])
        file.close()


def last_lines(run_directory: Path, lines: int) -> list[str]:
    """Return the last lines of `driver.log`; empty if no driver has written any.

    Parameters
    ----------
    run_directory
        Run directory of the campaign.
    lines
        Maximum number of lines.
    """
    path = run_directory / FILE
    found = _end_of(path)
    if len(found) < lines:  # a new file has just started
        found = [*_end_of(aside(path, 1)), *found]
    return found[-lines:]


def aside(path: Path, number: int) -> Path:
    """Return the path of an old log file, such as `driver.log.1`; the newest has the number 1."""
    return path.with_name(f"{path.name}.{number}")


def _end_of(path: Path) -> list[str]:
    if not path.is_file():
        return []
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LAST_BYTES))
        return file.read().decode(errors="replace").splitlines()


class _Line(logging.Formatter):
    """Formatter of log records: time with its UTC offset, level, module and message in one line."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S%z", time.localtime(record.created))
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({type(record.exc_info[1]).__name__}: {record.exc_info[1]})"
        text = " ".join(text.split())
        if len(text) > MOST_CHARACTERS:
            text = f"{text[:MOST_CHARACTERS]} …"
        return f"{when} {record.levelname:<7} {record.name.removeprefix(_PACKAGE + '.')}: {text}"


class _LogFile(logging.Handler):
    """Log handler that appends each record by one write, after completing a torn last line."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(_Line())
        self._path = path
        self._file: FileIO | None = None
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as a line; if the disk does not take it, count it as lost."""
        try:
            line = self.format(record)
        except Exception:  # the values do not fit the format: `logging` reports it
            self.handleError(record)
            return
        if self._lost:
            line = f"({self._lost} lines are missing here: the disk did not take them)\n{line}"
        try:
            self._write(line)
        except OSError:
            self._lost += 1
            self._close_file()
        else:
            self._lost = 0

    def _write(self, line: str) -> None:
        content = f"{line}\n".encode(errors="backslashreplace")
        if self._file is None:  # at first, and after an error of the disk
            self._file = self._path.open("ab+", buffering=0)
            if self._file.tell():
                self._file.seek(-1, os.SEEK_END)
                if self._file.read(1) != b"\n":  # a driver was killed, or the disk became full
                    content = b"\n" + content
        if self._file.write(content) < len(content):
            raise OSError("half a line was written")
        if self._file.tell() > _LARGEST:
            self._put_aside()

    def _put_aside(self) -> None:
        """Rename the log file and its older ones by one number; the oldest is overwritten."""
        self._close_file()
        names = [self._path, *(aside(self._path, number) for number in range(1, _KEPT + 1))]
        for newer, older in reversed([*pairwise(names)]):
            if newer.exists():
                newer.replace(older)

    def _close_file(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def close(self) -> None:
        self._close_file()
        super().close()


class _Shown(logging.Handler):
    """Log handler that passes records from level NOTICE on to the progress display."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(NOTICE)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._show(record.getMessage())
        except Exception:
            self.handleError(record)


class LastEpoch(NamedTuple):
    """Last epoch that a running segment (job of training) has ended, and the segment's end."""

    number: int
    """Number of epochs trained, earlier segments included."""
    loss: float
    """Mean training loss of the epoch."""
    error: float
    """Validation error after the epoch: the criterion."""
    end: float
    """Unix time at which the segment will probably end [s], by the clock of its node."""


@dataclass(frozen=True)
class Running:
    """Running segment (job of training) of a trial or member, for displays."""

    kind: str
    number: int
    to_epoch: int
    """Number of epochs trained when the segment ends, earlier segments included."""
    last_epoch: LastEpoch | None = None
    """Last epoch that the segment has ended, if that is known."""


class View(Protocol):
    """Interface of a campaign's progress display; `CampaignView` implements it for terminals."""

    def say(self, text: str) -> None:
        """Show a sentence to the user of a campaign."""
        ...

    def step(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Show the progress of one stage of a campaign, such as its search or ensemble.

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

    def search(self, states: Mapping[str, int], ready: int, best: float | None, total: int) -> None:
        """Show the progress of a search: number of trials in each state, and best value so far.

        Parameters
        ----------
        states
            Number of trials in each of Optuna's states.
        ready
            Number of running trials that have no GCD yet.
        best
            Best value so far of the first objective.
        total
            Maximum number of trials of the search.
        """
        ...

    def running(self, segments: Iterable[Running], total: int) -> None:
        """Show running segments (jobs of training): their last epoch, and the time left.

        Parameters
        ----------
        segments
            Running segments; of thousands a sample.
        total
            Number of running segments.
        """
        ...
