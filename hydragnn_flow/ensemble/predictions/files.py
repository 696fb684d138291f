"""Files of predictions: CSV, Parquet and extended XYZ, whole or not at all.

Predictions are first written as *parts*: directories of Parquet files that grow chunk by chunk. A
single process writes one part, the GCDs of a site write many. The files are made from all finished
parts, because only all parts together show which columns of labels are empty.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import torch
from pyarrow import compute, csv, parquet

from hydragnn_flow.ensemble.committee import Committee
from hydragnn_flow.ensemble.predictions.member_predictions import lay_out, predict_members
from hydragnn_flow.ensemble.predictions.structure_files import (
    Graphs,
    Opened,
    Predictable,
    Progress,
    open_structures,
)
from hydragnn_flow.ensemble.predictions.table import (
    GRAPH_ID,
    NODES,
    Chunk,
    extended_xyz,
    may_be_absent,
)
from hydragnn_flow.errors import InputError
from hydragnn_flow.locks import Held, Unlockable, locked

EXTXYZ = ".extxyz"
SUFFIXES = (".csv", ".parquet", EXTXYZ)
_LOCK = "lock"
# Files of a part. None of them has one of the suffixes, so none is where a result is written.
_TABLES = {"": "graphs.part", NODES: "nodes.part"}
_FRAMES = "frames.part"
_ATTRIBUTES = "PANDAS_ATTRS"
"""Key under which pandas keeps `DataFrame.attrs` in a Parquet file."""
_ARROW = {"O": pa.string(), "i": pa.int64(), "b": pa.bool_(), "f": pa.float64()}
"""Arrow's types by the kind of a column's NumPy type; columns of objects hold strings or None."""


class Written(NamedTuple):
    """Result of writing predictions: the files, and the numbers of structures in them."""

    files: list[Path]
    structures: int
    """Number of structures in the files."""
    without: int
    """Number of structures that could not be predicted."""
    unlike: int
    """Number of predicted structures that are unlike the ensemble's training or calibration
    data."""


class PredictionFiles:
    """Writer of prediction files (CSV, Parquet, extended XYZ) from one process or many.

    Used as a context manager, the object locks the files against other writers.

    Parameters
    ----------
    paths
        Files to write, each with one of the :data:`SUFFIXES`. Beside a CSV or Parquet file, a table
        of atoms goes to a second file, ``NAME_nodes``; extended XYZ holds both.

    Raises
    ------
    InputError
        If a file has another suffix, its directory does not exist, or it is where the table of
        atoms beside another file goes. On entering the ``with`` block, if another process writes a
        file.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        for path in paths:
            if path.suffix not in SUFFIXES:
                raise InputError(f"{path}: must end in {' or '.join(SUFFIXES)}")
            if not path.absolute().parent.is_dir():
                raise InputError(f"{path}: there is no directory {path.parent}; make it first")
        self._paths = list(dict.fromkeys(paths))
        tables = [path for path in self._paths if path.suffix != EXTXYZ]
        self.may_write = [*self._paths, *(_beside(path, NODES) for path in tables)]
        """All files that may be written, with the tables of atoms."""
        self.hold_structures = len(tables) < len(self._paths)
        """True if one of the files is extended XYZ."""
        for path in paths:
            if self.may_write.count(path) > 1:
                raise InputError(
                    f"{path}: is where the table of atoms beside another goes; choose another name"
                )
        self._folders: dict[Path, Path] = {}
        self._held = ExitStack()

    def __enter__(self) -> PredictionFiles:
        with ExitStack() as stack:
            self._folders = {path: stack.enter_context(_workplace(path)) for path in self._paths}
            self._held = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def open(self, ensemble: Committee, data: Predictable, split: str | None) -> Opened:
        """Open the structures or graphs to predict, and check that they are no file to write.

        Raises
        ------
        InputError
            If :func:`open_structures` refuses the input, if a file to write is the file that is
            read, or if ``data`` is a GraphStore and a file to write is extended XYZ.
        """
        if isinstance(data, (str, os.PathLike)):
            check_keeps_input(Path(data), self.may_write)
        opened = open_structures(ensemble, data, split, self.may_write)
        if self.hold_structures and isinstance(opened, Graphs):
            raise InputError(
                f"{EXTXYZ[1:]} is for structures from files, and these are a GraphStore's; choose "
                f"{' or '.join(SUFFIXES[:-1])}"
            )
        return opened

    def fill(self, chunks: Iterable[Chunk]) -> Written:
        """Write all predictions to the files, and return the files and counts of structures.

        A chunk holds the predictions of some structures. The tables of all ``chunks`` have the same
        columns.
        """
        folder = self._folders[self._paths[0]]
        counts = write_part(folder, chunks)
        return self.join([(folder, 0)], counts)

    def join(self, parts: Sequence[tuple[Path, int]], counts: Mapping[str, int]) -> Written:
        """Join finished parts of a prediction, in order, and write them to the files.

        A part is a directory from :func:`write_part`. The files appear when all are complete.

        Parameters
        ----------
        parts
            Directory of each part, and the offset to add to the `graph_id` of its structures.
        counts
            Counts of structures in all parts, by name of the field of :class:`Written`.
        """
        complete: dict[Path, Path] = {}
        for path, folder in self._folders.items():
            if path.suffix == EXTXYZ:
                complete[path] = folder / path.name
                _join_frames(parts, complete[path])
                continue
            for name, table in _TABLES.items():
                tables = [(one / table, n) for one, n in parts if (one / table).exists()]
                if tables:
                    target = _beside(path, name)
                    complete[target] = folder / target.name
                    _join_tables(tables, complete[target])
        for target, file in complete.items():
            file.replace(target)
        return Written(list(complete), **counts)


