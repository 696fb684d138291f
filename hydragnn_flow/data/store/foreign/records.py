"""Decoding the records of ``md.0``: to decode one is to know that all of it lies within its bytes.

ADIOS2 encodes its metadata with the library FFS, and trusts it: a wrong position within a record
crashes it, or makes it read the wrong bytes. A record is a C structure in which pointers have been
replaced by positions from its start. The description in ``mmd.0`` names the fields of the structure
and of the structures within it, as in FFS's fm_internal.h.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any

_DESCRIPTION_HEADER_BYTES = 8
_POINTER_BYTES = 8
# What an array has that is no part of a larger one; every other pointer points to something.
_MAY_BE_NULL = ("Shape", "Offset")
_TYPE = re.compile(r"([\w ]+)((?:\[\w+\])*)")


@dataclass(frozen=True)
class Field:
    """One field of a structure, such as ``Shape``, an ``integer[Dims]``."""

    name: str
    kind: str
    """``integer``, ``string``, ``char``, another simple type, or the name of a structure."""
    counts: tuple[int | str, ...]
    """Extents of an array; a name stands for the field that holds the number."""
    size: int
    """Bytes of one number."""
    offset: int
    """Position in the structure."""


@dataclass(frozen=True)
class Structure:
    """One structure of a format."""

    name: str
    size: int
    """Bytes, without what its pointers point to."""
    fields: tuple[Field, ...]


class Format:
    """A structure and those within it.

    Parameters
    ----------
    description
        FFS's, of records with little-endian numbers and 64-bit pointers.

    Raises
    ------
    ValueError
        Where the description is of a kind not known here.
    """

    def __init__(self, description: bytes) -> None:
        self._structures: dict[str, Structure] = {}
        try:
            position = _DESCRIPTION_HEADER_BYTES
            for _ in range(1 + description[4]):
                structure, size = _read_structure(description, position)
                self._structures[structure.name] = structure
                position += size
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ValueError(f"unknown description: {error}") from error
        self._outer = next(iter(self._structures.values()))

    def decode(self, record: bytes) -> dict[str, Any]:
        """The fields of a record by name.

        Integers become int, strings str, structures dict, arrays of these tuples, all else bytes.

        Raises
        ------
        ValueError
            Where something lies outside the record.
        """
        try:
            return self._decode(record, self._outer, 0)
        except (struct.error, UnicodeDecodeError) as error:
            raise ValueError(f"impossible record: {error}") from error

    def _decode(self, record: bytes, structure: Structure, start: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for field in structure.fields:
            count, is_pointer = 1, False
            for extent in field.counts:
                if isinstance(extent, str):
                    count, is_pointer = count * values[extent], True
                else:
                    count *= extent
            position = start + field.offset
            if is_pointer:
                (position,) = struct.unpack_from("<Q", record, position)
                if position == 0:
                    if count and field.name not in _MAY_BE_NULL:
                        raise ValueError(f"{field.name} is not there")
                    count = 0
            found = self._decode_array(record, field, position, count)
            values[field.name] = found if field.counts or field.kind == "char" else found[0]
        return values

    def _decode_array(self, record: bytes, field: Field, position: int, count: int) -> Any:
        inner = self._structures.get(field.kind)
        size = inner.size if inner else _POINTER_BYTES if field.kind == "string" else field.size
        # Before anything of that length is made.
        if position + size * count > len(record):
            raise ValueError(f"{field.name} ends behind its record")
        if inner:
            return tuple(self._decode(record, inner, position + i * size) for i in range(count))
        if field.kind == "string":
            starts = struct.unpack_from(f"<{count}Q", record, position)
            if 0 in starts:
                raise ValueError(f"{field.name} is not there")
            return tuple(_text(record, start) for start in starts)
        if field.kind == "integer" and size == 8:
            return struct.unpack_from(f"<{count}Q", record, position)
        content = record[position : position + size * count]
        return content if field.counts else (content,)


def _read_structure(description: bytes, start: int) -> tuple[Structure, int]:
    """One structure of a description, and the bytes its description takes."""
    name, n_fields, size, pointer_bytes, header_bytes = struct.unpack_from(
        "<IIiBB", description, start + 4
    )
    low, order, high = (
        struct.unpack_from(">H", description, start)[0],
        description[start + 3],
        struct.unpack_from(">H", description, start + 24)[0],
    )
    if order != 0 or pointer_bytes != _POINTER_BYTES:
        raise ValueError("records of another machine")
    fields = []
    for i in range(n_fields):
        name_at, type_at, field_size, offset = struct.unpack_from(
            "<IIii", description, start + header_bytes + 16 * i
        )
        kind = _text(description, start + type_at)
        match = _TYPE.fullmatch(kind)
        if match is None:
            raise ValueError(f"unknown type {kind}")
        counts = tuple(
            int(count) if count.isdigit() else count for count in re.findall(r"\w+", match[2])
        )
        fields.append(
            Field(_text(description, start + name_at), match[1], counts, field_size, offset)
        )
    return Structure(_text(description, start + name), size, tuple(fields)), high << 16 | low


def _text(content: bytes, start: int) -> str:
    end = content.find(b"\0", start)
    if start >= len(content) or end < 0:
        raise ValueError("text ends behind its record")
    return content[start:end].decode()
