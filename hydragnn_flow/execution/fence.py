"""One driver per run directory.

Nodes can outlive what sent them work: a driver that is killed, or a network that loses a node for a
minute, leaves them computing. They cannot harm whoever does the work again, since no two sendings
of a segment write the same file; and a token in the run directory tells them that a newer driver is
in charge.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.files import open_regular, write_text
from hydragnn_flow.locks import Held, Unlockable, is_locked, locked
from hydragnn_flow.plain_files import from_json

DRIVER_FILE = "driver.json"
LOCK_FILE = "driver.lock"
# `hydragnn-flow status` holds a driver's lock for an instant, to see whether a driver has it.
SECONDS_TO_BECOME_DRIVER = 1.0


@contextmanager
def sole_driver(run_directory: str | Path) -> Iterator[str]:
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
    run_directory = Path(run_directory)
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


class DriverFile:
    """The file that says which driver is in charge; read only when it is another than before.

    Parameters
    ----------
    run_directory
        That it is in.
    """

    def __init__(self, run_directory: str | Path) -> None:
        self._directory, self._seen = Path(run_directory), (0, 0)
        self._holder: dict[str, str] = {}

    def token(self) -> str | None:
        """Token of the driver in charge; None if nobody is known to be.

        Raises
        ------
        OSError
            If the disk does not say.
        """
        try:
            now = (self._directory / DRIVER_FILE).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if (seen := (now.st_ino, now.st_mtime_ns)) != self._seen:
            self._holder, self._seen = _driver(self._directory), seen
        return self._holder.get("token")

    def check(self, token: str) -> None:
        """See that no newer driver is in charge; before whatever two drivers must not both write.

        The lock alone does not say: a file system takes it from a node that it takes for dead, and
        some keep out only processes of the same node.

        Raises
        ------
        CampaignStopped
            If there is one.
        OSError
            If the disk does not say.
        """
        if self.token() not in (None, token):
            holder = self._holder
            raise CampaignStopped(
                f"{self._directory}: process {holder.get('pid')} on {holder.get('host')} has taken "
                "it over; this driver stops and has written nothing since"
            )


def is_driven(run_directory: Path) -> bool:
    """Whether a driver holds the run's lock, which goes with its process."""
    return is_locked(run_directory / LOCK_FILE)


def _driver(run_directory: Path) -> dict[str, str]:
    """What it says of itself; empty if there is no file or it is damaged."""
    try:
        with open_regular(run_directory / DRIVER_FILE) as file:
            values = from_json(file.read(1 << 16))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