def write_predictions(
    ensemble: Committee,
    data: Predictable,
    paths: Sequence[str | Path],
    *,
    split: str | None = None,
    members: bool = False,
    device: str | torch.device = "cpu",
    say: Callable[[str], None] = print,
    progress: Progress = lambda done, total: None,
) -> Written:
    """Predict structures and write the results to files, in memory independent of their number.

    Parameters
    ----------
    ensemble
        Ensemble that predicts the structures.
    data, split, members, device, say
        Input and options of :meth:`Ensemble.predict`.
    paths
        Files to write, as for :class:`PredictionFiles`.
    progress
        Function called with the number of structures (for a directory: of files) that are done, and
        the total number, or None if it is unknown.

    Raises
    ------
    InputError
        In the same cases as :meth:`Ensemble.predict` and :class:`PredictionFiles`, and if a
        GraphStore is to be written as extended XYZ.
    """
    with PredictionFiles([Path(path) for path in paths]) as files:
        opened = files.open(ensemble, data, split)
        there = ensemble.on_device(device)
        found = predict_members(there, opened, say=say, progress=progress)
        with_structures = files.hold_structures
        return files.fill(lay_out(there, one, members, with_structures) for one in found)


def check_keeps_input(data: Path, paths: Iterable[Path]) -> None:
    """Raise an error if any of the files to write, ``paths``, is the file to read, ``data``.

    Raises
    ------
    InputError
        If writing would replace the structures by their predictions.
    """
    for path in paths:
        if path.exists() and data.exists() and path.samefile(data):
            raise InputError(f"{path}: holds the structures; write to another file")


def write_part(folder: Path, chunks: Iterable[Chunk]) -> dict[str, int]:
    """Write predictions to a directory, a part that :meth:`PredictionFiles.join` can join.

    Parameters
    ----------
    folder
        Existing directory to write to.
    chunks
        Predictions in order, whose tables have the same columns.

    Returns
    -------
    dict
        Counts of structures, by name of the field of :class:`Written`.
    """
    counts = dict.fromkeys(Written._fields[1:], 0)
    with ExitStack() as stack:
        tables: dict[str, Any] = {}
        frames = stack.enter_context((folder / _FRAMES).open("w", encoding="utf-8"))
        for chunk in chunks:
            for name, table in chunk.tables.by_name().items():
                if name not in tables:
                    fields = [(column, _ARROW[table[column].dtype.kind]) for column in table]
                    schema = pa.schema(fields, {_ATTRIBUTES: json.dumps(table.attrs)})
                    writer = parquet.ParquetWriter(folder / _TABLES[name], schema)
                    tables[name] = stack.enter_context(writer)
                schema = tables[name].schema
                tables[name].write_table(pa.Table.from_pandas(table, schema, preserve_index=False))
            if chunk.structures:
                frames.write(extended_xyz(chunk.structures))
            counts["structures"] += len(chunk.tables.graphs)
            counts["without"] += chunk.without
            counts["unlike"] += chunk.unlike
    return counts


