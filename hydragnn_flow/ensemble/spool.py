"""Tables that grow in a file: only the last row tells which of their columns are empty."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
from pyarrow import compute, csv, parquet

from hydragnn_flow.ensemble.predictions_table import GRAPH_ID, may_be_absent

_ATTRIBUTES = "PANDAS_ATTRS"
"""Where pandas keeps in a Parquet file what `DataFrame.attrs` hold."""


class Spool:
    """A table that grows in a temporary Parquet file.

    Parameters
    ----------
    path
        The file.
    table
        A first part of the table, not added yet.
    """

    def __init__(self, path: Path, table: pd.DataFrame) -> None:
        fields = [(name, _type(table[name])) for name in table]
        self._schema = pa.schema(fields).with_metadata({_ATTRIBUTES: json.dumps(table.attrs)})
        self._writer = parquet.ParquetWriter(path, self._schema)

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, table: pd.DataFrame) -> None:
        """Add a part of the table."""
        whole = table.reindex(columns=self._schema.names)
        self._writer.write_table(pa.Table.from_pandas(whole, self._schema, preserve_index=False))

    def close(self) -> None:
        """Complete the file; nothing can be added afterwards."""
        self._writer.close()


class Spooled(NamedTuple):
    """A table, or a part of one, in the complete file of a :class:`Spool`."""

    file: Path
    first: int = 0
    """What is added to the numbers of its structures."""


def write_table(parts: Sequence[Spooled], path: Path, suffix: str) -> None:
    """Write a table in one or several parts, without columns that are empty in all of them.

    Parameters
    ----------
    parts
        They have the same columns.
    path, suffix
        File to write, as CSV or Parquet.
    """
    empty: set[str] | None = None
    for part in parts:
        with parquet.ParquetFile(part.file) as file:
            whole = file.schema_arrow
            candidates = may_be_absent(whole.names) if empty is None else empty
            empty = {name for name in candidates if not _holds(file.metadata, name)}
    schema = pa.schema([whole.field(name) for name in whole.names if name not in (empty or ())])
    with path.open("wb") as out:
        if suffix == ".csv":
            out.write((",".join(map(_quoted, schema.names)) + "\n").encode())
            options = csv.WriteOptions(include_header=False, quoting_style="needed")
            writer: Any = csv.CSVWriter(out, schema, write_options=options)
        else:
            schema = schema.with_metadata(whole.metadata)
            writer = parquet.ParquetWriter(out, schema)
        with writer:
            for part in parts:
                with parquet.ParquetFile(part.file) as file:
                    for number in range(file.num_row_groups):
                        table = file.read_row_group(number, columns=schema.names)
                        writer.write_table(_numbered(table, part.first, schema))
        out.flush()
        os.fsync(out.fileno())


def _numbered(table: pa.Table, first: int, schema: pa.Schema) -> pa.Table:
    if first:
        place = table.schema.get_field_index(GRAPH_ID)
        numbers = compute.add(table[GRAPH_ID], first)
        table = table.set_column(place, schema.field(GRAPH_ID), numbers)
    return table.replace_schema_metadata(schema.metadata)


def _holds(metadata: Any, name: str) -> bool:
    """Whether a column of a Parquet file has any values, by the file's own statistics."""
    place = metadata.schema.names.index(name)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    # Groups without rows, of structures without atoms, have no statistics.
    return any(one.num_rows and one.column(place).statistics.num_values for one in groups)


def _type(column: pd.Series[Any]) -> pa.DataType:
    """Arrow's type; columns of objects hold words, or nothing."""
    kinds = {"O": pa.string(), "i": pa.int64(), "b": pa.bool_()}
    return kinds.get(column.dtype.kind, pa.float64())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"\n\r') else name
