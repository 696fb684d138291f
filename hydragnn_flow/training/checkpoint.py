"""Checkpoints: written whole or not at all, read without running code from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hydragnn_flow.errors import InputError
from hydragnn_flow.files import patiently, replacing

VERSION = 4
FILE = "checkpoint.pt"
# A disk that is full, or away, may be back within such a time [s]; other ranks wait longer still.
SECONDS_TO_RECOVER = 60.0


def save_checkpoint(
    path: Path, state: dict[str, Any], may_write: Callable[[], bool] = lambda: True
) -> None:
    """Write ``state`` to ``path`` so that a crash leaves the old file or the new one, never a part.

    Parameters
    ----------
    path
        The checkpoint file.
    state
        Tensors and plain Python values only.
    may_write
        Asked right before the old file is replaced, each time that is tried: while a disk was
        away, another node may have got further. If it says no, the old file stays.

    Raises
    ------
    OSError
        Naming the file, if the disk does not take it, or is full or out of reach for longer.
    """
    try:
        patiently(lambda: _write(path, state, may_write), seconds=SECONDS_TO_RECOVER)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write(path: Path, state: dict[str, Any], may_write: Callable[[], bool]) -> None:
    try:
        with replacing(path, may_write) as temporary, temporary.open("wb") as file:
            torch.save({"version": VERSION, **state}, file)
            file.flush()
            os.fsync(file.fileno())
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None  # what torch met before it lost count of its bytes
        raise


def load_checkpoint(path: Path, *, remedy: str = "delete it to train afresh") -> dict[str, Any]:
    """Read a checkpoint with ``weights_only=True``; all of it is on the host.

    Parameters
    ----------
    path
        The file, wherever it was written.
    remedy
        What whoever reads it can do where it cannot be read.

    Raises
    ------
    InputError
        If the file is damaged or of a version this package does not read.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # Damaged bytes make torch's unpickler raise whatever it stumbles over.
        # The first sentence is enough; the rest is advice about torch.
        first = next(iter(str(error).splitlines()), type(error).__name__)
        reason = first.partition(". ")[0]
        raise InputError(f"{path}: is not a readable checkpoint ({reason}); {remedy}") from None
    if state.get("version") != VERSION:
        raise InputError(
            f"{path}: has checkpoint version {state.get('version')}, this package reads {VERSION}; "
            f"{remedy}"
        )
    return state
