"""Files of predictions: CSV, Parquet and extended XYZ, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_flow.ensemble.frames import extended_xyz
from hydragnn_flow.ensemble.predicting import Predictable, predict_chunks
from hydragnn_flow.ensemble.predictions_table import Predictions, may_be_absent
from hydragnn_flow.ensemble.structure_files import Progress
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import replacing

if TYPE_CHECKING:
    from hydragnn_flow.ensemble.ensemble import Ensemble

EXTXYZ = ".extxyz"
SUFFIXES = (".csv", ".parquet", EXTXYZ)


class PredictionFiles:
    """Files that predictions are added to, from entering a ``with`` block to leaving it.

    At its end the files appear, complete; after an exception none does. Memory does not grow with
    the number of predictions: they wait in a temporary file, because only the last structure tells
    whether any has a label.

    Parameters
    ----------
    paths
        Files to write, each with one of the :data:`SUFFIXES`. A table of atoms goes to a second
        file, ``NAME_nodes``; extended XYZ holds both.

    Raises
    ------
    InputError
        If a file has another suffix, is in no directory, or is the table of atoms of another.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        for path in paths:
            if path.suffix not in SUFFIXES:
                raise InputError(f"{path}: must end in {' or '.join(SUFFIXES)}")
            if not path.absolute().parent.is_dir():
                raise InputError(f"{path}: there is no directory {path.parent}; make it first")
        of_atoms = {_table(path, "_nodes"): path for path in paths if path.suffix != EXTXYZ}
        for path in paths:
            if (other := of_atoms.get(path)) is not None:
                raise InputError(
                    f"{path}: is where the table of atoms beside {other.name} goes; choose another "
                    f"name"
                )
        self.written: list[Path] = []
        """The files, once they are complete."""
        self._paths = paths
        self._tables: dict[str, _Spool] = {}
        self._structures: list[IO[str]] = []
        self._until_the_end = ExitStack()

    def __enter__(self) -> PredictionFiles:
        with ExitStack() as stack:
            folder = self._paths[0].absolute().parent
            temporary = TemporaryDirectory(prefix=".predictions.", dir=folder)
            self._folder = Path(stack.enter_context(temporary))
            for path in self._paths:
                if path.suffix == EXTXYZ:
                    file = stack.enter_context(replacing(path))
                    self._structures.append(stack.enter_context(file.open("w", encoding="utf-8")))
            self._until_the_end = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._until_the_end.__exit__(kind, error, trace)
            return
        with self._until_the_end as stack:
            for path in self._paths:
                if path.suffix == EXTXYZ:
                    self.written.append(path)
                    continue
                for name, table in self._tables.items():
                    target = _table(path, name)
                    table.write(stack.enter_context(replacing(target)), path.suffix)
                    self.written.append(target)

    def add(self, tables: Predictions, structures: Sequence[Atoms] | None = None) -> None:
        """Add predictions.

        Parameters
        ----------
        tables
            They have the same columns as those before, but for those that may be absent.
        structures
            The structures; needed for extended XYZ.
        """
        for name, table in (("", tables.graphs), ("_nodes", tables.nodes)):
            if table is None:
                continue
            if name not in self._tables:
                spool = _Spool(self._folder / f"table{name}", table)
                self._tables[name] = self._until_the_end.enter_context(spool)
            self._tables[name].add(table)
        for file in self._structures:
            if structures is None:
                raise InputError(
                    f"{EXTXYZ[1:]} is for structures from files, and these are a GraphStore's; "
                    f"choose {' or '.join(SUFFIXES[:-1])}"
                )
            file.write(extended_xyz(with_predictions(structures, tables)))


def _table(path: Path, name: str) -> Path:
    """File of a table, ``name`` behind the stem of the file that was asked for."""
    return path.with_name(f"{path.stem}{name}{path.suffix}")


class _Spool:
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
        # Where pandas keeps what DataFrame.attrs hold.
        self._schema = pa.schema(fields).with_metadata({"PANDAS_ATTRS": json.dumps(table.attrs)})
        self._empty = set(may_be_absent(table))

    def __enter__(self) -> _Spool:
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


