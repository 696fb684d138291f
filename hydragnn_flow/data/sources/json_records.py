"""Source of JSON records and tables with pymatgen's structure dicts."""

from __future__ import annotations

import gzip
import json
import reprlib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from hydragnn_flow.data.layouts import in_known_units
from hydragnn_flow.data.sources.arrays import lookup
from hydragnn_flow.data.sources.single import from_dict
from hydragnn_flow.data.sources.structures import Found, StructureSource, StructuresSection, cut
from hydragnn_flow.errors import InputError


class JsonSource(StructuresSection):
    """Configuration section `data.source` for JSON files with structures as dicts.

    A file has a list of records, a record in each line, records by identifier, or a table of
    columns, index and data. Labels and groups are keys of a record, keys of its `outputs`, or
    dotted paths.
    """

    reads = "records or tables, with structure dicts of pymatgen, JARVIS or OPTIMADE"
    labels = "keys of a record"

    structure: str = Field(default="structure", min_length=1)
    """Key or column of the structures."""

    def open(self, folder: Path, seed: int) -> JsonRecords:
        return JsonRecords(self, folder)


class JsonRecords(StructureSource[JsonSource]):
    """Reader of structures in `.json` and `.json.gz` files, such as mlearn's and matbench's.

    JSON can only be read as a whole, and takes several times its size in memory. The last file is
    cached: counting it, and reading its chunks one after the other, reads it once.
    """

    def __init__(self, section: JsonSource, folder: Path) -> None:
        super().__init__(section, folder)
        self._last: tuple[Path, list[Any], int] | None = None

    def ranges(self, file: Path) -> list[tuple[int, int]]:
        # Several processes may each read all of a short file to share the rest of the work.
        records, size = self._document(file)
        return cut(len(records), 1 if size > 64 << 20 else 16)

    def structures(self, file: Path, start: int, stop: int) -> Iterator[Found]:
        records, _ = self._document(file)
        for number, record in enumerate(records[start:stop], start):
            if not isinstance(record, dict):
                raise TypeError(f"a record must be a mapping of keys, got {reprlib.repr(record)}")
            origin = f"{file}: structure {number}"
            key = self._section.structure
            if key == "structure" not in record:  # as JARVIS and OPTIMADE name it
                key = next((other for other in ("atoms", "attributes") if other in record), key)
            structure = lookup(record, key, origin, "structure", "structure")
            values, converted = in_known_units(record)
            yield Found(from_dict(structure), self._values(values), converted=converted)

    def _values(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return values that may be labels, by key of the record, of its `outputs`, or dotted path.

        OPTIMADE's `attributes` of a provider count as `outputs`. Keys of the record come first.
        """
        outputs = record.get("outputs")
        if isinstance(of_optimade := record.get("attributes"), dict):
            outputs = {key: one for key, one in of_optimade.items() if key.startswith("_")}
        values = {**outputs, **record} if isinstance(outputs, dict) else dict(record)
        for key in self._keys:
            if key not in values and "." in key:
                inner: Any = record
                for name in key.split("."):
                    inner = inner.get(name) if isinstance(inner, dict) else None
                if inner is not None:
                    values[key] = inner
        return values

    def _document(self, file: Path) -> tuple[list[Any], int]:
        """Return the records of a file, and the size of its text [bytes]."""
        if self._last is None or self._last[0] != file:
            self._last = None  # frees the last document before the next is read
            self._last = file, *_read(file)
        return self._last[1:]


def _read(file: Path) -> tuple[list[Any], int]:
    try:
        content = file.read_bytes()
        suffixes = {suffix.lower() for suffix in file.suffixes}
        if ".gz" in suffixes:
            content = gzip.decompress(content)
        if suffixes & {".jsonl", ".ndjson"}:
            return [*_records_of_lines(content)], len(content)
        document = json.loads(content)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise InputError(f"{file} is not JSON ({error}); correct it or leave it out") from error
    if isinstance(document, dict):
        if {"columns", "data"} <= document.keys():
            return _records_of_table(document, file), len(content)
        document = document.get("data") or [*_inner(document)] or document  # OPTIMADE's, MPtrj's
    if not isinstance(document, list):
        raise InputError(
            f"{file} is neither a list of records nor a table with columns and data; convert it"
        )
    return document, len(content)


def _records_of_lines(content: bytes) -> Iterator[Any]:
    for number, line in enumerate(content.splitlines(), 1):
        try:
            if line.strip():
                yield json.loads(line)
        except ValueError as error:
            said = str(error).partition(": line")[0]  # which counts from this line
            raise ValueError(f"in line {number}, {said}") from None


def _inner(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the records in mappings of records by identifier, which may hold further mappings."""
    for key, inner in document.items():
        if isinstance(inner, dict) and inner.keys() & {"structure", "atoms"}:
            yield {"id": key, **inner}
        elif isinstance(inner, dict):
            yield from _inner(inner)


def _records_of_table(table: dict[str, Any], file: Path) -> list[dict[str, Any]]:
    columns, rows = table["columns"], table["data"]
    if not (isinstance(columns, list) and isinstance(rows, list)):
        raise InputError(f"{file}: columns and data of a table must be lists; correct them")
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(columns):
            raise InputError(
                f"{file}: structure {number} has not got one value for each of the "
                f"{len(columns)} columns; correct the row"
            )
    return [dict(zip(columns, row, strict=True)) for row in rows]
