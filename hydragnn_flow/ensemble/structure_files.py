"""Structures to predict in files, directories and GraphStores."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from hydragnn_flow.data import GraphStore, Manifest
from hydragnn_flow.data.reading.graph_store import open_foreign
from hydragnn_flow.data.sources.ase_files import UnknownFormat, count_structures, each_structure
from hydragnn_flow.data.sources.csv_tables import count_rows, each_row
from hydragnn_flow.data.sources.file_names import natural_order
from hydragnn_flow.data.sources.structures import Found
from hydragnn_flow.data.store.manifest import MANIFEST
from hydragnn_flow.ensemble.inputs import graph_inputs
from hydragnn_flow.ensemble.records import Record
from hydragnn_flow.errors import InputError

_NAMED = 20
"""Unreadable files that are named one by one."""

Progress = Callable[[int, int | None], None]
"""Called with the number of structures, or of files of a directory, that are done, and in all."""


class Piece(NamedTuple):
    """Structures that lie together: in a file, or in a split of a store."""

    name: str
    """Name of the file or split."""
    start: int = 0
    """The first of them, counted from 0."""
    stop: int | None = None
    """The first that does not belong to them; None if they reach to the end."""


@dataclass
class PassedOver:
    """Files of a directory that hold no structures that can be read."""

    strange: list[str] = field(default_factory=list)
    """Files that are hidden, broken links, or of a format ASE does not know."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Errors of the other files, by name."""
    written: list[str] = field(default_factory=list)
    """Files that results are written to."""

    def say(self, folder: Path, structures: int, say: Callable[[str], None]) -> None:
        """Tell the user, when all is read.

        Parameters
        ----------
        folder
            The directory.
        structures
            Number of those that were read.
        say
            Told.

        Raises
        ------
        InputError
            If there were none.
        """
        if not structures:
            why = "; ".join(self._lines()) or "the directory holds no files"
            raise InputError(f"{folder}: holds no file of structures that ASE can read ({why})")
        for line in self._lines():
            say(line)

    def _lines(self) -> Iterator[str]:
        if self.strange:
            yield f"skipped, as they are no structures: {', '.join(self.strange)}"
        if self.written:
            yield f"skipped, as predictions are written to it: {', '.join(self.written)}"
        if self.unreadable:
            n = len(self.unreadable)
            yield f"skipped, as {n} {'file' if n == 1 else 'files'} cannot be read:"
            yield from islice(self.unreadable.values(), _NAMED)
            if n > _NAMED:
                yield f"and {n - _NAMED} more"


class Files:
    """A file that ASE reads, or the files right in a directory.

    They come in the order in which training reads them: ``run-2`` before ``run-10``.

    Parameters
    ----------
    path
        File or directory.
    column
        Column of the structures, if the file is a table as the training data were.
    but
        Files that are not read in a directory, as results are written to them.
    inputs
        What the networks read of each structure besides its atoms: it is put into `Atoms.info`,
        where it is said elsewhere, as in a table or a database.
    """

    def __init__(
        self,
        path: Path,
        column: str | None = None,
        but: Collection[Path] = (),
        inputs: Sequence[str] = (),
    ) -> None:
        self.path = path
        self._inputs = inputs
        self.is_directory = path.is_dir()
        self._column = column
        here = path.resolve()
        self._but = {file.name for file in but if file.parent.resolve() == here}

    def names(self) -> list[str]:
        """Names of the files, in order; some may hold no structures."""
        if not self.is_directory:
            return [self.path.name]
        with os.scandir(self.path) as entries:
            names = [entry.name for entry in entries if not entry.is_dir()]
        return sorted(names, key=lambda name: natural_order(Path(name)))

    def file(self, name: str) -> Path:
        """The file of a name."""
        return self.path / name if self.is_directory else self.path

    def is_written(self, name: str) -> bool:
        """Whether results are written to a file of the directory."""
        return name in self._but

    def count(self, name: str) -> int | None:
        """Number of structures in a file; None if it is not known without reading all of them.

        Raises
        ------
        InputError
            If a table cannot be read.
        """
        if self._column is not None:
            return count_rows(self.path)
        return count_structures(self.file(name))

    def records(
        self,
        say: Callable[[str], None] = print,
        progress: Progress = lambda done, total: None,
    ) -> Iterator[Record]:
        """All structures, one after the other.

        Parameters
        ----------
        say
            Told which files of a directory were passed over, and why.
        progress
            Told how far the reading is.

        Raises
        ------
        InputError
            If the file cannot be read, or the directory holds none that can.
        """
        passed_over, read, names = PassedOver(), 0, self.names()
        total = None if self._column is not None or self.is_directory else self.count(names[0])
        for number, name in enumerate(names):
            if self.is_directory:
                progress(number, len(names))
            for record in self.read(Piece(name), passed_over):
                if not self.is_directory:
                    progress(read, total)
                yield record
                read += 1
        if self.is_directory:
            passed_over.say(self.path, read, say)

    def read(self, piece: Piece, passed_over: PassedOver) -> Iterator[Record]:
        """The structures of a piece, one after the other.

        Parameters
        ----------
        piece
            Which.
        passed_over
            A file of a directory is added to it that holds none, or breaks off.

        Raises
        ------
        InputError
            If a file that is not in a directory cannot be read.
        """
        name, start, stop = piece
        file = self.file(name)
        if not self.is_directory:
            for frame, found in enumerate(self._found(file, start, stop), start):
                yield Record(found, name, frame)
        elif name in self._but:
            passed_over.written.append(name)
        elif name.startswith(".") or not file.is_file():
            passed_over.strange.append(name)
        else:
            try:
                for frame, found in enumerate(self._found(file, start, stop), start):
                    yield Record(found, name, frame)
            except UnknownFormat:
                passed_over.strange.append(name)
            except InputError as error:
                passed_over.unreadable[name] = str(error)

    def _found(self, file: Path, start: int, stop: int | None) -> Iterator[Found]:
        if self._column is not None:
            structures = each_row(file, self._column, start, stop)
        else:
            structures = each_structure(file, start, stop)
        for found in structures:
            said = {name: found.values[name] for name in self._inputs if name in found.values}
            found.atoms.info.update(said)
            yield found


def open_path(
    path: Path, trained_on: Manifest, split: str | None = None, but: Collection[Path] = ()
) -> GraphStore | Files:
    """What there is at a path to predict.

    Parameters
    ----------
    path
        A file ASE reads, a directory of such files, a GraphStore, or a table of structures if the
        training data were one.
    trained_on
        Manifest of the store the members were trained on.
    split
        Of a GraphStore.
    but
        Files of a directory that are not read.

    Raises
    ------
    InputError
        If there is nothing, or a split of what has none.
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
    return Files(path, column, but, graph_inputs(trained_on))
