"""``md.idx``: where in the other files of a BP5 directory its one step lies."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from hydragnn_flow.data.store.foreign.damage import damaged
from hydragnn_flow.errors import StoreError

_TAG = b"ADIOS-BP v"
_HEADER_BYTES = 64
# Positions in the header.
_ENDIAN, _VERSION, _MINOR, _ACTIVE = 36, 37, 38, 39
_WRITERS, _STEP = b"w", b"s"


@dataclass(frozen=True)
class Index:
    """The step: where its metadata are, and the data of each writer."""

    start: int
    """Position of the metadata in ``md.0``."""
    size: int
    """Bytes of the metadata."""
    subfiles: tuple[int, ...]
    """Number N of the ``data.N`` each writer wrote to."""
    pieces: tuple[tuple[tuple[int, int], ...], ...]
    """Position and bytes of what each writer wrote to it early."""
    last: tuple[int, ...]
    """Position of the rest that each writer wrote."""


def read_index(path: Path) -> Index | None:
    """Read a ``md.idx``; None where its layout is not the one of BP 5.2.

    Raises
    ------
    StoreError
        Where it is damaged, unfinished, or of more than one step.
    """
    content = path.read_bytes()
    if len(content) < _HEADER_BYTES or not content.startswith(_TAG):
        raise damaged(path, "does not begin as an ADIOS2 index")
    if content[_VERSION] != 5:
        raise StoreError(
            f"{path} is damaged or of the format BP{content[_VERSION]}; give a file of BP5"
        )
    if content[_MINOR] != 2 or content[_ENDIAN] != 0:
        return None
    if content[_ACTIVE] != 0:
        raise StoreError(
            f"{path} says that the file was never closed: its writer is still at work or was "
            "stopped; wait for it or write the file again"
        )
    subfiles: tuple[int, ...] = ()
    steps = []
    for kind, words in _read_records(path, content):
        if kind == _STEP:
            steps.append(_read_step(path, words, subfiles))
        elif len(words) < 4 or words[0] != len(words) - 3:
            raise damaged(path, "contradicts itself about its writers")
        else:
            subfiles = words[3:]
    if not steps:
        raise damaged(path, "says that nothing has been written")
    if len(steps) > 1:
        raise StoreError(
            f"{path} has {len(steps)} steps, of which HydraGNN would read one; "
            "write all graphs in one step"
        )
    return steps[0]


def _read_records(path: Path, content: bytes) -> list[tuple[bytes, tuple[int, ...]]]:
    records = []
    start = _HEADER_BYTES
    while start < len(content):
        kind = content[start : start + 1]
        end = start + 9 + int.from_bytes(content[start + 1 : start + 9], "little")
        if end > len(content) or (end - start - 9) % 8 or kind not in (_WRITERS, _STEP):
            raise damaged(path, "does not hold whole records")
        records.append(
            (kind, struct.unpack(f"<{(end - start) // 8 - 1}Q", content[start + 9 : end]))
        )
        start = end
    return records


def _read_step(path: Path, words: tuple[int, ...], subfiles: tuple[int, ...]) -> Index:
    """Place of the metadata, then of the data, writer by writer."""
    if len(words) < 3 or not subfiles or len(words) != 3 + (2 * words[2] + 1) * len(subfiles):
        raise damaged(path, "contradicts itself about its writers")
    width = 2 * words[2] + 1
    pieces, last = [], []
    for start in range(3, len(words), width):
        *early, rest = words[start : start + width]
        pieces.append(tuple(zip(early[::2], early[1::2], strict=True)))
        last.append(rest)
    return Index(words[0], words[1], subfiles, tuple(pieces), tuple(last))
