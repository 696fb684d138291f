"""Structures to predict in files, directories and GraphStores."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ase import Atoms

from hydragnn_flow.data import GraphStore, Manifest
from hydragnn_flow.data.sources.ase_files import UnknownFormat, count_structures, each_structure
from hydragnn_flow.data.sources.csv_tables import each_row
from hydragnn_flow.data.sources.file_names import natural_order
from hydragnn_flow.data.sources.structures import Found
from hydragnn_flow.data.store.manifest import MANIFEST
from hydragnn_flow.ensemble.records import Record, fault_of
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    from hydragnn_flow.ensemble.ensemble import Ensemble

_NAMED = 20
"""Unreadable files that are named one by one."""

Progress = Callable[[int, int | None], None]
"""Called with the number of structures, or of files of a directory, that are done, and in all."""


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
    """

    def __init__(self, path: Path, column: str | None = None, but: Collection[Path] = ()) -> None:
        self._path = path
        self._column = column
        self._but = {file.parent.resolve() / file.name for file in but}

    def records(
        self,
        say: Callable[[str], None] = print,
        progress: Progress = lambda done, total: None,
    ) -> Iterator[Record]:
        """The structures, one after the other.

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
        if self._path.is_dir():
            yield from self._of_directory(say, progress)
            return
        if self._column is None:
            total, structures = count_structures(self._path), each_structure(self._path)
        else:
            total, structures = None, each_row(self._path, self._column)
        for number, found in enumerate(structures):
            progress(number, total)
            yield Record(found, self._path.name, number)

    def _of_directory(self, say: Callable[[str], None], progress: Progress) -> Iterator[Record]:
        with os.scandir(self._path) as entries:
            names = [entry.name for entry in entries if not entry.is_dir()]
        names.sort(key=lambda name: natural_order(Path(name)))
        passed_over, empty = _PassedOver(), True
        folder = self._path.resolve()
        unfinished = tuple(f".{file.name}." for file in self._but)
        for number, name in enumerate(names):
            progress(number, len(names))
            file = self._path / name
            if folder / name in self._but:
                passed_over.written.append(name)
                continue
            if name.startswith(unfinished):
                continue
            if name.startswith(".") or not file.is_file():
                passed_over.strange.append(name)
                continue
            try:
                for frame, found in enumerate(each_structure(file)):
                    yield Record(found, name, frame)
                    empty = False
            except UnknownFormat:
                passed_over.strange.append(name)
            except InputError as error:
                passed_over.unreadable.append(str(error))
        if empty:
            why = "; ".join(passed_over.lines()) or "the directory holds no files"
            raise InputError(f"{self._path}: holds no file of structures that ASE can read ({why})")
        for line in passed_over.lines():
            say(line)


@dataclass
class _PassedOver:
    """Files of a directory that hold no structures that can be read."""

    strange: list[str] = field(default_factory=list)
    """Files that are hidden, broken links, or of a format ASE does not know."""
    unreadable: list[str] = field(default_factory=list)
    """Error of each of the other files."""
    written: list[str] = field(default_factory=list)
    """Files that results are written to."""

    def lines(self) -> Iterator[str]:
        if self.strange:
            yield f"skipped, as they are no structures: {', '.join(self.strange)}"
        if self.written:
            yield f"skipped, as predictions are written to it: {', '.join(self.written)}"
        if self.unreadable:
            n = len(self.unreadable)
            yield f"skipped, as {n} {'file' if n == 1 else 'files'} cannot be read:"
            yield from self.unreadable[:_NAMED]
            if n > _NAMED:
                yield f"and {n - _NAMED} more"


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
        return GraphStore.open(path, mode="random")
    if split is not None:
        raise InputError(f"{path}: is no GraphStore and has no splits; leave --split out")
    source = trained_on.provenance.get("source", {})
    is_table = path.suffix == ".csv" and source.get("format") == "csv"
    return Files(path, source["structure"] if is_table else None, but)


@dataclass
class Structures:
    """All structures of files, the names of their files, and their numbers in these."""

    found: list[Found] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls, path: Path, files: Files, ensemble: Ensemble, say: Callable[[str], None]
    ) -> Structures:
        """Read all; those of a directory that cannot be predicted are left out, and named.

        Raises
        ------
        InputError
            As :meth:`Files.records`, or if there are none.
        """
        read = cls()
        for record in files.records(say):
            why = fault_of(record) or ensemble.refusal(record.found.atoms)
            if path.is_dir() and why:
                say(f"skipped: {path / str(record.file)}: structure {record.frame} {why}")
                continue
            read.found.append(record.found)
            read.files.append(str(record.file))
            read.frames.append(record.frame)
        if not read.found:
            raise InputError(f"{path}: holds no structures that the ensemble can predict")
        return read

    @property
    def atoms(self) -> list[Atoms]:
        """The structures alone."""
        return [one.atoms for one in self.found]

    @property
    def names(self) -> list[str]:
        """Names of the structures: file, and number if the file has several."""
        several = {file for file, frame in zip(self.files, self.frames, strict=True) if frame > 0}
        return [
            f"{file}: structure {frame}" if file in several else file
            for file, frame in zip(self.files, self.frames, strict=True)
        ]

    @contextmanager
    def naming(self, path: Path) -> Iterator[None]:
        """Let errors begin with the path of the file at fault, or else with ``path``."""
        folder = path if path.is_dir() else path.parent
        try:
            yield
        except InputError as error:
            said = str(error)
            of_a_file = said.startswith(tuple(self.files))
            raise InputError(f"{folder / said}" if of_a_file else f"{path}: {said}") from None


def read_path(
    path: Path, ensemble: Ensemble, *, split: str | None, say: Callable[[str], None]
) -> GraphStore | Structures:
    """The store, or all structures, at a path.

    Parameters
    ----------
    path, split
        As for :func:`open_path`.
    ensemble
        Ensemble that is to predict them.
    say
        Told which files and structures of a directory were passed over, and why.

    Raises
    ------
    InputError
        As :func:`open_path` and :meth:`Structures.of`.
    """
    opened = open_path(path, ensemble.manifest, split)
    if isinstance(opened, GraphStore):
        return opened
    return Structures.of(path, opened, ensemble, say)
