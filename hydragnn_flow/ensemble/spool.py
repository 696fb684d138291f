"""Tables that grow in a file: only the last row tells which of their columns are empty."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from hydragnn_flow.ensemble.predictions_table import may_be_absent

_ATTRIBUTES = "PANDAS_ATTRS"
"""Where pandas keeps in a Parquet file what `DataFrame.attrs` hold."""


class Spool:
    """A table that grows in a temporary Parquet file.

    Parameters
    ----------
    path
        The file.
    table
        A first part of the table.
    """

    def __init__(self, path: Path, table: pd.DataFrame) -> None:
        self._path = path
        fields = [(name, _type(table[name])) for name in table]
        self._schema = pa.schema(fields).with_metadata({_ATTRIBUTES: json.dumps(table.attrs)})
        self._empty = set(may_be_absent(table))

    def __enter__(self) -> Spool:
        self._writer = pa.parquet.ParquetWriter(self._path, self._schema)
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def add(self, table: pd.DataFrame) -> None:
        """Add a part of the table."""
        whole = table.reindex(columns=self._schema.names)
        self._empty = {name for name in self._empty if not whole[name].notna().any()}
        self._writer.write_table(pa.Table.from_pandas(whole, self._schema, preserve_index=False))

    def write(self, path: Path, suffix: str) -> None:
        """Write the table without its empty columns; nothing can be added afterwards."""
        self._writer.close()
        names = [name for name in self._schema.names if name not in self._empty]
        schema = pa.schema([self._schema.field(name) for name in names])
        with pa.parquet.ParquetFile(self._path) as file, path.open("wb") as out:
            if suffix == ".csv":
                out.write((",".join(map(_quoted, names)) + "\n").encode())
                options = pa.csv.WriteOptions(include_header=False, quoting_style="needed")
                writer: Any = pa.csv.CSVWriter(out, schema, write_options=options)
            else:
                schema = schema.with_metadata(self._schema.metadata)
                writer = pa.parquet.ParquetWriter(out, schema)
            with writer:
                for number in range(file.num_row_groups):
                    part = file.read_row_group(number, columns=names)
                    writer.write_table(part.replace_schema_metadata(schema.metadata))
            out.flush()
            os.fsync(out.fileno())


def spooled(path: Path) -> Iterator[pd.DataFrame]:
    """The parts of a table in the file of a :class:`Spool`, with their empty columns."""
    with pa.parquet.ParquetFile(path) as file:
        attributes = json.loads(file.schema_arrow.metadata[_ATTRIBUTES.encode()])
        for number in range(file.num_row_groups):
            table = file.read_row_group(number).to_pandas()
            table.attrs = attributes
            yield table


def _type(column: pd.Series[Any]) -> pa.DataType:
    """Arrow's type; columns of objects hold words, or nothing."""
    kinds = {"O": pa.string(), "i": pa.int64(), "b": pa.bool_()}
    return kinds.get(column.dtype.kind, pa.float64())


def _quoted(name: str) -> str:
    """A name in the header of a CSV file."""
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"\n\r') else name
