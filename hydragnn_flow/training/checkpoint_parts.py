"""Parts of a checkpoint: what of its tensors each rank holds, in a file of its own.

The checkpoint names the folder of its parts, with the size and checksum of each. So it is written
last, and makes the parts count. Some tensors are divided by rows: each part has some rows, and the
checkpoint has a tensor without numbers (device ``meta``). Others are whole in one part, and the
checkpoint does not have them. torch's own distributed checkpoints are pickles in part, in the files
and between the ranks, and could run code where they are read.
"""

from __future__ import annotations

import shutil
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hydragnn_flow.errors import InputError
from hydragnn_flow.files import open_regular
from hydragnn_flow.training.memory import out_of_memory

ROWS = "rows"
"""Of a part: rows of tensors, by the places of these in the checkpoint."""
OWN = "own"
"""Of a part: tensors that it has alone, in mappings nested as the checkpoint's."""
KEY = "parts"
"""Of a checkpoint: where its parts are."""
SUFFIX = ".parts"
_CHUNK = 2**24
# CRC-32 of all bytes that end with their own.
_WHOLE = 0x2144DF1C


class Damaged(InputError):
    """A file of a checkpoint is not what was written."""


class Rows:
    """A tensor whose rows are divided among the parts of a checkpoint; a slice of it is read.

    Parameters
    ----------
    pieces
        The rows of each part, one after the other, in memory or mapped from a file.
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
    """A checkpoint's content without the tensors that are divided, and a rank's rows of these.

    Parameters
    ----------
    state
        Nested mappings and lists of tensors and plain values.
    piece
        The rows that a rank has of a tensor; None if it has all.

    Returns
    -------
    state, rows
        The rows by the place of their tensor in the state.
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
    """A checkpoint's content with the tensors that are divided among its parts.

    Parameters
    ----------
    state
        The checkpoint; one without parts comes back as it is.
    folder
        Where it is.
    remedy
        What whoever reads it can do where it cannot be read.
    share
        Number of this reader, and how many there are, who check some of the parts each.
    lazily
        Leave these tensors as :class:`Rows` in files that are mapped.

    Raises
    ------
    InputError
        If a part is missing, or another than was written.
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
    """A name for the parts of a checkpoint that no other has."""
    return f"{checkpoint.stem}-{uuid.uuid4().hex[:12]}{SUFFIX}"


def part_file(folder: Path, part: int) -> Path:
    """The file of a rank."""
    return folder / f"part-{part:05d}.pt"


def checksum(file: Path) -> int:
    """CRC-32 of a file's content; of one that ends with its own, as checkpoints do, this one."""
    crc, end = 0, b""
    with open_regular(file) as content:
        while chunk := content.read(_CHUNK):
            crc, end = zlib.crc32(chunk, crc), (end + chunk[-4:])[-4:]
    return int.from_bytes(end, "little") if crc == _WHOLE else crc


def folder_of(checkpoint: Path) -> Path | None:
    """The folder of a checkpoint's parts; None if it has none, is damaged, or is not there.

    Raises
    ------
    OSError
        If the disk does not say.
    """
    # Most have none, and reading each would take long; a FIFO's writer would be waited for.
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
    """Take away a checkpoint, and then its parts, unless another checkpoint names them too.

    Raises
    ------
    OSError
        If the disk does not let it.
    """
    parts = folder_of(checkpoint)
    checkpoint.unlink(missing_ok=True)
    remove_parts(parts)


def remove_parts(parts: Path | None) -> None:
    """Take away a folder of parts, unless a checkpoint beside it names it.

    Raises
    ------
    OSError
        If the disk does not say what checkpoints name.
    """
    if parts is not None and parts not in _all_named(parts.parent):
        shutil.rmtree(parts, ignore_errors=True)


def sweep_parts(folder: Path, seconds: float) -> None:
    """Take away parts that no checkpoint of a folder names, left by writers that were killed.

    Parameters
    ----------
    folder
        Of a trial or member.
    seconds
        Time since the last change of those that are deleted [s].
    """
    with suppress(OSError):
        named = _all_named(folder)
        for parts in _folders(folder):
            if parts not in named and time.time() - parts.stat().st_mtime >= seconds:
                shutil.rmtree(parts, ignore_errors=True)


def _all_named(folder: Path) -> set[Path | None]:
    return {folder_of(checkpoint) for checkpoint in folder.glob("checkpoint*.pt")}


def _named(folder: Path, state: Mapping[str, Any]) -> Path | None:
    """The folder of parts that a checkpoint names; never one elsewhere."""
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
    """Nested mappings as one; of no key both have another value than a mapping."""
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
