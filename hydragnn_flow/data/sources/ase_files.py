"""Anything ASE reads, with the labels ASE finds in it."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydragnn_flow.config.sources import Level
from hydragnn_flow.data.sources.structures import (
    Found,
    StructureSource,
    StructuresSection,
    cut,
    reason,
)
from hydragnn_flow.data.sources.xyz_frames import count_frames, read_frames
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    import ase

_OF_ATOMS = ("forces", "energies", "stresses", "charges", "magmoms", "born_effective_charges")
"""Results of calculations that belong to atoms; of all others each structure has one."""
_MARKS = {
    "vasp-out": b"FREE ENERGIE OF THE ION-ELECTRON SYSTEM",
    "vasp-xml": b"</calculation>",
}
"""Text that occurs once in each step of a run; counting it is faster than reading the steps."""


class AseSource(StructuresSection):
    """Anything ASE reads.

    Labels and groups are looked for in the results of a calculation, in what a file says of a whole
    structure (`Atoms.info`), in its columns (`Atoms.arrays`), and in the key-value pairs and data
    of an ase.db.
    """

    reads = "anything ASE reads"
    labels = "what ASE finds in the files"

    def open(self, folder: Path, seed: int) -> AseFiles:
        return AseFiles(self, folder)


class AseFiles(StructureSource):
    """Files in any format ASE reads.

    Extended XYZ, trajectories and databases are cut into ranges; of other formats, which can only
    be read from the beginning, each file is one chunk.
    """

    def ranges(self, file: Path) -> list[tuple[int, int]]:
        from ase.io.formats import get_ioformat

        format = format_of(file)
        if format in _COUNTS:
            return cut(_COUNTS[format](file))
        if get_ioformat(format).single:
            n = 1  # nobody wants thousands of such files opened to be told so
        elif format in _MARKS:
            n = _count_marks(file, _MARKS[format])
        else:
            n = sum(1 for _ in _iread(file, format))
        return [(0, n)] if n else []

    def structures(self, file: Path, start: int, stop: int) -> Iterator[Found]:
        format = format_of(file)
        if format in ("db", "json"):
            yield from _rows(file, start, stop)
            return
        if format == "extxyz":
            images = read_frames(file, start, stop)
        elif format == "traj":
            images = _iread(file, format, slice(start, stop))
        else:
            images = islice(_iread(file, format), start, stop)
        yield from map(said_of, images)


class UnknownFormat(InputError):
    """A file of a format that ASE does not know."""


def each_structure(file: Path, start: int = 0, stop: int | None = None) -> Iterator[Found]:
    """The structures of a file, one after the other, with all that the file says of them.

    Parameters
    ----------
    file
        The file.
    start, stop
        Read only the structures in [start, stop). Of a file that cannot be counted, all before
        ``start`` are read too.

    Raises
    ------
    UnknownFormat
        If ASE does not know what the file is.
    InputError
        If it cannot be read, or holds no structures.
    """
    empty = True
    try:
        for found in _each(file, start, stop):
            yield found
            empty = False
    except InputError:
        raise
    except Exception as error:  # parsers raise whatever their lines run into
        raise InputError(f"{file} cannot be read ({reason(error)}); correct it") from None
    if empty:
        raise InputError(f"{file} holds no structures; give a file that does")


def count_structures(file: Path) -> int | None:
    """Number of structures in a file; None if it is not known without reading all of them."""
    try:
        count = _COUNTS.get(format_of(file))
        return None if count is None else count(file)
    except Exception:  # said when the file is read
        return None


def _each(file: Path, start: int, stop: int | None) -> Iterator[Found]:
    format = format_of(file)
    if format in ("db", "json"):
        return _rows(file, start, _count_rows(file) if stop is None else stop)
    # ASE takes an empty line for the end and would pass over all that follows.
    if format == "extxyz":
        return map(said_of, read_frames(file, start, sys.maxsize if stop is None else stop))
    if format == "traj":
        return map(said_of, _iread(file, format, slice(start, stop)))
    return map(said_of, islice(_iread(file, format), start, stop))


def format_of(file: Path) -> str:
    """ASE's name for the format of a file, by its name if that is enough, otherwise by its content.

    Raises
    ------
    UnknownFormat
        If ASE does not know.
    """
    from ase.io.formats import UnknownFileTypeError, filetype, get_ioformat, ioformats

    try:
        # ASE compares hundreds of patterns; with thousands of files that is worth doing once.
        format = filetype(str(file), read=False)
        if format in _COUNTS or (format in ioformats and ioformats[format].single):
            return format
    except UnknownFileTypeError:
        pass
    try:
        return str(get_ioformat(filetype(str(file))).name)
    except UnknownFileTypeError:
        raise UnknownFormat(
            f"{file} is of no format ASE knows; convert it, or leave it out by a pattern such as "
            "*.extxyz"
        ) from None


def _iread(file: Path, format: str, index: slice = slice(None)) -> Iterator[ase.Atoms]:
    from ase.io import iread

    # Otherwise ASE takes what follows an @ in a file's name for an index.
    return iread(str(file), index, format, do_not_split_by_at_sign=True)


def said_of(atoms: ase.Atoms) -> Found:
    """A structure with all that may be a label of it.

    Results, then what is said of the structure, then columns; the first of a name counts.
    """
    results = {} if atoms.calc is None else atoms.calc.results
    columns = {k: v for k, v in atoms.arrays.items() if k not in ("numbers", "positions")}
    levels: dict[str, Level] = dict.fromkeys(columns, "node")
    levels |= dict.fromkeys(atoms.info, "graph")
    levels |= {key: "node" if key in _OF_ATOMS else "graph" for key in results}
    return Found(atoms, columns | atoms.info | results, levels)


def _count_marks(file: Path, mark: bytes) -> int:
    from ase.io.formats import open_with_compression

    with open_with_compression(str(file), "rb") as lines:
        return sum(mark in line for line in lines)


def _count_images(file: Path) -> int:
    from ase.io import Trajectory

    open_trajectory: Any = Trajectory  # ASE has no types
    with open_trajectory(str(file)) as trajectory:
        return len(trajectory)


def _count_rows(file: Path) -> int:
    return int(_database(file).count())


def _rows(file: Path, start: int, stop: int) -> Iterator[Found]:
    if start == stop:
        return  # a limit of 0 would be none
    for row in _database(file).select(offset=start, limit=stop - start, sort="id"):
        found = said_of(row.toatoms())
        said: Mapping[str, Any] = {**row.data, **row.key_value_pairs}
        values = {"id": row.id, **said, **found.values}
        yield Found(found.atoms, values, found.levels)


def _database(file: Path) -> Any:
    """An ase.db to read from; no other SQLite database, in which ASE would make its tables."""
    import ase.db

    connect: Any = ase.db.connect  # ASE has no types
    if file.suffix == ".db":
        address = f"{file.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if ("systems",) not in tables.fetchall():
                raise InputError(f"{file} is a database, but no ase.db; give one that ASE wrote")
    return connect(file, use_lock_file=False)


_COUNTS: dict[str, Callable[[Path], int]] = {
    "extxyz": count_frames,
    "traj": _count_images,
    "db": _count_rows,
    "json": _count_rows,
}
"""Formats that can be counted, and entered at a structure, without reading all before it."""
