"""Input of predictions: structures one after the other with their origin, or graphs of a store.

Structures lie in a file that ASE reads, in the files of a directory, in a table, or in a list.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms
from ase.data import chemical_symbols

from hydragnn_flow.data import GraphSplit, GraphStore, Manifest
from hydragnn_flow.data.reading.graph_store import open_foreign
from hydragnn_flow.data.sources.ase_files import UnknownFormat, count_structures, each_structure
from hydragnn_flow.data.sources.csv_tables import count_rows, each_row
from hydragnn_flow.data.sources.file_names import natural_order
from hydragnn_flow.data.sources.single import check_sites
from hydragnn_flow.data.sources.structures import Found, name_of
from hydragnn_flow.data.store.manifest import MANIFEST
from hydragnn_flow.data.store.origins import named
from hydragnn_flow.ensemble.committee import Committee
from hydragnn_flow.ensemble.predictions.inputs import (
    check_store,
    check_structures,
    current,
    graph_inputs,
)
from hydragnn_flow.ensemble.predictions.table import GRAPH_ID, ID
from hydragnn_flow.errors import InputError

_NAMED = 20
"""Maximum number of unreadable files that messages list."""
_COUNTED = frozenset({".extxyz", ".xyz", ".traj", ".db", ".json", ".csv"})
"""Suffixes of files whose structures can be counted without reading them, and read from the middle
on."""
_STRANGE = "not structure files"
_WRITTEN = "predictions are written to it"

Predictable = Atoms | Sequence[Atoms] | str | Path | GraphStore

Progress = Callable[[int, int | None], None]
"""Function called with the number of structures (for a directory: of files) that are done, and the
total number, or None if it is unknown."""


class Piece(NamedTuple):
    """Range of structures in a file, or in a split of a store."""

    name: str
    """Name of the file or split."""
    start: int = 0
    """Index of the first structure, from 0."""
    stop: int | None = None
    """Index after the last structure; None for the end of the file or split."""


class Record(NamedTuple):
    """Structure to predict, with values that may be labels, its file and its index there."""

    found: Found
    """Structure with all values that its file or calculator holds."""
    file: str | None = None
    """Name of the structure's file; None if it does not come from a file."""
    frame: int = 0
    """Index of the structure in the file, from 0."""

    @property
    def atoms(self) -> Atoms:
        """Structure as ASE atoms, without the other values of the file."""
        return self.found.atoms

    @property
    def place(self) -> tuple[str | None, int]:
        """File of the structure, its own if a table names one, and its index there."""
        own = self.found.file
        return (self.file, self.frame) if own is None else (str(own), 0)

    @property
    def fault(self) -> str | None:
        """Reason why no ensemble can predict the structure, or None.

        An example is a site that is partly occupied.
        """
        if self.file is None:
            return None  # occupancies may be those of the file that it was once made of
        try:
            check_sites(self.atoms)
        except ValueError as error:
            return str(error)
        return None


