"""Source of CSV tables with a structure in each row."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from pydantic import Field, model_validator

from hydragnn_flow.data.sources.arrays import lookup
from hydragnn_flow.data.sources.single import from_cif, from_file
from hydragnn_flow.data.sources.structures import (
    Found,
    StructureSource,
    StructuresSection,
    Unreadable,
    check_read,
    cut,
    no_structures,
    readable,
)
from hydragnn_flow.errors import InputError

# The CIF of a large cell is longer than the 128 kB that a cell may have by default.
csv.field_size_limit(2**31 - 1)


def _as_latin1(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return error.object[error.start : error.end].decode("latin-1"), error.end


codecs.register_error("latin-1", _as_latin1)
_ENDINGS = (".cif", ".vasp", ".poscar", ".xyz", ".extxyz")
"""Endings that names of structure files in a table may lack."""


class CsvSource(StructuresSection):
    """Configuration section `data.source` for CSV tables with a structure in each row.

    Labels and groups are columns.
    """

    reads = "tables with a structure in each row, as CIF text or a path"
    labels = "columns"

    structure: str = Field(min_length=1)
    """Column of the structures: CIF text, or paths of structure files relative to the table."""

    @model_validator(mode="after")
    def _of_structures(self) -> CsvSource:
        for name, target in self.targets.items():
            if target.level == "node":
                raise ValueError(f"targets.{name}.level: a cell holds one number; leave level out")
        return self

    def open(self, folder: Path, seed: int) -> CsvTables:
        return CsvTables(self, folder)


class CsvTables(StructureSource[CsvSource]):
    """Reader of CSV tables whose structures are CIF text, or paths relative to the table."""

    def files(self) -> list[Path]:
        """Return the CSV tables, and the structure files that their rows name."""
        tables = super().files()
        column = self._section.structure
        named = (_path(row.get(column), table) for table in tables for _, row in rows_of(table))
        return [*tables, *(path for path in named if path is not None)]

    def ranges(self, file: Path) -> list[tuple[int, int]]:
        n, faults = 0, list[str]()
        for origin, row in rows_of(file):
            path = _path(row.get(self._section.structure), file)
            if path is not None and not path.is_file():
                faults.append(
                    f"{origin} names {path}, which is not a file; correct the path, which starts "
                    "from the folder of the table, or remove the row"
                )
            n += 1
        check_read(faults)
        return cut(n)

    def structures(self, file: Path, start: int, stop: int) -> Iterator[Found | InputError]:
        return _structures(file, self._section.structure, start, stop)


def count_rows(file: Path) -> int:
    """Count the rows of a CSV table, without its header.

    Raises
    ------
    InputError
        If the file is not a table.
    """
    return sum(1 for _ in rows_of(file))


def each_row(file: Path, column: str, start: int = 0, stop: int | None = None) -> Iterator[Found]:
    """Yield the structures in a CSV table for prediction, each with all cells of its row.

    Parameters
    ----------
    file
        CSV file of the table.
    column
        Name of the column of structures, the same as in the training data.
    start, stop
        Range of rows to read, [start, stop); ``stop`` is None for the end of the table.

    Raises
    ------
    InputError
        If the file is not such a table, or a row has no readable structure.
    """
    found = None
    for found in _structures(file, column, start, stop):
        if isinstance(found, InputError):
            raise found
        yield found
    if found is None:
        raise no_structures(file)


def _structures(
    file: Path, column: str, start: int, stop: int | None
) -> Iterator[Found | InputError]:
    for origin, row in islice(rows_of(file), start, stop):
        if column not in row:
            raise InputError(
                f"{file} has no column {column!r} (it has: {', '.join(filter(None, row))}); name "
                f"the column of structures so, or correct data.source.structure"
            )
        cell = lookup(row, column, origin, "structure", "structure")
        path, faults = _path(cell, file), list[str]()
        with readable(path or origin, faults):
            yield Found(from_cif(cell) if path is None else from_file(path), row, file=path)
        for said in faults:
            yield Unreadable(f"{said} with its row ({origin})" if path else said)


def rows_of(file: Path) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Yield each row of a CSV table: its name for error messages, and its cells.

    Cells are text by column name; None for empty cells.

    Raises
    ------
    InputError
        If the file is not a table, two columns have the same name, or a row has too few or too many
        cells.
    """
    try:
        # What is no UTF-8 is Latin-1, of whose letters no number is made.
        with file.open(newline="", encoding=_encoding(file), errors="latin-1") as text:
            header: list[str] = next(_lines(text, ","), [])
            between = re.search("[;\t|]", header[0]) if len(header) == 1 else None
            text.seek(0)
            mark = between[0] if between else ","
            lines, first = _lines(text, mark), "header"
            header = next(lines, [])
            if _is_data(header, file):
                header = ["id", "target", *(f"target_{n}" for n in range(2, len(header)))]
                text.seek(0)
                lines, first = _lines(text, mark), "first row"  # which counts lines anew
            if twice := {name for name in header if name and header.count(name) > 1}:
                raise InputError(f"{file} has two columns {min(twice)!r}; rename or remove one")
            for number, cells in enumerate(row for row in lines if row):
                origin = f"{file}: structure {number}"
                where = f"{origin} (line {lines.line_num})"
                if len(cells) != len(header):
                    raise InputError(
                        f"{where} has {len(cells)} {'cell' if len(cells) == 1 else 'cells'} where "
                        f"the {first} has {len(header)}; correct the row"
                    )
                if any("\0" in cell for cell in cells):
                    raise InputError(f"{where} holds a NUL; correct the row")
                yield origin, {name: cell or None for name, cell in zip(header, cells, strict=True)}
    except (OSError, csv.Error) as error:
        raise InputError(f"{file} cannot be read as a table ({error}); correct it") from error


def _lines(text: TextIO, mark: str) -> Any:
    return csv.reader(text, delimiter=mark, strict=True, skipinitialspace=True)


def _encoding(file: Path) -> str:
    with file.open("rb") as content:
        start = content.read(2)
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    return {b"\0": "utf-16-be"}.get(start[:1]) or (
        "utf-16-le" if start[1:] == b"\0" else "utf-8-sig"
    )


def _is_data(cells: Sequence[str], file: Path) -> bool:
    """Return whether a first line is no header but a row: a file's name and numbers (CGCNN's)."""
    numbers = [cell for cell in cells[1:] if re.fullmatch(r"[-+]?[\d.]+([eE][-+]?\d+)?", cell)]
    is_row = len(cells) > 1 and len(numbers) == len(cells) - 1
    return is_row and structure_file(file, cells[0]).is_file()


def structure_file(table: Path, cell: str) -> Path:
    """Return the path of the structure that a cell of a table names, perhaps without its ending."""
    path = table.parent / cell
    if path.is_file():
        return path
    path = table.parent / cell.replace("\\", "/")
    others = (path.with_name(path.name + ending) for ending in ("", *_ENDINGS))
    return next((other for other in others if other.is_file()), path)


def _path(cell: str | None, file: Path) -> Path | None:
    """Return the path of a row's structure; None if ``cell`` is None or CIF text of several lines.

    ``file`` is the table, whose directory the path is relative to.
    """
    return None if cell is None or "\n" in cell else structure_file(file, cell)
