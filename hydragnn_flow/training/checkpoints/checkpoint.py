"""Checkpoints, in one file or sharded: written whole or not at all, read without running code.

A file ends with the CRC-32 of everything before it, which torch ignores.

Each attempt at a segment (sending of a job) writes a file of its own and then deletes the older
ones. So writers need no lock: an attempt that was wrongly taken for lost writes a file that nobody
reads, or one that is equally valid.

A sharded checkpoint has further files, its shards, in a folder. The checkpoint file names the
folder, with the size and checksum of each shard. It is written last, so shards count only once all
of them are on disk. A tensor may be divided by rows: each shard has some of them, and the
checkpoint has an empty tensor on device ``meta``. Other tensors are whole in one shard and absent
from the checkpoint. torch's own distributed checkpoints use pickle in files and between ranks, and
could run code where they are read.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hydragnn_flow.errors import InputError
from hydragnn_flow.files import copy_file, is_there, open_regular, passing, patiently, replacing
from hydragnn_flow.training.memory import out_of_memory

ROWS = "rows"
"""Key of a shard: rows of divided tensors, by the path of the tensor in the checkpoint."""
OWN = "own"
"""Key of a shard: tensors that only it has, in mappings nested like the checkpoint's."""
KEY = "parts"
"""Key of a checkpoint file: folder, sizes and checksums of its shards."""
SUFFIX = ".parts"


class Damaged(InputError):
    """Error: a checkpoint file does not have the content that was written."""


class Rows:
    """Tensor of a checkpoint whose rows are divided among several files, called shards.

    Slicing the tensor reads only the rows that are asked for.

    Parameters
    ----------
    pieces
        Rows in each shard, in order, as tensors in memory or mapped from files.
    """

    def __init__(self, pieces: list[Tensor]) -> None:
        self.pieces = pieces
        rows = sum(len(piece) for piece in pieces)
        self.shape = torch.Size((rows, *pieces[0].shape[1:]))

    def __getitem__(self, rows: slice) -> Tensor:
        first, last, _ = rows.indices(self.shape[0])
        found, begin = [], 0
        for piece in self.pieces:
            end = begin + len(piece)
            if begin < last and end > first:
                found.append(piece[max(first - begin, 0) : last - begin])
            begin = end
        return torch.cat(found) if found else self.pieces[0][:0]


def divided(state: Any, piece: Callable[[Tensor], Tensor | None]) -> tuple[Any, dict[str, Tensor]]:
    """Divide a checkpoint's content into what all ranks have and this rank's rows of tensors.

    Parameters
    ----------
    state
        Nested mappings and lists of tensors and plain values.
    piece
        Function that returns this rank's rows of a tensor; None if the rank has all rows.

    Returns
    -------
    state, rows
        Content in which sharded tensors are empty, and this rank's rows by path of their tensor.
    """
    found: dict[str, Tensor] = {}

    def visit(place: str, value: Any) -> Any:
        if isinstance(value, Tensor) and (rows := piece(value)) is not None:
            found[place] = rows
            return torch.empty(value.shape, dtype=value.dtype, device="meta")
        return value

    return _mapped(state, visit), found


