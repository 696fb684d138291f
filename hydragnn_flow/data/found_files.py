"""Data files of a directory, and the section `data.source` that reads them."""

from __future__ import annotations

import glob
import gzip
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any

from hydragnn_flow.config.sources import Role
from hydragnn_flow.data.layouts import is_layout
from hydragnn_flow.data.sources.ase_files import UnknownFormat, format_of, is_json_database
from hydragnn_flow.data.sources.csv_tables import rows_of, structure_file
from hydragnn_flow.data.sources.file_names import (
    matching,
    natural_order,
)
from hydragnn_flow.data.store.manifest import MANIFEST
from hydragnn_flow.errors import InputError

_WORDS: dict[Role, tuple[str, ...]] = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
_NO_DATA = {".md", ".txt", ".pdf", ".py", ".sh", ".yaml", ".yml", ".log", ".rst", ".html", ".png"}
_BY_HAND = {".pt": "pyg", ".cfg": "cfg", ".vtu": "mesh", ".vtk": "mesh"}
"""Formats, by file suffix, whose configuration needs keys that the files do not show."""
_STORE, _SHEET = "hydragnn", "spreadsheet"
_STRANGE = "ase: unknown arrays"
"""Kind of HDF5 files of no known layout, such as the weights of a network."""
_INPUTS = {"vasp", "vasp-xdatcar", "cif", "aims", "espresso-in", "gaussian-in", "gen", "eon"}
_INPUTS |= {"castep-cell", "lammps-data", "nwchem-in", "abinit-in", "onetep-in", "octopus-in"}
"""ASE's names of formats without labels, whose files lie beside the results of programs."""
_LINES = re.compile(r"\.(jsonl|ndjson)(\.gz)?$")
_NO_POSITIONS = re.compile(r"-(frc|vel)-\d+(_\d+)?\.xyz")
"""End of the names of CP2K's forces and velocities, which are laid out like positions."""


@dataclass(frozen=True)
class Files:
    """Data files found in a directory, and the section `data.source` that would read them."""

    folder: Path
    """Directory that file names in ``source`` are relative to."""
    source: dict[str, Any]
    """Section `data.source` without targets."""
    used: str
    """Name of the format in words."""
    skipped: list[str] = field(default_factory=list)
    """Names of files that are not used."""


def find_source(path: Path) -> Files:
    """Find the data files of a directory, and describe them as a section `data.source`.

    This section of the run configuration names the format and the files. The path may also be that
    of one file.

    Raises
    ------
    InputError
        If the directory holds no data, data of several formats, or data of a format that has to be
        configured by hand.
    """
    if _is_store(path):
        return _stored(path, [])
    directory = path if path.is_dir() else path.parent
    kinds = _kinds(_entries(directory) if path.is_dir() else [path])
    if path.is_dir() and kinds.keys() <= {"", _STRANGE}:  # perhaps folders of runs or of splits
        kinds = _kinds(_entries(directory, deep=True))
    skipped = kinds.pop("", [])
    if len(kinds) > 1:
        skipped += kinds.pop(_STRANGE, [])
    tables: dict[Path, tuple[str, bool]] = {}
    faults: dict[Path, InputError] = {}
    for file in kinds.get("csv", ()):
        try:
            if column := _column(file):
                tables[file] = column
        except InputError as fault:
            faults[file] = fault
    inputs = {kind for kind in kinds if kind.removeprefix("ase: ") in _INPUTS}
    if tables and all(is_path for _, is_path in tables.values()):
        # These structures are named by the rows of the tables.
        kinds = {kind: found for kind, found in kinds.items() if not kind.startswith("ase: ")}
    elif any(kind.startswith("ase: ") for kind in kinds.keys() - inputs):
        for kind in inputs:
            skipped += kinds.pop(kind)
    both = [file for file in kinds.get("ase: vasp-out", ()) if _has_vasprun(file)]
    skipped += both
    kinds = {kind: left for kind, of in kinds.items() if (left := [f for f in of if f not in both])}
    for kind in list(kinds):
        if (kind in ("csv", _SHEET) and not tables and kinds.keys() - {kind, *inputs}) or (
            kind in ("voronoi", *_BY_HAND.values()) and _STORE in kinds
        ):
            skipped += kinds.pop(kind)
    unused = _named(skipped, faults)
    found = f" (not used: {', '.join(unused)})" if unused else ""
    if _SHEET in kinds:
        raise InputError(f"{kinds[_SHEET][0]}: a spreadsheet is not read; save it as CSV, in UTF-8")
    if "csv" in kinds and not tables:
        if faults:
            raise InputError(f"{next(iter(faults.values()))}{found}")
        raise InputError(
            f"{kinds['csv'][0]}: no column names structure files (relative to the table) or holds "
            "CIF text in every row; add such a column, with a name in the first line"
        )
    if len(kinds) != 1 or len(kinds.get(_STORE, ())) > 1:
        held = ", ".join(f"{kind.removeprefix('ase: ')}: {len(f)}" for kind, f in kinds.items())
        raise InputError(
            f"{directory}: holds {held or 'no data'}{found}; give a directory with the files of "
            "one format, or with one store"
        )
    ((kind, files),) = kinds.items()
    if kind == _STORE:
        return _stored(files[0], unused)
    if kind in ("voronoi", *_BY_HAND.values()):
        raise InputError(
            f"{directory}: holds files for data.source.format {kind}, whose keys say more than the "
            f"files tell; copy the example of this format in docs/data.md"
        )
    keys: dict[str, Any] = {}
    if tables:
        names = {column for column, _ in tables.values()}
        if len(names) > 1:
            raise InputError(
                f"{directory}: the tables have structures in columns of different names "
                f"({', '.join(sorted(names))}); rename one, or move a table away"
            )
        keys = {"structure": names.pop()}
        skipped += [file for file in files if file not in tables]
        files = list(tables)
    roles, left = _roles(files, directory)
    named: dict[str, Any] = {}
    for role, some in roles.items():
        named[role] = _files_name(directory, role, some)
    section: dict[str, Any] = {"format": kind.partition(":")[0], **named, **keys}
    unused = _named(skipped + left, faults)
    return Files(directory, section, kind.removeprefix("ase: "), unused)


