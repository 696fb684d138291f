"""Checkpoints: written whole or not at all, read without running code from them.

A file ends with the CRC-32 of everything before it, which torch ignores.

Each attempt at a segment writes a file of its own and then deletes the older ones. So writers need
no lock: an attempt that was wrongly taken for lost writes a file that nobody reads, or one that is
equally valid.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hydragnn_flow.errors import InputError
from hydragnn_flow.files import copy_file, is_there, open_regular, passing, patiently, replacing
from hydragnn_flow.training.checkpoints.checkpoint_parts import Damaged, checksum, folder_of, joined
from hydragnn_flow.training.memory import out_of_memory

VERSION = 5
IN_PARTS = 6
"""Version of a checkpoint that is sharded over several files, which earlier packages refuse."""
FILE = "checkpoint.pt"
PATTERN = "checkpoint*.pt"
"""Glob pattern of all checkpoints in a folder."""
# Time for a full or unreachable disk to recover [s]; other ranks' patience is longer still.
SECONDS_TO_RECOVER = 60.0
_NAME = re.compile(r"checkpoint(-\w+)?\.pt")
REMEDY = "delete it to train afresh"
CHECKSUM = "checksum"
"""Key of the checksum, for files that end with one; its value is set when the file is read."""
_MARK = b"CRC-32: "
_logger = logging.getLogger(__name__)


def save_checkpoint(path: Path, state: dict[str, Any]) -> int:
    """Write ``state`` to ``path``, whole or not at all; returns the checksum at its end.

    Parameters
    ----------
    path
        Name of the checkpoint file.
    state
        Tensors and plain Python values only.

    Raises
    ------
    OSError
        If the file cannot be written, even after waiting for a full or unreachable disk to recover.
    """
    try:
        return patiently(lambda: _write(path, state), seconds=SECONDS_TO_RECOVER)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, one for each attempt that has left one.

    Raises
    ------
    OSError
        If the folder cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except FileNotFoundError:
        return []
    return [folder / name for name in sorted(names) if _NAME.fullmatch(name)]


def _write(path: Path, state: dict[str, Any]) -> int:
    try:
        with replacing(path) as temporary, temporary.open("wb") as file:
            torch.save({"version": VERSION, **state, CHECKSUM: 0}, file)
            file.write(_MARK)
            file.flush()
            crc = checksum(temporary)
            file.write(crc.to_bytes(4, "little"))
            file.flush()
            os.fsync(file.fileno())
        return crc
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None  # what torch met before it lost count of its bytes
        raise


def load_checkpoint(
    path: Path,
    *,
    remedy: str = REMEDY,
    share: tuple[int, int] = (0, 1),
    lazily: bool = False,
    known: Mapping[str, int | None] | None = None,
) -> dict[str, Any]:
    """Read a checkpoint with ``weights_only=True``; all tensors are on the host.

    Parameters
    ----------
    path
        The file, on whatever device its tensors were.
    remedy
        Advice to the user at the end of an error message.
    share
        Index of this reader and number of readers, who divide the checking of shards.
    lazily
        Map the files into memory and read tensors on access. Tensors that several ranks have
        written come as :class:`.Rows`.
    known
        Expected checksums by file name, from the ledger.

    Raises
    ------
    Damaged
        If the file is corrupt, or its checksum is not the expected one.
    InputError
        If it cannot be read for another reason, or its version is not supported.
    """

    def load() -> dict[str, Any]:
        # Ranks that read lazily each touch a fraction of the file; the first one checks all of it.
        state = read_alone(path, lazily=lazily, checked=not lazily or not share[0])
        found, expected = state.pop(CHECKSUM, None), (known or {}).get(path.name)
        if expected is not None and found != expected:
            raise ValueError("it is another than segments.jsonl names")
        if (version := state.get("version")) not in (VERSION, IN_PARTS):
            told = f"{path}: has checkpoint version {version}, this package reads {VERSION}"
            raise InputError(f"{told}; {remedy}")
        return joined(state, path.parent, remedy, share, lazily=lazily)

    try:
        return patiently(load, seconds=SECONDS_TO_RECOVER)
    except InputError:
        raise
    except Exception as error:
        # Damaged bytes make torch's unpickler raise whatever it stumbles over.
        # The first sentence is enough; the rest is advice about torch.
        first = next(iter(str(error).splitlines()), type(error).__name__)
        reason = first.partition(". ")[0]
        kind = InputError if isinstance(error, OSError) or out_of_memory(error) else Damaged
        cure = remedy if passing(error) is None else "try again once its disk is back"
        raise kind(f"{path}: is not a readable checkpoint ({reason}); {cure}") from error


def read_alone(path: Path, *, lazily: bool = False, checked: bool = True) -> dict[str, Any]:
    """Read one checkpoint file without its shards; raises torch's errors or ValueError."""
    with open_regular(path) as file:
        file.seek(-min(len(_MARK) + 4, os.fstat(file.fileno()).st_size), os.SEEK_END)
        mark, crc = file.read(len(_MARK)), int.from_bytes(file.read(), "little")
    if mark == _MARK and checked and checksum(path) != crc:
        raise ValueError("its checksum is wrong")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=lazily)
    if CHECKSUM in state:  # an earlier version wrote none
        if mark != _MARK:
            raise ValueError("its checksum is missing")
        state[CHECKSUM] = crc
    return state


def furthest(
    files: Sequence[Path], read: Callable[[Path], dict[str, Any]] = load_checkpoint
) -> tuple[Path, dict[str, Any]] | None:
    """Return the checkpoint with the most training, and its content; None if there are none.

    Parameters
    ----------
    files
        Candidates. Damaged or deleted ones are logged and skipped.
    read
        Function that reads a checkpoint.

    Raises
    ------
    InputError
        If none can be read, or if one is unreadable only for now: it may be the furthest.
    """
    found: tuple[Path, dict[str, Any]] | None = None
    damaged: InputError | None = None
    for file in files:
        try:
            state = read(file)
        except InputError as error:
            is_gone = isinstance(error.__cause__, FileNotFoundError)
            if not (is_gone or isinstance(error, Damaged)):
                raise
            _logger.warning("%s", error)
            damaged = error
            continue
        if found is None or _far(found[1]) < _far(state):
            found = file, state
    if found is None and damaged is not None:
        raise damaged
    return found


def named_or_furthest(
    path: Path, read: Callable[[Path], dict[str, Any]] = load_checkpoint
) -> tuple[Path, dict[str, Any]]:
    """Return the checkpoint at ``path`` or, if it is gone, the furthest one, and its content.

    An attempt that was wrongly taken for lost may have replaced the file by its own. ``read`` is
    the same as in :func:`furthest`.

    Raises
    ------
    InputError
        If neither can be read.
    """
    found = None if is_there(path) else furthest(checkpoints(path.parent), read=read)
    return found or (path, read(path))


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint to another folder atomically; a sharded one becomes one file.

    Raises
    ------
    InputError
        If a shard cannot be read.
    OSError
        If the copy cannot be written.
    """
    if folder_of(source) is None:
        copy_file(source, target)
    else:
        save_checkpoint(target, load_checkpoint(source))


def _far(state: dict[str, Any]) -> tuple[int, int]:
    progress = state["progress"]
    return progress["epoch"], progress["step"]
