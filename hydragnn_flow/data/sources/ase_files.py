"""Source of all formats that ASE reads, with labels; extended XYZ is read in ranges."""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from io import StringIO
from itertools import compress, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from hydragnn_flow.config.sources import Level
from hydragnn_flow.data.layouts import (
    array_format,
    array_structures,
    count_arrays,
    files_beside,
)
from hydragnn_flow.data.sources.base import Chunk
from hydragnn_flow.data.sources.beyond_ase import (
    BOM,
    LAMMPS,
    QM9,
    check_single,
    cif_structures,
    converged,
    element,
    lammps_structures,
    plain_frame,
)
from hydragnn_flow.data.sources.structures import (
    Found,
    StructureSource,
    StructuresSection,
    cut,
    no_structures,
    readable,
)
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    import ase

_logger = logging.getLogger(__name__)


def count_frames(file: Path) -> int:
    """Count the structures in an extended XYZ file.

    Raises
    ------
    InputError
        If the file ends within a structure, or lines are not in the order of the format.
    """
    return sum(1 for _ in _frames(file))


def read_frames(file: Path, start: int, stop: int | None) -> Iterator[ase.Atoms]:
    """Yield structures [start, stop) of an extended XYZ file; to its end if ``stop`` is None.

    The walk to ``start`` costs a hundredth of reading the structures that it skips.

    Raises
    ------
    InputError
        If the file ends within a structure, or lines are not in the order of the format.
    """
    from ase.io import iread

    for frame in islice(_frames(file), start, stop):
        try:
            yield from iread(StringIO(plain_frame(frame)), index=slice(0, 1), format="extxyz")
        except KeyError as error:
            raise ValueError(f"{error} is no chemical element") from None
        except ValueError as error:
            if re.search(r"'[-+]?\d+,\d+'", str(error)):
                raise ValueError(f"{error}, which has a decimal comma; write a point") from None
            raise


def _frames(file: Path) -> Iterator[bytes]:
    from ase.io.formats import open_with_compression

    with open_with_compression(str(file), "rb") as lines:
        line, number = lines.readline().removeprefix(BOM.encode()), 0
        while line.strip():
            where = f"{file}: structure {number}"
            n_atoms = int(line) if line.strip().isdigit() else None
            if n_atoms is None:
                said = line.strip()[:40].decode(errors="replace")
                raise InputError(
                    f"{where} begins with {said!r}, not with its number of atoms; "
                    "correct the number of atoms before it, or this line"
                )
            frame = [line, *islice(lines, n_atoms + 1)]
            if QM9.match(b"".join(frame[1:2])):
                next(islice(lines, 2, 3), b"")  # frequencies, SMILES and InChI
            if len(frame) < n_atoms + 2:
                raise InputError(
                    f"{where} cannot be read: the file ends before its {n_atoms} atoms do; "
                    "complete or remove it"
                )
            line = lines.readline()
            while line.lstrip().startswith(b"VEC"):  # a cell below the atoms
                frame.append(line)
                line = lines.readline()
            yield b"".join(frame)
            number += 1
        # ASE takes an empty line for the end and would skip all that follows.
        if any(rest.strip() for rest in lines):
            raise InputError(
                f"{file}: structure {number} comes after an empty line; remove the line"
            )


_OF_ATOMS = ("forces", "energies", "stresses", "charges", "magmoms", "born_effective_charges")
"""Results of calculations that belong to atoms; the others belong to the structure."""


class AseSource(StructuresSection):
    """Configuration section `data.source` for files in any format that ASE reads.

    Labels and groups are searched for in the results of a calculation, in the values of a whole
    structure (`Atoms.info`), in columns (`Atoms.arrays`), and in the key-value pairs and data of an
    ase.db.
    """

    reads = "anything ASE reads"
    labels = "what ASE finds in the files"

    types: tuple[Annotated[str, AfterValidator(element)], ...] | None = Field(
        default=None, min_length=1
    )
    """Elements of the types 1, 2, … in files of LAMMPS, which need not name elements."""

    def open(self, folder: Path, seed: int) -> AseFiles:
        return AseFiles(self, folder)


