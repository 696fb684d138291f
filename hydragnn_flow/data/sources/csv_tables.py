"""Source of CSV tables with a structure in each row."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pydantic import Field, model_validator

from hydragnn_flow.data.sources.single import from_cif, from_file
from hydragnn_flow.data.sources.structures import (
    Found,
    StructureSource,
    StructuresSection,
    cut,
    lookup,
    reason,
)
from hydragnn_flow.errors import InputError

# The CIF of a large cell is longer than the 128 kB a cell of a table may have by default.
csv.field_size_limit(2**31 - 1)


class CsvSource(StructuresSection):
    """Tables with a structure in each row; labels and groups are columns."""

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


class CsvTables(StructureSource):
    """Reader of tables whose structures are CIF text, or paths relative to the table."""

    def __init__(self, config: CsvSource, folder: Path) -> None:
        super().__init__(config, folder)
        self._column = config.structure

    def files(self) -> list[Path]:
        tables = super().files()
        named = (self._path(row, table) for table in tables for _, row in _rows(table))
        return [*tables, *(path for path in named if path is not None)]

    def ranges(self, file: Path) -> list[tuple[int, int]]:
        n = 0
        for origin, row in _rows(file):
            path = self._path(row, file)
            if path is not None and not path.is_file():
                raise InputError(
                    f"{origin} names {path}, which is not a file; correct the path, which starts "
                    "from the folder of the table"
                )
            n += 1
        return cut(n)

    def structures(self, file: Path, start: int, stop: int) -> Iterator[Found]:
        for origin, row in islice(_rows(file), start, stop):
            cell = lookup(row, self._column, origin, "structure", "structure")
            yield _found(cell, row, file)

    def _path(self, row: dict[str, str | None], file: Path) -> Path | None:
        return _path(row.get(self._column), file)


def count_rows(file: Path) -> int:
    """Count the rows of a table.

    Raises
    ------
    InputError
        If the file is not a table.
    """
    return sum(1 for _ in _rows(file))


def each_row(file: Path, column: str, start: int = 0, stop: int | None = None) -> Iterator[Found]:
    """Yield the structures of a table for prediction, with all cells of their rows.

    Parameters
    ----------
    file
        CSV file of the table.
    column
        Column of the structures, the same as in the training data.
    start, stop
        Range of rows to read, [start, stop).

    Raises
    ------
    InputError
        If the file is not such a table, or a row has no readable structure.
    """
    empty = True
    for origin, row in islice(_rows(file), start, stop):
        empty = False
        cell = row.get(column)
        if cell is None:
            told = "an empty cell" if column in row else "no column"
            raise InputError(
                f"{origin} has {told} {column!r}, where the training data have structures; fill in "
                f"or rename it, or remove the row"
            )
        try:
            yield _found(cell, row, file)
        except Exception as error:  # parsers may raise any exception
            raise InputError(
                f"{origin} cannot be read ({reason(error)}); correct or remove the row"
            ) from None
    if empty:
        raise InputError(f"{file} holds no structures; give a file that does")


def _found(cell: str, row: dict[str, str | None], file: Path) -> Found:
    path = _path(cell, file)
    return Found(from_cif(cell) if path is None else from_file(path), row)


def _path(cell: str | None, file: Path) -> Path | None:
    """Return the file of a row's structure; None if the cell is a CIF, which has several lines."""
    return None if cell is None or "\n" in cell else file.parent / cell


def _rows(file: Path) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Yield name and cells of each row, by column; raise InputError for a malformed table."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            lines = csv.reader(text, strict=True)
            header = next(lines, [])
            if twice := {name for name in header if name and header.count(name) > 1}:
                raise InputError(f"{file} has two columns {min(twice)!r}; rename or remove one")
            for number, cells in enumerate(row for row in lines if row):
                origin = f"{file}: structure {number}"
                if len(cells) != len(header):
                    raise InputError(
                        f"{origin} (line {lines.line_num}) has {len(cells)} cells where the header "
                        f"has {len(header)}; correct the row"
                    )
                if any("\0" in cell for cell in cells):
                    raise InputError(
                        f"{origin} (line {lines.line_num}) holds a NUL; correct the row"
                    )
                yield origin, {name: cell or None for name, cell in zip(header, cells, strict=True)}
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read as a table ({error}); correct it") from error