def _is_store(path: Path) -> bool:
    return path.is_dir() and (path.suffix == ".bp" or (path / MANIFEST).is_file())


def _stored(store: Path, skipped: list[str]) -> Files:
    section: dict[str, Any] = {"format": _STORE, "file": store.name}
    used = "HydraGNN's .bp" if store.suffix == ".bp" else "GraphStore"
    return Files(store.absolute().parent, section, used, skipped)


def _entries(directory: Path, *, deep: bool = False) -> Iterator[Path]:
    """Yield files and stores of a directory that are not hidden; ``deep`` for its folders too."""
    for entry in sorted(directory.iterdir(), key=natural_order):
        if entry.name[0] == ".":
            continue
        if entry.is_file() or _is_store(entry):
            yield entry
        elif deep and entry.is_dir() and not directory.resolve().is_relative_to(entry.resolve()):
            yield from _entries(entry, deep=True)


def _kinds(entries: Iterable[Path]) -> dict[str, list[Path]]:
    """Return files by the format that :func:`_kind` finds."""
    kinds: dict[str, list[Path]] = {}
    for entry in entries:
        kinds.setdefault(_kind(entry), []).append(entry)
    return kinds


def _named(files: Iterable[Path], faults: Mapping[Path, InputError]) -> list[str]:
    """Return each name of files once, with their number, or with the fault of a table."""
    told = {
        file.name: str(fault).removeprefix(str(file)).lstrip(": ") for file, fault in faults.items()
    }
    counted = Counter(file.name for file in files).items()
    return [f"{name} ({said})" if (said := told.get(name, n)) != 1 else name for name, n in counted]


def _has_vasprun(outcar: Path) -> bool:
    """Return whether a file is the OUTCAR of a calculation whose vasprun.xml is there too."""
    beside = (outcar.with_name(f"vasprun.xml{end}") for end in ("", ".gz"))
    return outcar.name.partition(".")[0] == "OUTCAR" and any(file.is_file() for file in beside)


def _kind(entry: Path) -> str:
    """Return the format of `data.source` that reads ``entry``; an empty string if it is no data.

    For files that ASE reads, ASE's own name of the format follows: ``ase: extxyz``.
    """
    name, suffix = entry.name.lower(), entry.suffix.lower()
    if entry.is_dir():
        return _STORE
    if suffix in _NO_DATA or _NO_POSITIONS.search(name):
        return ""
    if suffix == ".csv":
        return "csv"
    if _LINES.search(name):
        return "json"
    if name.endswith((".json", ".json.gz")):
        return _kind_of_json(entry)
    if suffix in (".xlsx", ".xls", ".ods"):
        return _SHEET
    if suffix in _BY_HAND:
        return _BY_HAND[suffix]
    if suffix == ".npz" and not is_layout(entry):
        return "voronoi"
    try:
        format = format_of(entry)
        # ASE goes by the ending .out, which logs of batch jobs have too.
        is_log = format == "espresso-out" and b"PWSCF" not in _start(entry)
    except (UnknownFormat, OSError, EOFError):
        return ""
    if format == "hdf5" and not is_layout(entry):
        return _STRANGE
    return "" if is_log else f"ase: {format}"


