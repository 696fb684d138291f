"""Files of a directory by format, and by role (training, validation, test) from their names."""

from __future__ import annotations

import gzip
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydragnn_flow.config.sources import Role
from hydragnn_flow.data.sources.ase_files import UnknownFormat, format_of
from hydragnn_flow.data.sources.csv_tables import read_table
from hydragnn_flow.data.sources.file_names import find_files, natural_order
from hydragnn_flow.data.store.manifest import MANIFEST
from hydragnn_flow.errors import InputError

_WORDS: dict[Role, tuple[str, ...]] = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
_NO_DATA = {".md", ".txt", ".pdf", ".py", ".sh", ".yaml", ".yml", ".log", ".rst", ".html", ".png"}
_BY_HAND = {".pt": "pyg", ".npz": "voronoi", ".cfg": "cfg", ".vtu": "mesh", ".vtk": "mesh"}
"""Formats that need more keys than files show, by suffix."""
_STORE = "hydragnn"


@dataclass(frozen=True)
class Files:
    """Files of one source in a directory."""

    folder: Path
    """Directory that the names are relative to."""
    source: dict[str, Any]
    """Section `data.source` without targets."""
    used: str
    """Name of the format in words."""
    skipped: list[str] = field(default_factory=list)
    """Names of files that are not used."""


def find_source(directory: Path) -> Files:
    """Describe the files of an existing directory as a section `data.source`.

    Raises
    ------
    InputError
        If there are no data, data of several formats, or of one to be configured by hand.
    """
    if _is_store(directory):
        return _stored(directory, [])
    kinds: dict[str, list[Path]] = {}
    for entry in sorted(directory.iterdir(), key=natural_order):
        if entry.name[0] != "." and (entry.is_file() or _is_store(entry)):
            kinds.setdefault(_kind(entry), []).append(entry)
    skipped = [file.name for file in kinds.pop("", ())]
    columns = {file: _column(file) for file in kinds.get("csv", ())}
    tables = {file: column for file, column in columns.items() if column is not None}
    if tables and all(is_path for _, is_path in tables.values()):
        # These structures are named by the rows of the tables.
        kinds = {kind: found for kind, found in kinds.items() if not kind.startswith("ase: ")}
    for kind in list(kinds):
        if (kind == "csv" and not tables and kinds.keys() - {"csv", "ase: cif"}) or (
            kind in _BY_HAND.values() and _STORE in kinds
        ):
            skipped += [file.name for file in kinds.pop(kind)]
    if columns and not tables and "csv" in kinds:
        raise InputError(
            f"{next(iter(columns))}: no column names structure files (relative to the table, with "
            "their ending) or holds CIF text in every row; add such a column, with a name in the "
            "first line"
        )
    if len(kinds) != 1 or len(kinds.get(_STORE, ())) > 1:
        held = ", ".join(f"{kind.removeprefix('ase: ')}: {len(f)}" for kind, f in kinds.items())
        found = f" (but {', '.join(skipped)})" if skipped else ""
        raise InputError(
            f"{directory}: holds {held or 'no data'}{found}; give a directory with the files of "
            "one format, or with one store"
        )
    ((kind, files),) = kinds.items()
    if kind == _STORE:
        return _stored(files[0], skipped)
    if kind in _BY_HAND.values():
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
        skipped += [file.name for file in files if file not in tables]
        files = list(tables)
    roles, left = _roles(files)
    named: dict[str, Any] = {role: _name(directory, role, some) for role, some in roles.items()}
    section: dict[str, Any] = {"format": kind.partition(":")[0], **named, **keys}
    return Files(directory, section, kind.removeprefix("ase: "), skipped + left)


def _is_store(path: Path) -> bool:
    return path.is_dir() and (path.suffix == ".bp" or (path / MANIFEST).is_file())


def _stored(store: Path, skipped: list[str]) -> Files:
    section: dict[str, Any] = {"format": _STORE, "file": store.name}
    used = "HydraGNN's .bp" if store.suffix == ".bp" else "GraphStore"
    return Files(store.absolute().parent, section, used, skipped)


def _kind(entry: Path) -> str:
    """Return the format that reads an entry, with ASE's name of it; empty if it is not data."""
    name, suffix = entry.name.lower(), entry.suffix.lower()
    if entry.is_dir():
        return _STORE
    if suffix in _NO_DATA:
        return ""
    if suffix == ".csv":
        return "csv"
    if name.endswith((".json", ".json.gz")):
        return _kind_of_json(entry)
    if suffix in _BY_HAND:
        return _BY_HAND[suffix]
    try:
        return f"ase: {format_of(entry)}"
    except (UnknownFormat, OSError):
        return ""


def _kind_of_json(file: Path) -> str:
    """Return the format of a JSON file by its beginning: records or a table, an ase.db, or none."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as content:
            start = content.read(200).decode(errors="replace").lstrip()
    except (OSError, EOFError):
        return ""
    key = re.match(r'\{\s*"(\w+)"', start)
    if start.startswith("[") or (key and key[1] in ("columns", "index", "data")):
        return "json"
    return "ase: json" if key and (key[1].isdigit() or key[1] in ("ids", "nextid")) else ""


def _column(table: Path) -> tuple[str, bool] | None:
    """Return a table's column of structures, and True if its cells are paths; None without one."""
    rows = read_table(table, as_text=True)[:20]
    for name in rows[0] if rows else ():
        cells = [row[name] or "" for row in rows]
        if name and all("_cell_length_a" in cell for cell in cells):
            return name, False
        if name and all(cell and _is_file(table.parent, cell) for cell in cells):
            return name, True
    return None


def _is_file(folder: Path, cell: str) -> bool:
    return "\n" not in cell and len(cell) < 1000 and (folder / cell).is_file()


def _roles(files: Sequence[Path]) -> tuple[dict[Role, list[Path]], list[str]]:
    """Return files by role from the words in their names, and the names of those left over."""
    found: dict[Role | None, list[Path]] = defaultdict(list)
    for file in files:
        words = set(re.split(r"[^a-z]+", file.name.lower()))
        found[next((r for r, known in _WORDS.items() if words & set(known)), None)].append(file)
    if "train" in found:
        left = found.pop(None, [])
    elif None in found:
        found["train"], left = found.pop(None), []
    else:
        # The training file is missing, perhaps not published: train on what is here.
        found["train"], left = found.pop("val" if "val" in found else "test"), []
    return {role: found[role] for role in _WORDS if role in found}, [file.name for file in left]


def _name(directory: Path, role: Role, files: Sequence[Path]) -> str:
    """Return a file name or a glob that matches exactly these files."""
    if len(files) == 1:
        return files[0].name
    (ending, *others) = {"".join(file.suffixes[-1:]) for file in files}
    endings = [] if others else [ending]
    words = {w for file in files for w in re.split(r"[^A-Za-z]+", file.stem)}
    known = sorted(word for word in words if word.lower() in _WORDS[role])
    for end in (*endings, ""):
        for pattern in (f"*{end}", *(f"*{word}*{end}" for word in known)):
            if set(find_files(pattern, directory, role)) == set(files):
                return pattern
    raise InputError(
        f"{directory}: no pattern names just the {len(files)} files for {role} ({files[0].name}, "
        f"…); move them into a directory of their own"
    )