def joined(
    state: dict[str, Any], folder: Path, remedy: str, share: tuple[int, int], *, lazily: bool
) -> dict[str, Any]:
    """Return a checkpoint's content, complete with the tensors of its shards (further files).

    Parameters
    ----------
    state
        Content of the checkpoint file; returned unchanged if it has no shards.
    folder
        Folder of the checkpoint file.
    remedy
        Advice to the user at the end of an error message.
    share
        Index of this reader and number of readers, who divide the checking of shards.
    lazily
        True to leave sharded tensors as :class:`Rows` in files that are mapped into memory.

    Raises
    ------
    InputError
        If a shard is missing, or does not have the content that was written.
    """
    if KEY not in state:
        return state
    named = _named(folder, state)
    if named is None:
        raise Damaged(f"{folder}: a checkpoint there names no folder of parts; {remedy}")
    parts = _open(named, state[KEY]["files"], remedy, share)

    def visit(place: str, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_meta:
            rows = Rows([part[ROWS][place] for part in parts])
            return rows if lazily else rows[:].clone()
        return value

    state = _mapped(state, visit)
    for part in parts:
        own = part.get(OWN, {})
        state = _merged(state, own if lazily else _mapped(own, _copied))
    if not lazily:
        del state[KEY]
    return state


def new_folder(checkpoint: Path) -> str:
    """Return a unique name for the folder of a checkpoint's shards (further files)."""
    return f"{checkpoint.stem}-{uuid.uuid4().hex[:12]}{SUFFIX}"


def part_file(folder: Path, part: int) -> Path:
    """Return the path of shard number ``part`` in the folder of a checkpoint's shards."""
    return folder / f"part-{part:05d}.pt"


def checksum(file: Path) -> int:
    """Return the CRC-32 of a file; if the file ends with its own CRC-32, that value."""
    crc, end = 0, b""
    with open_regular(file) as content:
        while chunk := content.read(2**24):
            crc, end = zlib.crc32(chunk, crc), (end + chunk[-4:])[-4:]
    # CRC-32 residue: the result for any bytes that end with their own CRC-32.
    return int.from_bytes(end, "little") if crc == 0x2144DF1C else crc


def folder_of(checkpoint: Path) -> Path | None:
    """Return the folder of a checkpoint's shards (further files that hold its tensors).

    The result is None if the checkpoint has no shards, is damaged or does not exist.

    Raises
    ------
    OSError
        If the disk cannot be read.
    """
    # Most have none, and reading each would take long. Opening a FIFO would wait for a writer.
    if not any(_folders(checkpoint.parent)) or checkpoint.is_fifo():
        return None
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        return _named(checkpoint.parent, state)
    except FileNotFoundError:
        return None
    except OSError:
        raise
    except Exception:  # damaged bytes make torch's unpickler raise whatever it stumbles over
        return None


def remove_checkpoint(checkpoint: Path) -> None:
    """Delete a checkpoint file, then its shards unless another checkpoint names them too.

    Raises
    ------
    OSError
        If the file cannot be deleted.
    """
    parts = folder_of(checkpoint)
    checkpoint.unlink(missing_ok=True)
    remove_parts(parts)


def remove_parts(parts: Path | None) -> None:
    """Delete the folder of a checkpoint's shards, unless a checkpoint beside it names it.

    Nothing happens if ``parts`` is None.

    Raises
    ------
    OSError
        If the checkpoints cannot be read.
    """
    if parts is not None and parts not in _all_named(parts.parent):
        shutil.rmtree(parts, ignore_errors=True)


def sweep_parts(folder: Path, seconds: float) -> None:
    """Delete the shards in a folder that no checkpoint names, left by writers that were killed.

    Parameters
    ----------
    folder
        Folder of a trial or member.
    seconds
        Minimum time since the last change of a folder of shards for it to be deleted [s].
    """
    with suppress(OSError):
        named = _all_named(folder)
        for parts in _folders(folder):
            if parts not in named and time.time() - parts.stat().st_mtime >= seconds:
                shutil.rmtree(parts, ignore_errors=True)


def _all_named(folder: Path) -> set[Path | None]:
    return {folder_of(checkpoint) for checkpoint in folder.glob("checkpoint*.pt")}


def _named(folder: Path, state: Mapping[str, Any]) -> Path | None:
    """Return the folder of shards that a checkpoint's content names; None without a valid name.

    ``folder`` is the folder of the checkpoint.
    """
    name = state[KEY]["folder"] if KEY in state else None
    if not isinstance(name, str) or Path(name).name != name or not name.endswith(SUFFIX):
        return None
    return folder / name


def _folders(folder: Path) -> Iterator[Path]:
    return folder.glob(f"*{SUFFIX}")


def _open(
    folder: Path, files: list[list[int]], remedy: str, share: tuple[int, int]
) -> list[Mapping[str, Any]]:
    parts = []
    mine, readers = share
    for number, (size, crc) in enumerate(files):
        file = part_file(folder, number)
        try:
            is_mine = number % readers == mine
            if file.stat().st_size != size or (is_mine and checksum(file) != crc):
                raise ValueError(crc)
            part = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # what damaged bytes make of torch's unpickler
            is_gone = isinstance(error, FileNotFoundError)
            if not is_gone and (isinstance(error, OSError) or out_of_memory(error)):
                raise
            what = "cannot be read (it is gone)" if is_gone else "is not the part that was written"
            raise Damaged(f"{file}: {what}; {remedy}") from None
        parts.append(part)
    return parts


def _merged(state: Mapping[Any, Any], other: Mapping[Any, Any]) -> dict[Any, Any]:
    """Merge nested mappings recursively; the two differ only in keys or in nested mappings."""
    both = {key: _merged(state[key], value) for key, value in other.items() if key in state}
    return {**state, **other, **both}


def _copied(place: str, value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _mapped(state: Any, visit: Callable[[str, Any], Any], place: str = "") -> Any:
    if isinstance(state, Mapping):
        return {key: _mapped(value, visit, f"{place}/{key}") for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        values = (_mapped(value, visit, f"{place}/{number}") for number, value in enumerate(state))
        return type(state)(values)
    return visit(place, state)


VERSION = 5
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
    """Write a checkpoint file, whole or not at all; return the CRC-32 at its end.

    Parameters
    ----------
    path
        Name of the checkpoint file.
    state
        Content to write: tensors and plain Python values only.

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
    """Return the paths of all checkpoint files in the folder of a trial or member.

    Each attempt at a segment (one sending of a job) may have left one.

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
    """Return the content of a checkpoint, shards included, with all tensors on the host.

    Torch reads it with ``weights_only=True``, so that the file cannot run code.

    Parameters
    ----------
    path
        Checkpoint file, whose tensors may have been on any device.
    remedy
        Advice to the user at the end of an error message.
    share
        Index of this reader and number of readers, who divide the checking of shards.
    lazily
        True to map the files into memory and read tensors on access. Tensors that several ranks
        have written are then returned as :class:`.Rows`.
    known
        Expected checksums by file name, from the ledger.

    Raises
    ------
    Damaged
        If the file is corrupt, or its checksum is not the expected one.
    InputError
        If the file cannot be read for another reason, or its version is not supported.
    """

    def load() -> dict[str, Any]:
        # Ranks that read lazily each touch a fraction of the file; the first one checks all of it.
        state = read_alone(path, lazily=lazily, checked=not lazily or not share[0])
        found, expected = state.pop(CHECKSUM, None), (known or {}).get(path.name)
        if expected is not None and found != expected:
            raise ValueError("it is another than segments.jsonl names")
        if (version := state.get("version")) != VERSION:
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
    """Return the content of one checkpoint file without its shards.

    Faults of the file raise torch's errors, OSError or ValueError.

    Parameters
    ----------
    path
        Checkpoint file, whose tensors are returned on the host.
    lazily
        True to map the file into memory and read tensors on access.
    checked
        True to compare the file's checksum with its content.
    """
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
    """Return path and content of the checkpoint with the most training; None if there is none.

    Parameters
    ----------
    files
        Paths of the checkpoints to compare. Damaged or deleted ones are logged and skipped.
    read
        Function that reads a checkpoint.

    Raises
    ------
    InputError
        If all files are damaged or deleted, or if any file cannot be read for another reason, such
        as a disk that does not answer: that file may be the furthest.
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
    """Return path and content of the checkpoint at ``path`` or, if it is gone, of the furthest.

    The furthest checkpoint is the one with the most training in the folder. An attempt that was
    wrongly taken for lost may have replaced the file by its own. ``read`` is the same as in
    :func:`furthest`.

    Raises
    ------
    InputError
        If the file at ``path`` exists and cannot be read, or the furthest one cannot be found.
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