class Written(NamedTuple):
    """Predictions that were written."""

    files: list[Path]
    structures: int
    """Number of structures."""
    without: int
    """How many of them could not be predicted."""
    unlike: int
    """How many are predicted, but unlike the data that the ensemble was made with."""


def write_predictions(
    ensemble: Ensemble,
    data: Predictable,
    paths: Sequence[Path],
    *,
    split: str | None = None,
    members: bool = False,
    device: str | torch.device = "cpu",
    say: Callable[[str], None] = print,
    progress: Progress = lambda done, total: None,
) -> Written:
    """Predict any number of structures into files, in memory that does not grow with them.

    Parameters
    ----------
    ensemble
        A loaded ensemble.
    data, split, members, device, say
        As for :meth:`Ensemble.predict`.
    paths
        As for :class:`PredictionFiles`.
    progress
        Told how far the input is read.

    Raises
    ------
    InputError
        As :meth:`Ensemble.predict`, and for extended XYZ of a GraphStore.
    """
    structures = without = unlike = 0
    with PredictionFiles(paths) as files:
        for chunk in predict_chunks(
            ensemble,
            data,
            split=split,
            members=members,
            device=device,
            say=say,
            progress=progress,
            but=paths,
        ):
            files.add(chunk.tables, chunk.structures)
            structures += len(chunk.tables.graphs)
            without += chunk.without
            unlike += chunk.unlike
    return Written(files.written, structures, without, unlike)


def with_predictions(structures: Sequence[Atoms], tables: Predictions) -> list[Atoms]:
    """Copies of structures with their rows of the tables.

    What belongs to a structure is in its `info`, what belongs to atoms in its `arrays`; components
    are one array again.
    """
    graphs, nodes = tables.graphs, tables.nodes
    of_graphs = _together(graphs)
    of_nodes = {} if nodes is None else _together(nodes)
    labels = {name for table in (of_graphs, of_nodes) for name in may_be_absent(table)}
    copies, first = [], 0
    for row, atoms in enumerate(structures):
        copied: Atoms = atoms.copy()  # type: ignore[no-untyped-call]  # without its calculator
        of_atoms = slice(first, first + len(atoms))
        values = {name: column[row] for name, column in of_graphs.items()}
        columns = {name: column[of_atoms] for name, column in of_nodes.items()}
        copied.info |= {name: v for name, v in values.items() if not _is_absent(v, name in labels)}
        copied.arrays |= {
            name: v
            for name, v in columns.items()
            if name not in values and name != "node_index" and not _is_absent(v, name in labels)
        }
        copies.append(copied)
        first += len(atoms)
    return copies


def _together(table: pd.DataFrame) -> dict[str, NDArray[Any]]:
    """Columns by name; those of the components of a target are one, ``[n, d]``."""
    columns = {str(name): column.to_numpy() for name, column in table.items()}
    for target, labels in table.attrs["components"].items():
        if len(labels) == 1:
            continue
        for suffix in [name.removeprefix(labels[0]) for name in columns]:
            names = [f"{label}{suffix}" for label in labels]
            if all(name in columns for name in names):
                together = np.stack([columns.pop(name) for name in names], axis=1)
                columns[f"{target}{suffix}"] = together
    return columns


def _is_absent(value: Any, is_label: bool) -> bool:
    """Whether there is nothing to say: no name, no remark, or no label."""
    if value is None or isinstance(value, str):
        return not value
    return is_label and bool(np.isnan(value).all())


def _type(column: pd.Series[Any]) -> pa.DataType:
    """Arrow's type; columns of objects hold words, or nothing."""
    kinds = {"O": pa.string(), "i": pa.int64(), "b": pa.bool_()}
    return kinds.get(column.dtype.kind, pa.float64())


def _quoted(name: str) -> str:
    """A name in the header of a CSV file."""
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"\n\r') else name