class AseFiles(StructureSource[AseSource]):
    """Reader of structures from files in any format that ASE reads.

    Extended XYZ, trajectories and databases are read in ranges of structures, which several
    processes can share. Files of other formats can only be read from the beginning, so one process
    reads each of them.
    """

    def __init__(self, section: AseSource, folder: Path) -> None:
        super().__init__(section, folder)
        self._known: dict[Path, list[bool] | None] = {}
        self._lost: dict[Path, int] = {}
        """Number of structures left out of each file, as far as the user has been warned."""

    def chunks(self) -> list[Chunk]:
        """Return chunks of all structures but those whose SCF cycle has not converged.

        A warning counts the files that have such structures, and names the worst.

        Raises
        ------
        InputError
            If no file of a role (split that files are meant for) has a converged structure.
        """
        self._warn([file for files in self._inputs.values() for file in files])
        for role, files in self._inputs.items():
            used = [file for file in files if not (said := self._flags(file)) or any(said)]
            self._inputs[role] = used
            if not used:
                raise InputError(
                    f"{files[0]} (data.source.{role}) has no structure whose SCF cycle has "
                    "converged; give files that have some"
                )
        return super().chunks()

    def beside(self, file: Path) -> list[Path]:
        return files_beside(file)

    def ranges(self, file: Path) -> list[tuple[int, int]]:
        from ase.io.formats import get_ioformat

        format = format_of(file)
        if format in _COUNTS:
            return cut(_COUNTS[format](file))
        if (flags := self._flags(file)) is not None:
            self._warn([file])
            n = sum(flags)
        elif get_ioformat(format).single:
            n = 1  # known without opening what may be thousands of files
        else:
            n = sum(1 for _ in _structures(file, 0, None, self._section.types))
        return [(0, n)] if n else []

    def structures(self, file: Path, start: int, stop: int) -> Iterator[Found]:
        if array_format(file):
            return array_structures(file, start, stop, self._keys)
        flags = self._flags(file)
        if flags is None:
            return _structures(file, start, stop, self._section.types)
        return islice(compress(_structures(file, 0, None), flags), start, stop)

    def places(self, file: Path, start: int, stop: int) -> Iterable[int]:
        flags = self._flags(file)
        whole = super().places(file, start, stop)
        return whole if flags is None else islice(compress(count(), flags), start, stop)

    def _warn(self, files: Sequence[Path]) -> None:
        """Warn of structures that are left out of ``files``, once for each file."""
        known = {file: self._flags(file) or [] for file in files if file not in self._lost}
        lost = {file: said.count(False) for file, said in known.items() if not all(said)}
        self._lost |= lost
        if lost:
            worst = max(lost, key=lambda file: lost[file])
            _logger.warning(
                "left out, as their SCF cycle has not converged: %d structures (files: %d), most "
                "of them in %s (%d of %d)",
                *(sum(lost.values()), len(lost), worst, lost[worst], len(known[worst])),
            )

    def _flags(self, file: Path) -> list[bool] | None:
        """Return :func:`converged` of a file, which is read once; None for an empty file."""
        if file not in self._known:
            with readable(file):
                empty = file.stat().st_size == 0
                self._known[file] = None if empty else converged(file, format_of(file))
        return self._known[file]


class UnknownFormat(InputError):
    """Error for a file of a format that ASE does not know."""


def each_structure(
    file: Path, start: int = 0, stop: int | None = None, types: Sequence[str] | None = None
) -> Iterator[Found]:
    """Yield the structures of a file that ASE reads, each with all values that the file has.

    Parameters
    ----------
    file
        File in a format of ASE.
    start, stop
        Range of structures to read, [start, stop); ``stop`` is None for the end of the file.
        Formats that :func:`count_structures` does not count are read from the beginning.
    types
        Elements of the types 1, 2, … in a file of LAMMPS.

    Raises
    ------
    UnknownFormat
        If ASE does not recognise the format.
    InputError
        If the file cannot be read, or holds no structures.
    """
    structures = _structures(file, start, stop, types)
    with readable(file):
        first = next(structures, None)
    if first is None:
        raise no_structures(file)
    yield first
    with readable(file):
        yield from structures


def count_structures(file: Path) -> int | None:
    """Return the number of structures in a file, if ASE can count them quickly; else None.

    The result is also None if counting fails.
    """
    try:
        count = _COUNTS.get(format_of(file))
        return None if count is None else count(file)
    except Exception:  # the error is raised when the file is read
        return None


