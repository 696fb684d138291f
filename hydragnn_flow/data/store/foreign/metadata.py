"""``mmd.0`` and ``md.0``: the formats of the metadata, and the metadata themselves."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydragnn_flow.data.store.foreign.damage import damaged
from hydragnn_flow.data.store.foreign.index import Index
from hydragnn_flow.data.store.foreign.lookup3 import lookup3
from hydragnn_flow.data.store.foreign.records import Format

# The names of formats that are a hash: 12 bytes, of which the first says so.
_ID_BYTES, _HASHED = 12, 2
# Before a record stand the name of its format and its length, up to a multiple of 8 bytes.
_LENGTH_AT, _RECORD_AT = 12, 24
# Fields of arrays: letters for the kind, bytes of a number, ADIOS2's number of the type, name.
_ARRAY = re.compile(r"BP[A-Z]+_(\d+)_\d+_(.*)", re.DOTALL)
# Stands for the extent of a dimension along which blocks are joined (ADIOS2's JoinedDim).
_JOINED = 2**64 - 2

Formats = dict[bytes, Format | None]


def read_formats(path: Path) -> Formats:
    """Read a ``mmd.0``; None stands for formats of a kind not known here.

    Raises
    ------
    StoreError
        Where it is damaged: any change of a description, since the names are hashes of these.
    """
    content = path.read_bytes()
    formats: Formats = {}
    start = 0
    while start < len(content):
        name_at = start + 16
        text_at = name_at + int.from_bytes(content[start : start + 8], "little")
        end = text_at + int.from_bytes(content[start + 8 : name_at], "little")
        name, description = content[name_at:text_at], content[text_at:end]
        if end > len(content) or not name or not description:
            raise damaged(path, "does not hold whole descriptions")
        start = end
        formats[name] = None
        if len(name) != _ID_BYTES or name[0] != _HASHED:
            continue
        _, high, low, *hashes = struct.unpack(">BBHII", name)
        length = (high << 16 | low) * 4
        if length > len(description) or tuple(hashes) != lookup3(description[:length]):
            raise damaged(path, "has changed since it was written (its hash differs)")
        try:
            formats[name] = Format(description)
        except ValueError:
            continue
    return formats


def check_metadata(path: Path, index: Index, formats: Formats) -> list[int | None]:
    """Check a ``md.0``.

    All of its records must lie within their bytes, and the blocks of each variable within the
    data, apart from one another, and together as many as the variable has values.

    Returns
    -------
    list
        Bytes of data of each writer; None where its record is of a kind not known here.

    Raises
    ------
    StoreError
        Where it is damaged.
    """
    lengths: list[int | None] = []
    expected: dict[str, int] = {}
    found: dict[str, int] = {}
    for number, content in enumerate(_read_records(path, index)):
        record = _decode(path, content, formats) if content else {"DataBlockSize": 0}
        if number >= len(index.subfiles):
            continue  # attributes, of which only the decoding can be checked
        lengths.append(None if record is None else record.get("DataBlockSize"))
        if record is not None and lengths[-1] is not None:
            try:
                _check_blocks(record, expected, found)
            except (ValueError, IndexError) as error:
                raise damaged(path, f"does not say where all data are ({error})") from error
    if None not in lengths:
        for name, size in expected.items():
            if found.get(name, 0) != size:
                raise damaged(
                    path, f"has blocks of {found.get(name, 0)} of the {size} values of {name}"
                )
    return lengths


def _read_records(path: Path, index: Index) -> Iterator[bytes]:
    """One record of each writer about its data, then one of each with attributes."""
    size, end = path.stat().st_size, index.start + index.size
    if size != end:
        raise damaged(path, f"has {size} bytes instead of the {end} that md.idx says")
    head_bytes = 8 * (1 + 2 * len(index.subfiles))
    with path.open("rb") as file:
        file.seek(index.start)
        head = file.read(head_bytes)
        if len(head) < head_bytes:
            raise damaged(path, "is too short for the writers that md.idx says")
        total, *sizes = struct.unpack(f"<{head_bytes // 8}Q", head)
        if total + 8 != index.size or head_bytes + sum(sizes) != index.size:
            raise damaged(path, "does not have the size that it and md.idx say")
        for record_bytes in sizes:
            yield file.read(record_bytes)


def _decode(path: Path, content: bytes, formats: Formats) -> dict[str, Any] | None:
    name = content[:_ID_BYTES]
    if name not in formats:
        # The name of a kind not known here may be of another length.
        if all(len(other) == _ID_BYTES for other in formats):
            raise damaged(path, "holds a record of a format that is not in mmd.0")
        return None
    form = formats[name]
    if form is None:
        return None
    length = int.from_bytes(content[_LENGTH_AT : _LENGTH_AT + 8], "little")
    record = content[_RECORD_AT : _RECORD_AT + length]
    try:
        if len(record) < length:
            raise ValueError("it ends too early")
        return form.decode(record)
    except ValueError as error:
        raise damaged(path, f"holds a record that cannot be ({error})") from error


def _check_blocks(record: dict[str, Any], expected: dict[str, int], found: dict[str, int]) -> None:
    """Check one writer's blocks; add to the values that variables should have and have."""
    places = []
    variables = [item for item in record.items() if item[0].startswith("BP")]
    for number, (field, array) in enumerate(variables):
        match = _ARRAY.fullmatch(field)
        if match is None or not isinstance(array, dict) or "DataBlockLocation" not in array:
            continue
        item_bytes, name = int(match[1]), match[2]
        shape, rank, n_blocks = array["Shape"], array["Dims"], array["BlockCount"]
        said = record["BitField"][number // 64] >> number % 64 & 1
        if array["DBCount"] != rank * n_blocks or bool(said) != (array["DBCount"] > 0):
            raise ValueError(f"{name} has not as many blocks as it should")
        is_whole = bool(shape) and _JOINED not in shape
        for i in range(n_blocks):
            of_block = slice(i * rank, (i + 1) * rank)
            count = array["Count"][of_block]
            size = math.prod(count)
            # Compressed blocks say how long they are.
            n_bytes = array["DataBlockSize"][i] if "DataBlockSize" in array else size * item_bytes
            if n_bytes:
                location = array["DataBlockLocation"][i]
                places.append((location, location + n_bytes, name))
            if not _fits(shape, count, array["Offset"][of_block]):
                raise ValueError(f"a block of {name} does not lie in its shape")
            if is_whole:
                found[name] = found.get(name, 0) + size
        if is_whole and expected.setdefault(name, math.prod(shape)) != math.prod(shape):
            raise ValueError(f"the writers give {name} different shapes")
    end = 0
    for start, stop, name in sorted(places):
        if start < end or stop > record["DataBlockSize"]:
            raise ValueError(f"a block of {name} lies among other data or beyond them")
        end = stop


def _fits(shape: tuple[int, ...], count: tuple[int, ...], offset: tuple[int, ...]) -> bool:
    """Whether a block lies in a shape; one that is none is no part of a larger array."""
    if not shape:
        return True
    if _JOINED in shape:
        return all(extent in (c, _JOINED) for extent, c in zip(shape, count, strict=True))
    return len(offset) == len(shape) and all(
        first + c <= extent for extent, c, first in zip(shape, count, offset, strict=True)
    )