def _start(file: Path) -> bytes:
    """Return the first 4096 bytes of a file, unpacked if it ends in ``.gz``."""
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as content:
        return content.read(4096)


def _kind_of_json(file: Path) -> str:
    """Return the format of a JSON file, judged by its start.

    ``json`` stands for records or a table, ``ase: json`` for an ase.db, an empty string for
    anything else.
    """
    try:
        content = _start(file)
    except (OSError, EOFError):
        return ""
    start = content.decode(json.detect_encoding(content), errors="replace").lstrip()
    key = re.match(r'\{\s*"([^"]+)"\s*:', start)
    nested = re.search(r'"(structure|lattice_mat|cartesian_site_positions|api_version)"', start)
    if start.startswith("[") or (key and (nested or key[1] in ("columns", "index", "data"))):
        return "json"
    return "ase: json" if is_json_database(start) else ""


def _column(table: Path) -> tuple[str, bool] | None:
    """Return the name of a table's column of structures, and whether its cells are paths.

    The second value is False if the cells are CIF text. The result is None if the table has no
    column of structures.

    Raises
    ------
    InputError
        If the table cannot be read, has no header, or names files that are there in other words.
    """
    rows = [row for _, row in islice(rows_of(table), 20)]
    for name in rows[0] if rows else ():
        cells = [row[name] or "" for row in rows]
        if name and all("_cell_length_a" in cell for cell in cells):
            return name, False
        if name and all(cell and _is_file(table, cell) for cell in cells):
            return name, True
    if rows:
        _check_names(table, rows)
    return None


def _is_file(table: Path, cell: str) -> bool:
    return "\n" not in cell and len(cell) < 250 and structure_file(table, cell).is_file()


def _check_names(table: Path, rows: Sequence[Mapping[str, str | None]]) -> None:
    """Raise InputError if a table without paths that can be read has cells that are meant so."""
    near: dict[str, str] = {}
    for file in (*table.parent.glob("*"), *table.parent.glob("*/*")):
        name = str(file.relative_to(table.parent))
        for key in (name, str(Path(name).with_suffix("")), file.name, file.stem):
            near.setdefault(key.casefold(), name)
    for column in rows[0]:
        cells = [row[column] or "" for row in rows]
        wrong = [cell for cell in cells if not _is_file(table, cell)]
        if 0 < len(wrong) < len(cells):
            raise InputError(
                f"{table}: column {column!r} names {', '.join(map(repr, wrong))}, not there as "
                "files, though others are; correct the names, or remove the rows"
            )
        if (meant := near.get(cells[0].casefold())) is not None:
            raise InputError(
                f"{table}: column {column!r} names {cells[0]!r}, which is no file, but {meant!r} "
                "is; write it so, with its folder, case and ending"
            )


def _roles(files: Sequence[Path], directory: Path) -> tuple[dict[Role, list[Path]], list[Path]]:
    """Return files by role, judged by words in their names and folders, and files left over."""
    found: dict[Role | None, list[Path]] = defaultdict(list)
    for file in files:
        words = set(re.split(r"[^a-z]+", str(file.relative_to(directory)).lower()))
        found[next((r for r, known in _WORDS.items() if words & set(known)), None)].append(file)
    if "train" in found:
        left = found.pop(None, [])
    elif None in found:
        found["train"], left = found.pop(None), []
    else:
        # The training file is missing, perhaps not published: train on what is here.
        found["train"], left = found.pop("val" if "val" in found else "test"), []
    return {role: found[role] for role in _WORDS if role in found}, left


def _files_name(directory: Path, role: Role, files: Sequence[Path]) -> str:
    """Return a file name or a glob that matches exactly ``files``, which are those for ``role``."""
    if len(files) == 1:
        return str(files[0].relative_to(directory))
    (ending, *others) = {"".join(file.suffixes[-1:]) for file in files}
    (name, *names) = {file.name for file in files}
    words = {w for file in files for w in re.split(r"[^A-Za-z]+", file.stem)}
    known = sorted(word for word in words if word.lower() in _WORDS[role])
    tails = [] if names else [glob.escape(name)]
    for end in ("",) if others else (ending, ""):
        tails += [f"*{end}", *(f"*{word}*{end}" for word in known)]
    shared = Path(os.path.commonpath([file.parent for file in files])).relative_to(directory)
    folder = "" if shared == Path() else f"{glob.escape(str(shared))}/"
    for between, tail in product(("", "*/", "**/"), tails):
        pattern = f"{folder}{between}{tail}"
        if set(matching(pattern, directory)) == set(files):
            return pattern
    raise InputError(
        f"{directory}: no pattern names just the {len(files)} files for {role} ({files[0].name}, "
        f"…); move them into a directory of their own"
    )
