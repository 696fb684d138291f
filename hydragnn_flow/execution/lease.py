"""One driver per run directory, one writer per trial folder.

A driver that is killed leaves workers behind that go on computing. Two things keep them from
harming the next driver's work: a token in the run directory, which tells them that a newer driver
is in charge, and a lock on each trial's folder, which the operating system frees when its holder
dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydragnn_flow.errors import InputError

DRIVER_FILE = "driver.json"
LOCK_FILE = "driver.lock"
TRIAL_LOCK = "lease"
# Reading the token before every step would hammer a shared file system.
SECONDS_BETWEEN_LOOKS = 1.0


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
        If another driver is at work on the directory.
    """
    lock = (run_directory / LOCK_FILE).open("a")
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _read(run_directory)
            raise InputError(
                f"{run_directory}: is being worked on by process {holder.get('pid')} on "
                f"{holder.get('host')}; wait for it or stop it first"
            ) from None
        token = uuid.uuid4().hex
        temporary = run_directory / f".{DRIVER_FILE}.tmp"
        temporary.write_text(
            json.dumps({"token": token, "pid": os.getpid(), "host": socket.gethostname()})
        )
        temporary.replace(run_directory / DRIVER_FILE)
        yield token
    finally:
        lock.close()


class Fence:
    """Tells a segment whether the driver that sent it is still in charge.

    Parameters
    ----------
    run_directory
        The run's directory.
    token
        The token the segment carries.
    """

    def __init__(self, run_directory: Path, token: str) -> None:
        self._run_directory, self._token = run_directory, token
        self._looked, self._deposed = float("-inf"), False

    def deposed(self) -> bool:
        """Whether a newer driver has taken over."""
        now = time.monotonic()
        if not self._deposed and now - self._looked >= SECONDS_BETWEEN_LOOKS:
            self._looked = now
            current = _read(self._run_directory).get("token")
            self._deposed = current is not None and current != self._token
        return self._deposed


@contextmanager
def sole_writer(folder: Path, patience_seconds: float = 60.0) -> Iterator[None]:
    """Be the one process that writes into a trial's folder.

    Raises
    ------
    TimeoutError
        If another process holds the folder for longer than ``patience_seconds``.
    """
    with (folder / TRIAL_LOCK).open("a") as lock:
        give_up = time.monotonic() + patience_seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > give_up:
                    raise TimeoutError(
                        f"{folder}: another process has been writing here for "
                        f"{patience_seconds:.0f} s"
                    ) from None
                time.sleep(0.1)
        yield


def _read(run_directory: Path) -> dict[str, str]:
    try:
        values: dict[str, str] = json.loads((run_directory / DRIVER_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return values
