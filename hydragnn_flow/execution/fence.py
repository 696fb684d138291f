"""One driver per run directory, one writer per trial folder.

Workers can outlive what sent them work: a driver that is killed, or a network that loses a node
for a minute, leaves them computing. Three things keep them from harming whoever does the work
again: a token in the run directory, which tells them that a newer driver is in charge; the attempt
in the trial's folder, which tells them that the segment was sent again; and a lock on that folder,
which the operating system frees when its holder dies.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.files import write_text
from hydragnn_flow.locks import Held, Unlockable, is_locked, locked
from hydragnn_flow.segment import SegmentSpec

DRIVER_FILE = "driver.json"
LOCK_FILE = "driver.lock"
WRITER_LOCK = "writer.lock"
ATTEMPT_FILE = "attempt"
# Thousands of processes check, on one shared file system. Before a write into a folder that may no
# longer be its own, a process checks at once.
SECONDS_BETWEEN_CHECKS = 5.0
# `hydragnn-flow status` holds a driver's lock for an instant, to see whether a driver has it.
SECONDS_TO_BECOME_DRIVER = 1.0


class Busy(RuntimeError):
    """Another process writes into the trial's folder and does not give way."""


@contextmanager
def sole_driver(run_directory: Path) -> Iterator[str]:
    """Be the one driver of a run directory for the length of a ``with`` block.

    Yields
    ------
    str
        The token that segments of this driver carry.

    Raises
    ------
    InputError
        If another driver is at work on the directory, or it is on a file system without locks.
    """
    try:
        with locked(run_directory / LOCK_FILE, SECONDS_TO_BECOME_DRIVER):
            token = uuid.uuid4().hex
            about = {"token": token, "pid": os.getpid(), "host": socket.gethostname()}
            write_text(run_directory / DRIVER_FILE, json.dumps(about))
            yield token
    except Held:
        holder = _driver(run_directory)
        raise InputError(
            f"{run_directory}: is being worked on by process {holder.get('pid')} on "
            f"{holder.get('host')}; wait for it or stop it first"
        ) from None
    except Unlockable as error:
        raise InputError(
            f"{run_directory}: is on a file system that cannot lock files ({error.strerror}); "
            "choose a directory on another"
        ) from None


def check_driver(run_directory: Path, token: str) -> None:
    """See that no newer driver is in charge; asked before whatever two drivers must not both write.

    The lock alone does not say: a file system takes it from a node that it takes for dead, and
    some keep out only processes of the same node.

    Raises
    ------
    CampaignStopped
        If there is one.
    OSError
        If the disk does not say.
    """
    holder = _driver(run_directory)
    if holder.get("token") not in (None, token):
        raise CampaignStopped(
            f"{run_directory}: process {holder.get('pid')} on {holder.get('host')} has taken it "
            "over; this driver stops and has written nothing since"
        )


def is_driven(run_directory: Path) -> bool:
    """Whether a driver holds the run's lock, which goes with its process."""
    return is_locked(run_directory / LOCK_FILE)


class Fence:
    """Tells a segment whether its work is still its own.

    Parameters
    ----------
    spec
        The segment, which begins now.
    """

    def __init__(self, spec: SegmentSpec) -> None:
        self._spec = spec
        # Only the first rank writes the attempt; until then others find an earlier one.
        self._not_newer = {"", spec.attempt}
        with suppress(OSError):
            self._not_newer.add(_read(spec.folder / ATTEMPT_FILE))
        self._checked, self._deposed = float("-inf"), False

    def deposed(self) -> bool:
        """Whether a newer driver is in charge, or the segment was sent again."""
        now = time.monotonic()
        if not self._deposed and now - self._checked >= SECONDS_BETWEEN_CHECKS:
            self._checked = now
            with suppress(OSError):  # a disk that does not answer says nothing
                token = _driver(Path(self._spec.run_directory)).get("token")
                self._deposed = token not in (None, self._spec.token) or not self.may_write()
        return self._deposed

    def may_write(self) -> bool:
        """Whether no later sending has begun, asked at once.

        The lock alone does not say: a file system takes it from a node that it takes for dead, and
        the node may come back.

        Raises
        ------
        OSError
            If the disk does not say.
        """
        return _read(self._spec.folder / ATTEMPT_FILE) in self._not_newer


@contextmanager
def sole_writer(folder: Path, attempt: str, patience_seconds: float = 60.0) -> Iterator[None]:
    """Be the one process that writes into a trial's folder.

    Parameters
    ----------
    folder
        The trial's folder.
    attempt
        Put up before the wait, so that an earlier holder sees it and gives way.
    patience_seconds
        How long to wait for that.

    Raises
    ------
    Busy
        If another process holds the folder for longer.
    """
    write_text(folder / ATTEMPT_FILE, attempt)
    try:
        with locked(folder / WRITER_LOCK, patience_seconds):
            yield
    except Held:
        raise Busy(
            f"another process has been writing to {folder} for {patience_seconds:.0f} s"
        ) from None


def _driver(run_directory: Path) -> dict[str, str]:
    try:
        values: dict[str, str] = json.loads(_read(run_directory / DRIVER_FILE))
    except ValueError:
        return {}
    return values


def _read(path: Path) -> str:
    """A file's text; empty if there is no file or it is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return ""