class Graphs(NamedTuple):
    """Input of a prediction that is a GraphStore: the graphs of the requested splits."""

    store: GraphStore
    splits: Sequence[GraphSplit]
    """Requested splits, without empty ones."""

    @property
    def path(self) -> Path:
        """Path of the store."""
        return self.store.path

    def files(self) -> list[Path]:
        """Return the paths of all files of the store."""
        return sorted(self.path.rglob("*")) if self.path.is_dir() else [self.path]

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Return an iterator over the name of each split and its number of graphs."""
        return ((one.name, len(one)) for one in self.splits)


class Files:
    """Input of a prediction that is a file of structures, a table, or a directory of files.

    Files of a directory have the order in which training reads them: ``run-2`` before ``run-10``.

    Parameters
    ----------
    path
        Path of the file or directory.
    column
        Column of the structures, if the file is a table like the training data; None otherwise.
    but
        Files of the directory that are not read, because results are written to them.
    inputs
        Names of the values that the networks read of each structure besides its atoms. A value that
        a table or database has elsewhere is copied to `Atoms.info`.
    types
        Elements of the types 1, 2, … in files of LAMMPS, as in the training data; None if unknown.
    """

    def __init__(
        self,
        path: Path,
        column: str | None = None,
        but: Collection[Path] = (),
        inputs: Sequence[str] = (),
        types: Sequence[str] | None = None,
    ) -> None:
        self.path, self._types = path, types
        self.is_directory = path.is_dir()
        self.passed_over: dict[str, str] = {}
        """Reason for skipping a file of the directory, or the rest of a file, by its name."""
        self._column, self._inputs = column, inputs
        here = path.resolve()
        self._but = {file.name for file in but if file.parent.resolve() == here}

    def names(self) -> list[str]:
        """Return the names of the files, in order; some files may hold no structures."""
        if not self.is_directory:
            return [self.path.name]
        with os.scandir(self.path) as entries:
            names = [entry.name for entry in entries if not entry.is_dir()]
        return sorted(names, key=lambda name: natural_order(Path(name)))

    def files(self) -> list[Path]:
        """Return the paths of the files to read."""
        return [self._file(name) for name in self.names() if self._is_input(name)]

    def sizes(self) -> Iterator[tuple[str, int | None]]:
        """Yield the name of each file, and its number of structures.

        The number is None if only reading the file would tell it, or if the file is not read.

        Raises
        ------
        InputError
            If a table cannot be read.
        """
        for name in self.names():
            can_be_counted = self._is_input(name) and _COUNTED & {*Path(name).suffixes}
            yield name, self._count(name) if can_be_counted else None

    def records(
        self, say: Callable[[str], None], progress: Progress = lambda done, total: None
    ) -> Iterator[Record]:
        """Read all files in order, and yield their structures.

        Parameters
        ----------
        say
            Function called, at the end, with lines on skipped files of a directory.
        progress
            Function called before each structure with the number of structures (for a directory: of
            files) that are done, and the total number, or None if it is unknown.

        Raises
        ------
        InputError
            If the file cannot be read, or no file of the directory can be.
        """
        names, read = self.names(), 0
        total = None if self._column is not None or self.is_directory else self._count(names[0])
        for number, name in enumerate(names):
            for record in self.read(Piece(name)):
                progress(*(number, len(names)) if self.is_directory else (read, total))
                yield record
                read += 1
        self.tell_passed_over(read, say)

    def read(self, piece: Piece) -> Iterator[Record]:
        """Read and yield the structures of a piece, which is a range of one file.

        A file of a directory that cannot be read, or to which predictions are written, is skipped,
        and the reason added to :attr:`passed_over`.

        Raises
        ------
        InputError
            If :attr:`path` is a file, not a directory, and cannot be read.
        """
        name, start, stop = piece
        file, why = self._file(name), _STRANGE
        if name in self._but:
            why = _WRITTEN
        elif not self.is_directory or (self._is_input(name) and file.is_file()):
            try:
                for frame, found in enumerate(self._found(file, start, stop), start):
                    yield Record(found, name, frame)
                return
            except InputError as error:
                if not self.is_directory:
                    raise
                why = _STRANGE if isinstance(error, UnknownFormat) else str(error)
        self.passed_over[name] = why

    def tell_passed_over(self, structures: int, say: Callable[[str], None]) -> None:
        """Report the skipped files of a directory, after all structures are read.

        Parameters
        ----------
        structures
            Number of structures that were read.
        say
            Function called with each line.

        Raises
        ------
        InputError
            If :attr:`path` is a directory and ``structures`` is 0.
        """
        lines = list(self._passed_over())
        if self.is_directory and not structures:
            why = "; ".join(lines) or "the directory holds no files"
            raise InputError(f"{self.path}: holds no file of structures that ASE can read ({why})")
        for line in lines:
            say(line)

    def _file(self, name: str) -> Path:
        return self.path / name if self.is_directory else self.path

    def _is_input(self, name: str) -> bool:
        return not self.is_directory or not (name.startswith(".") or name in self._but)

    def _count(self, name: str) -> int | None:
        """Return the number of structures in a file; None if only reading all would tell it."""
        if self._column is not None:
            return count_rows(self.path)
        return count_structures(self._file(name))

    def _passed_over(self) -> Iterator[str]:
        for why in (_STRANGE, _WRITTEN):
            if names := [name for name, said in self.passed_over.items() if said == why]:
                yield f"skipped ({why}): {', '.join(names)}"
        reasons = [said for said in self.passed_over.values() if said not in (_STRANGE, _WRITTEN)]
        if n := len(reasons):
            yield f"skipped ({n} {'file' if n == 1 else 'files'} that cannot be read):"
            yield from reasons[:_NAMED]
            if n > _NAMED:
                yield f"and {n - _NAMED} more"

    def _found(self, file: Path, start: int, stop: int | None) -> Iterator[Found]:
        if self._column is not None:
            structures = each_row(file, self._column, start, stop)
        else:
            structures = each_structure(file, start, stop, self._types)
        for found in structures:
            said = {name: found.values[name] for name in self._inputs if name in found.values}
            found.atoms.info.update(said)
            yield found


Opened = Graphs | Files | list[Record]


def open_path(
    path: Path, trained_on: Manifest, split: str | None = None, but: Collection[Path] = ()
) -> GraphStore | Files:
    """Open the structures or graphs at a path.

    Parameters
    ----------
    path
        File that ASE reads, directory of such files, GraphStore, or table of structures if the
        training data were one.
    trained_on
        Manifest of the store that the members were trained on.
    split
        Name of a split, or None; only a GraphStore has splits.
    but
        Files of a directory that are not read.

    Raises
    ------
    InputError
        If nothing is at the path, or if a split is named and the path is not that of a GraphStore.
    """
    if not path.exists():
        raise InputError(f"{path}: does not exist; correct the path of the structures")
    if (path / MANIFEST).is_file() or path.suffix == ".bp":
        return open_foreign(path)
    if split is not None:
        raise InputError(f"{path}: is no GraphStore and has no splits; leave --split out")
    tables = [one for one in trained_on.sources if one.get("format") == "csv"]
    is_table = path.suffix == ".csv" and tables
    column = tables[0]["structure"] if is_table else None
    types = {tuple(said) for one in trained_on.sources if (said := one.get("types"))}
    return Files(path, column, but, graph_inputs(trained_on), *(types if len(types) == 1 else ()))


def open_structures(
    ensemble: Committee,
    data: Predictable,
    split: str | None = None,
    but: Collection[Path] = (),
) -> Opened:
    """Open the input of a prediction; raise an error if the ensemble cannot read it.

    Parameters
    ----------
    ensemble
        Ensemble that is to predict the input.
    data
        ASE structures, the path of structures or of a GraphStore, or an open GraphStore.
    split
        Name of the split of a GraphStore; None for all splits, in the order of the store.
    but
        Files of a directory that are not read.

    Raises
    ------
    InputError
        If there is nothing to predict, or the input lacks something that the ensemble reads.
    """
    opened: object = data
    if isinstance(data, (str, os.PathLike)):
        opened = open_path(Path(data), ensemble.manifest, split, but)
    if isinstance(opened, GraphStore):
        check_store(opened, ensemble.manifest)
        ensemble.branches.check_known(opened)
        splits = [opened[name] for name in (opened.splits if split is None else [split])]
        splits = [one for one in splits if len(one) > 0]
        if not splits:
            raise InputError(
                f"{opened.path}: {split or 'the store'} holds no structures to predict"
            )
        return Graphs(opened, splits)
    if split is not None:
        raise InputError("structures have no splits; leave split out")
    ensemble.check_reads_structures()
    if isinstance(opened, Files):
        return opened
    return [Record(current(atoms)) for atoms in check_structures(opened)]


def readable_records(
    ensemble: Committee, files: Files, say: Callable[[str], None] = print
) -> dict[str, Record]:
    """Read all structures of files into memory, and return them by their names in messages.

    Structures of a directory that cannot be predicted are left out, and reported by calls of
    ``say``. A single file keeps such structures.

    Raises
    ------
    InputError
        If the files cannot be read, or no structure is left.
    """
    kept = []
    for record in files.records(say):
        why = record.fault
        try:
            ensemble.graphs.graph(record.atoms)
        except InputError as error:
            why = why or str(error)
        if files.is_directory and why:
            say(f"skipped: {files.path / str(record.file)}: structure {record.frame} {why}")
        else:
            kept.append(record)
    if not kept:
        raise InputError(f"{files.path}: holds no structures that the ensemble can predict")
    return by_name(kept, files.path)


def store_records(store: GraphStore) -> dict[str, Record]:
    """Convert a store's graphs back to structures, by their names in messages, without labels.

    In a record, ``file`` is the name of the split and ``frame`` the `graph_id`. Its values are
    those of :meth:`.GraphSplit.origins_of`.

    Raises
    ------
    InputError
        If the nodes of the graphs are not atoms.
    """
    if not store.manifest.has_atoms:
        raise InputError(
            f"{store.path}: the first feature of its nodes is no atomic number; give the files it "
            f"was made of"
        )
    records = {}
    for name in store.splits:
        split = store[name]
        origins = split.origins_of(np.arange(len(split)))
        for i, (graph, number) in enumerate(zip(split, split.graph_id.tolist(), strict=True)):
            cell, pbc = (graph.get(key, None) for key in ("cell", "pbc"))
            atoms = Atoms(
                graph.x[:, 0].numpy().astype(int),
                graph.pos.numpy(),
                cell=None if cell is None else cell.numpy(),
                pbc=None if pbc is None else pbc.numpy(),
            )
            said = {key: column[i] for key, column in origins.items()}
            records[f"{store.path}: {split.where(i)}"] = Record(Found(atoms, said), name, number)
    return records


def origins(records: Sequence[Record], first: int) -> dict[str, list[Any]]:
    """Return the first columns of the predictions table: the origin of each structure.

    Parameters
    ----------
    records
        Structures of the rows, in order.
    first
        Value of `graph_id` for the first structure; the next ones count up.
    """
    columns: dict[str, list[Any]] = {GRAPH_ID: list(range(first, first + len(records)))}
    if any(record.file is not None for record in records):
        columns["file"], columns["frame"] = map(list, zip(*(r.place for r in records), strict=True))
    columns["formula"] = [_formula(record.atoms) for record in records]
    columns[ID] = [name_of(record.found.values) for record in records]
    return columns


def by_name(records: Sequence[Record], path: Path | None = None) -> dict[str, Record]:
    """Return structures by their names in messages, such as `new.xyz: structure 3`.

    A name consists of the file of the structure, at or in ``path``, its index and its id in the
    file. If ``path`` is None, the name is the index in ``records``, such as `structure 0`.
    """
    if path is None:
        return {f"structure {number}": record for number, record in enumerate(records)}
    folder = path if path.is_dir() else path.parent
    several = {record.file for record in records if record.frame > 0}
    names = [
        named(
            f"{folder / str(file)}{f': structure {frame}' if file in several else ''}",
            name_of(found.values),
        )
        for found, file, frame in records
    ]
    return dict(zip(names, records, strict=True))


@contextmanager
def naming(path: Path, names: Iterable[str]) -> Iterator[None]:
    """Context manager that puts ``path`` before the message of an `InputError` raised inside.

    An error that begins with one of ``names`` is left as it is.
    """
    try:
        yield
    except InputError as error:
        said = str(error)
        raise InputError(said if said.startswith(tuple(names)) else f"{path}: {said}") from None


def _formula(atoms: Atoms) -> str:
    if any(number not in range(len(chemical_symbols)) for number in atoms.numbers.tolist()):
        return ""
    return str(atoms.symbols.formula.format("hill"))
