"""One driver per run directory, one writer per trial folder.

Workers can outlive what sent them work: a driver that is killed, or a network that loses a node
for a minute, leaves them computing. Three things keep them from harming whoever does the work
again: a token in the run directory, which tells them that a newer driver is in charge; a claim in
the trial's folder, which tells them that the segment was sent again; and a lock on that folder,
which the operating system frees when its holder dies.
"""

from __future__ import annotations

import errno
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
from hydragnn_flow.files import write_text
from hydragnn_flow.training.segment import SegmentSpec

DRIVER_FILE = "driver.json"
LOCK_FILE = "driver.lock"
TRIAL_LOCK = "lease"
TRIAL_CLAIM = "claim"
# Thousands of processes look, on one shared file system. What must not be missed, a write into a
# folder that is no longer its own, is looked up at once.
SECONDS_BETWEEN_LOOKS = 5.0


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
    with (run_directory / LOCK_FILE).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise InputError(
                    f"{run_directory}: is on a file system that cannot lock files "
                    f"({error.strerror}); choose a directory on another with --run-dir"
                ) from None
            holder = _driver(run_directory)
            raise InputError(
                f"{run_directory}: is being worked on by process {holder.get('pid')} on "
                f"{holder.get('host')}; wait for it or stop it first"
            ) from None
        token = uuid.uuid4().hex
        about = {"token": token, "pid": os.getpid(), "host": socket.gethostname()}
        write_text(run_directory / DRIVER_FILE, json.dumps(about))
        yield token


def is_driven(run_directory: Path) -> bool:
    """Whether a driver holds the run's lock, which goes with its process."""
    try:
        with (run_directory / LOCK_FILE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    return False


class Fence:
    """Tells a segment whether its work is still its own.

    Parameters
    ----------
    run_directory, token
        The run, and the token of the driver that sent the segment.
    folder, claim
        The trial's folder, and the claim of the segment.
    """

    def __init__(self, run_directory: Path, token: str, folder: Path, claim: str) -> None:
        self._run_directory, self._token = run_directory, token
        self._folder = folder
        # Only the first rank puts the claim up; until then others find that of an earlier sending.
        self._not_newer = ("", claim, _read(folder / TRIAL_CLAIM))
        self._looked, self._deposed = float("-inf"), False

    @classmethod
    def of(cls, spec: SegmentSpec) -> Fence:
        """The fence of a segment that begins now."""
        return cls(Path(spec.run_directory), spec.token, spec.folder, spec.claim)

    def deposed(self) -> bool:
        """Whether a newer driver is in charge, or the segment was sent again."""
        now = time.monotonic()
        if not self._deposed and now - self._looked >= SECONDS_BETWEEN_LOOKS:
            self._looked = now
            token = _driver(self._run_directory).get("token")
            self._deposed = token not in (None, self._token) or (
                _read(self._folder / TRIAL_CLAIM) not in self._not_newer
            )
        return self._deposed

    def may_write(self) -> bool:
        """Whether no later sending has begun, looked up at once.

        The lock alone does not say: a file system takes it from a node that it takes for dead, and
        the node may come back.
        """
        return _read(self._folder / TRIAL_CLAIM) in self._not_newer


@contextmanager
def sole_writer(folder: Path, claim: str, patience_seconds: float = 60.0) -> Iterator[None]:
    """Be the one process that writes into a trial's folder.

    Parameters
    ----------
    folder
        The trial's folder.
    claim
        Put up before the wait, so that an earlier holder sees it and gives way.
    patience_seconds
        How long to wait for that.

    Raises
    ------
    Busy
        If another process holds the folder for longer.
    """
    write_text(folder / TRIAL_CLAIM, claim)
    with (folder / TRIAL_LOCK).open("a") as lock:
        give_up = time.monotonic() + patience_seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise Busy(
                        f"another process has been writing to {folder} for {patience_seconds:.0f} s"
                    ) from None
                time.sleep(0.1)
        yield


def _driver(run_directory: Path) -> dict[str, str]:
    try:
        values: dict[str, str] = json.loads(_read(run_directory / DRIVER_FILE))
    except ValueError:
        return {}
    return values


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