@contextmanager
def _workplace(path: Path) -> Iterator[Path]:
    """Context manager: lock and yield a hidden directory beside ``path``, in which the file grows.

    Files that a killed process left in the directory are deleted first. The directory is deleted at
    the end.
    """
    folder = path.with_name(f".{path.name}.writing")
    with ExitStack() as stack:
        try:
            folder.mkdir(exist_ok=True)
            stack.enter_context(locked(folder / _LOCK, 0.0))
        except (Held, FileNotFoundError):  # a process that has just finished deletes it
            raise InputError(
                f"{path}: another process is writing it; wait for it, or name another file"
            ) from None
        except Unlockable as error:
            raise InputError(
                f"{path}: is on a file system that cannot lock files ({error.strerror}); choose a "
                f"directory on another"
            ) from None
        stack.callback(shutil.rmtree, folder)
        for left in folder.iterdir():
            if left.name != _LOCK:
                left.unlink()
        yield folder


def _beside(path: Path, name: str) -> Path:
    return path.with_name(f"{path.stem}{name}{path.suffix}")


def _join_tables(parts: Sequence[tuple[Path, int]], path: Path) -> None:
    """Join tables in one CSV or Parquet file, without optional columns that are empty in all.

    ``parts`` are Parquet files, each with the offset to add to the `graph_id` of its rows. Optional
    are the columns of :func:`may_be_absent`.
    """
    with parquet.ParquetFile(parts[0][0]) as file:
        whole = file.schema_arrow
    empty = may_be_absent(whole.names)
    for part, _ in parts:
        metadata = parquet.read_metadata(part)
        empty = [name for name in empty if not _holds(metadata, name)]
    schema = pa.schema([whole.field(name) for name in whole.names if name not in empty])
    with path.open("wb") as out:
        if path.suffix == ".csv":
            # Arrow would quote all names of columns.
            out.write(pd.DataFrame(columns=schema.names).to_csv(index=False).encode())
            writer: Any = csv.CSVWriter(
                out, schema, write_options=csv.WriteOptions(include_header=False)
            )
        else:
            schema = schema.with_metadata(whole.metadata)
            writer = parquet.ParquetWriter(out, schema)
        with writer:
            for part, first in parts:
                with parquet.ParquetFile(part) as file:
                    for number in range(file.num_row_groups):
                        table = file.read_row_group(number, columns=schema.names)
                        place = schema.get_field_index(GRAPH_ID)
                        numbers = compute.add(table[GRAPH_ID], first)
                        table = table.set_column(place, schema.field(GRAPH_ID), numbers)
                        writer.write_table(table.replace_schema_metadata(schema.metadata))
        out.flush()
        os.fsync(out.fileno())


def _holds(metadata: Any, name: str) -> bool:
    """Return True if the column ``name`` of a Parquet file has values, by the file's statistics."""
    place = metadata.schema.names.index(name)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    # Groups without rows, of structures without atoms, have no statistics.
    return any(one.num_rows and one.column(place).statistics.num_values for one in groups)


def _join_frames(parts: Sequence[tuple[Path, int]], path: Path) -> None:
    """Join the structures of parts in one extended XYZ file, and add the `graph_id` of each.

    ``parts`` are directories, each with the `graph_id` of its first structure, which a part itself
    does not know.
    """
    with path.open("w", encoding="utf-8", newline="\n") as out:
        for part, first in parts:
            with (part / _FRAMES).open(encoding="utf-8", newline="\n") as lines:
                for number, n_atoms in enumerate(lines, first):
                    said = next(lines).rstrip("\n")
                    out.write(f"{n_atoms}{said} {GRAPH_ID}={number}\n")
                    out.writelines(islice(lines, int(n_atoms)))
        out.flush()
        os.fsync(out.fileno())
