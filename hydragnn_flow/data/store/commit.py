"""Directories under construction: built beside their final name, committed by one rename."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import time
from pathlib import Path

import psutil

from hydragnn_flow.data.store.integrity import fsync_path, fsync_tree
from hydragnn_flow.errors import StoreError

# A writer on another machine cannot be asked whether it lives, but none takes a day.
_ABANDONED_AFTER = 24 * 3600.0


def new_staging(path: Path) -> Path:
    """Make an empty directory beside ``path``, named after this process."""
    remove_leftovers(path)
    owner = f"{socket.gethostname()}-{os.getpid()}"
    staging = path.parent / f"{_prefix(path)}{owner}-{secrets.token_hex(4)}"
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be created ({error.strerror}); choose a directory you can write to"
        ) from error
    return staging


def commit(staging: Path, path: Path) -> None:
    """Give a finished directory its final name, durably.

    Raises
    ------
    StoreError
        If another writer was faster; its directory stays.
    """
    fsync_tree(staging)
    try:
        staging.rename(path)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be put in place ({error.strerror}); "
            "choose another name or delete what is there"
        ) from error
    fsync_path(path.parent)


def remove_leftovers(path: Path) -> None:
    """Delete what killed writers of ``path`` left behind, and nothing a living one works on."""
    if not path.parent.is_dir():
        return
    prefix = _prefix(path)
    for entry in path.parent.iterdir():
        if entry.name.startswith(prefix) and _abandoned(entry, entry.name.removeprefix(prefix)):
            shutil.rmtree(entry, ignore_errors=True)


def _prefix(path: Path) -> str:
    return f".{path.name}.tmp-"


def _abandoned(entry: Path, owner: str) -> bool:
    host, _, rest = owner.rpartition("-")[0].rpartition("-")
    if host == socket.gethostname() and rest.isdigit():
        return not psutil.pid_exists(int(rest))
    try:
        return time.time() - entry.stat().st_mtime > _ABANDONED_AFTER
    except FileNotFoundError:
        return False
