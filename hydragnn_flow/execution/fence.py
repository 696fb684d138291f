"""Fence: one driver per run directory.

Nodes can outlive the driver that sent them jobs: if it is killed, or the network loses a node for a
minute, they keep computing. They cannot harm a later attempt at the same job, since no two attempts
write the same file. A token in the run directory tells nodes that a newer driver is in charge.
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
# `hydragnn-flow status` holds the lock for an instant, to see whether a driver has it.
SECONDS_TO_BECOME_DRIVER = 1.0


@contextmanager
def sole_driver(run_directory: str | Path) -> Iterator[str]:
    """Context manager: lock a run directory, so that only this driver works on it.

    A driver is the process that controls a campaign.

    Yields
    ------
    str
        Unique token of this driver, which its jobs carry.

    Raises
    ------
    InputError
        If another driver works on the directory, or its file system has no locks.
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
    """Reader of `driver.json`, which names the driver in charge of a run directory.

    A driver is the process that controls a campaign. The file is read again only after a change.

    Parameters
    ----------
    run_directory
        Run directory that contains the file.
    """

    def __init__(self, run_directory: str | Path) -> None:
        self._directory, self._seen = Path(run_directory), (0, 0)
        self._holder: dict[str, str] = {}

    def token(self) -> str | None:
        """Return the unique token of the driver (process) in charge; None if it is not known.

        Raises
        ------
        OSError
            If the disk does not answer.
        """
        try:
            now = (self._directory / DRIVER_FILE).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if (seen := (now.st_ino, now.st_mtime_ns)) != self._seen:
            self._holder, self._seen = _driver(self._directory), seen
        return self._holder.get("token")

    def check(self, token: str) -> None:
        """Raise an error if a newer driver is in charge; call it before writing shared files.

        The lock alone is not enough: a file system takes it from a node that it considers dead, and
        some file systems limit locks to processes of one node.

        Parameters
        ----------
        token
            Token of this driver, from :func:`sole_driver`.

        Raises
        ------
        CampaignStopped
            If a newer driver is in charge.
        OSError
            If the disk does not answer.
        """
        if self.token() not in (None, token):
            holder = self._holder
            raise CampaignStopped(
                f"{self._directory}: process {holder.get('pid')} on {holder.get('host')} has taken "
                "it over; this driver stops and has written nothing since"
            )


def is_driven(run_directory: Path) -> bool:
    """Return whether a driver (process in charge) holds the lock of a run directory.

    A dead driver holds no lock.
    """
    return is_locked(run_directory / LOCK_FILE)


def _driver(run_directory: Path) -> dict[str, str]:
    """Read the driver file of a run directory: token, process id and host by name.

    The result is empty if the file is missing or damaged.
    """
    try:
        with open_regular(run_directory / DRIVER_FILE) as file:
            values = from_json(file.read(1 << 16))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