def _structures(
    file: Path, start: int, stop: int | None, types: Sequence[str] | None = None
) -> Iterator[Found]:
    from ase.io.formats import open_with_compression

    format = format_of(file)
    if format in ("db", "json"):
        yield from _rows(file, start, stop)
    elif array_format(file):
        yield from array_structures(file, start, stop)
    elif format == "extxyz":
        yield from map(said_of, read_frames(file, start, stop))
    elif format == "traj":
        yield from map(said_of, _iread(file, format, slice(start, stop)))
    elif format == "cif":
        with open_with_compression(str(file), "rb") as lines:
            text = lines.read().decode(errors="replace")
        yield from map(said_of, islice(cif_structures(text), start, stop))
    elif format in LAMMPS:
        for atoms in islice(lammps_structures(file, format, types), start, stop):
            yield said_of(atoms)
    else:
        check_single(file, format)
        yield from map(said_of, islice(_iread(file, format), start, stop))


def format_of(file: Path) -> str:
    """Return the name of a file's format, by its name or else by its content.

    That is ASE's name, or one of arrays over structures.

    Raises
    ------
    UnknownFormat
        If ASE does not recognise the format.
    """
    from ase.io.formats import UnknownFileTypeError, filetype, get_ioformat, ioformats

    if arrays := array_format(file):
        return arrays
    try:
        # ASE compares hundreds of patterns; names first, as thousands of files are slow to open.
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
    """Collect all values of an ASE structure that may be labels, by name.

    The values are results of a calculation, values of the structure (`Atoms.info`) and columns
    (`Atoms.arrays`). If values have the same name, a result takes precedence over `Atoms.info`, and
    `Atoms.info` over `Atoms.arrays`.
    """
    results = {} if atoms.calc is None else atoms.calc.results
    columns = {k: v for k, v in atoms.arrays.items() if k not in ("numbers", "positions")}
    levels: dict[str, Level] = dict.fromkeys(columns, "node")
    levels |= dict.fromkeys(atoms.info, "graph")
    levels |= {key: "node" if key in _OF_ATOMS else "graph" for key in results}
    return Found(atoms, columns | atoms.info | results, levels)


def _count_images(file: Path) -> int:
    from ase.io import Trajectory

    open_trajectory: Any = Trajectory  # ASE has no types
    with open_trajectory(str(file)) as trajectory:
        return len(trajectory)


def _count_rows(file: Path) -> int:
    return int(_database(file).count())


def _rows(file: Path, start: int, stop: int | None) -> Iterator[Found]:
    if start == stop:
        return  # a limit of 0 would mean no limit
    limit = None if stop is None else stop - start
    for row in _database(file).select(offset=start, limit=limit, sort="id"):
        found = said_of(row.toatoms())
        said: Mapping[str, Any] = {**row.data, **row.key_value_pairs}
        values = {"id": row.id, **said, **found.values}
        yield Found(found.atoms, values, found.levels)


def _database(file: Path) -> Any:
    """Open an ase.db for reading; refuse other SQLite databases, to which ASE would add tables."""
    import ase.db

    connect: Any = ase.db.connect  # ASE has no types
    if file.suffix == ".aselmdb":
        try:
            return connect(file, readonly=True)
        except ImportError as error:
            raise InputError(
                f"{file} is read with fairchem's database ({error}): pip install "
                '"hydragnn_flow[aselmdb]"'
            ) from None
    if file.suffix == ".db":
        address = f"{file.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if ("systems",) not in tables.fetchall():
                raise InputError(f"{file} is a database, but no ase.db; give one that ASE wrote")
    if file.suffix == ".json" and not is_json_database(file.read_bytes()[:4096].decode()):
        raise UnknownFormat(f"{file} is JSON, but no ase.db; give one that ASE wrote")
    return connect(file, use_lock_file=False)


def is_json_database(start: str) -> bool:
    """Return whether a JSON file that begins with ``start`` is an ase.db."""
    return bool(re.match(r'\s*\{\s*"(\d+"\s*:\s*\{|ids"|nextid")', start))


_COUNTS: dict[str, Callable[[Path], int]] = {
    "extxyz": count_frames,
    "traj": _count_images,
    "db": _count_rows,
    "json": _count_rows,
    **dict.fromkeys(("npz", "hdf5", "deepmd"), count_arrays),
}
"""Functions that count structures, by format; such files can be read from any structure on."""
