"""Inspection of a directory of data for a first configuration: files, structures, labels."""

from __future__ import annotations

import glob
import gzip
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Data

from hydragnn_flow.config.sources import Level, Role, TargetConfig, good_names, section_class
from hydragnn_flow.data.graphs import atoms_to_graph, longest_edge, truncation_of
from hydragnn_flow.data.reading.graph_store import GraphStore
from hydragnn_flow.data.sources.arrays import level_of, shaped
from hydragnn_flow.data.sources.ase_files import UnknownFormat, format_of
from hydragnn_flow.data.sources.csv_tables import rows_of
from hydragnn_flow.data.sources.file_names import (
    FilesSection,
    files_by_role,
    matching,
    natural_order,
)
from hydragnn_flow.data.sources.hydragnn import HydragnnSource
from hydragnn_flow.data.sources.structures import Found, StructureSource, no_structures, readable
from hydragnn_flow.data.store.manifest import MANIFEST
from hydragnn_flow.errors import InputError

_WORDS: dict[Role, tuple[str, ...]] = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
_NO_DATA = {".md", ".txt", ".pdf", ".py", ".sh", ".yaml", ".yml", ".log", ".rst", ".html", ".png"}
_BY_HAND = {".pt": "pyg", ".npz": "voronoi", ".cfg": "cfg", ".vtu": "mesh", ".vtk": "mesh"}
"""Formats, by file suffix, whose configuration needs keys that the files do not show."""
_STORE = "hydragnn"
_INPUTS = {"vasp", "vasp-xdatcar", "cif", "aims", "espresso-in", "gaussian-in", "gen", "eon"}
_INPUTS |= {"castep-cell", "lammps-data", "nwchem-in", "abinit-in", "onetep-in", "octopus-in"}
"""ASE's names of formats without labels, whose files lie beside the results of programs."""
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


def find_source(directory: Path) -> Files:
    """Find the data files of a directory, and describe them as a section `data.source`.

    This section of the run configuration names the format and the files.

    Raises
    ------
    InputError
        If the directory holds no data, data of several formats, or data of a format that has to be
        configured by hand.
    """
    if _is_store(directory):
        return _stored(directory, [])
    kinds = _kinds(_entries(directory))
    if kinds.keys() <= {""}:  # perhaps folders of runs or of splits
        kinds = _kinds(_entries(directory, deep=True))
    skipped = kinds.pop("", [])
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
        if (kind == "csv" and not tables and kinds.keys() - {"csv", *inputs}) or (
            kind in _BY_HAND.values() and _STORE in kinds
        ):
            skipped += kinds.pop(kind)
    unused = _named(skipped, faults)
    found = f" (not used: {', '.join(unused)})" if unused else ""
    if "csv" in kinds and not tables:
        if faults:
            raise InputError(f"{next(iter(faults.values()))}{found}")
        raise InputError(
            f"{kinds['csv'][0]}: no column names structure files (relative to the table, with "
            "their ending) or holds CIF text in every row; add such a column, with a name in the "
            "first line"
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
    if name.endswith((".json", ".json.gz")):
        return _kind_of_json(entry)
    if suffix in _BY_HAND:
        return _BY_HAND[suffix]
    try:
        format = format_of(entry)
        # ASE goes by the ending .out, which logs of batch jobs have too.
        is_log = format == "espresso-out" and b"PWSCF" not in _start(entry)
    except (UnknownFormat, OSError, EOFError):
        return ""
    return "" if is_log else f"ase: {format}"


def _start(file: Path) -> bytes:
    """Return the first 4096 bytes of a file, unpacked if it ends in ``.gz``."""
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as content:
        return content.read(4096)


def _kind_of_json(file: Path) -> str:
    """Return the format of a JSON file, judged by its first 200 bytes.

    ``json`` stands for records or a table, ``ase: json`` for an ase.db, an empty string for
    anything else.
    """
    try:
        content = _start(file)[:200]
    except (OSError, EOFError):
        return ""
    start = content.decode(json.detect_encoding(content), errors="replace").lstrip()
    key = re.match(r'\{\s*"(\w+)"\s*:\s*(.?)', start)
    if start.startswith("[") or (key and key[1] in ("columns", "index", "data")):
        return "json"
    is_row = key and key[1].isdigit() and key[2] == "{"
    return "ase: json" if is_row or (key and key[1] in ("ids", "nextid")) else ""


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
        if name and all(cell and _is_file(table.parent, cell) for cell in cells):
            if _is_file(table.parent, name):
                raise _no_header(table, rows[0])
            return name, True
    if rows:
        _check_names(table, rows)
    return None


def _is_file(folder: Path, cell: str) -> bool:
    return "\n" not in cell and len(cell) < 1000 and (folder / cell).is_file()


def _no_header(table: Path, names: Iterable[str]) -> InputError:
    first = ",".join(names)
    return InputError(
        f"{table}: its first line is no header ({first[:60]}); add a line with the names of the "
        "columns above it, and write names of files with their ending"
    )


def _check_names(table: Path, rows: Sequence[Mapping[str, str | None]]) -> None:
    """Raise InputError if a table without paths that can be read has cells that are meant so."""
    near: dict[str, str] = {}
    for file in (*table.parent.glob("*"), *table.parent.glob("*/*")):
        name = str(file.relative_to(table.parent))
        for key in (name, str(Path(name).with_suffix("")), file.name, file.stem):
            near.setdefault(key.casefold(), name)
    for column in rows[0]:
        cells = [row[column] or "" for row in rows]
        wrong = [cell for cell in cells if not _is_file(table.parent, cell)]
        if 0 < len(wrong) < len(cells):
            raise InputError(
                f"{table}: column {column!r} names {wrong[0]!r}, which is no file, though others "
                "are; correct it"
            )
        plain = cells[0].replace("\\", "/")
        meant = near.get(plain.casefold())
        if meant is None:
            continue
        if column.casefold() in near:
            raise _no_header(table, rows[0])
        if "\\" in cells[0]:
            remedy = "write / in place of \\"
        elif plain.casefold() == meant.casefold():
            remedy = "write it in the same case (capital or small letters)"
        else:
            remedy = "write its folder and ending too"
        raise InputError(
            f"{table}: column {column!r} names {cells[0]!r}, which is no file, but {meant!r} is; "
            f"{remedy}"
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


_UNITS = {
    "energy": "eV",
    "free_energy": "eV",
    "forces": "eV/Å",
    "stress": "eV/Å³",
    "dipole": "e·Å",
    "charges": "e",
    "magmom": "μB",
    "magmoms": "μB",
}
"""Units of ASE's results of calculations; energy and forces in mlearn's records have the same."""
_NO_LABELS = {"", "i", "index", "time", "row", "number", "nsites", "natoms", "num_atoms", "n_atoms"}
_NO_LABELS |= {"nelements", "tags", "momenta", "initial_magmoms", "initial_charges", "move_mask"}
_IDS = re.compile(
    r"(^|_)(ids?|uuid|uid|jid|mpid|frame|step|timestep|iteration|seed|spg|sg|space_?group)(_|$)"
    r"|weight|spgnum"
)
"""Parts of names of identifiers, counters and settings."""
_MAYBE_IDS = re.compile(r"(^|_)(number|num|no|nr|n|index|idx|count|icsd|cod|mp|row)(_|$)")
"""Parts of names of identifiers and counters, if their values are whole numbers."""
_UNIT_AT_END = re.compile(
    r"_(m?eV|Ha|hartree|Ry|rydberg|kcal_?mol|kJ_?mol|[GMk]?Pa|k?bar|kB)"
    r"(_?(?:per)?_?(?:A|ang|angstrom|bohr)3?)?$",
    re.IGNORECASE,
)
REFERENCES = {"dft", "ref", "reference"}
"""Methods whose labels are the ones to learn, where a file has those of several."""
_ONE_METHOD = {"total", "potential", "free", "uncorrected"}
"""Words in names of energies that do not name another method than that of the forces."""


def quantity_of(key: str) -> tuple[str, str]:
    """Return the quantity that a key names, energy, forces or stress, and the method it names.

    Both are in small letters, and empty if the key names none: ``dft_total_energy`` and
    ``Forces_DFT`` have the method ``dft``, ``free_energy`` and ``forces`` have an empty one.
    """
    bare = _UNIT_AT_END.sub("", _bare(key)).lower()
    found = re.search(r"energy|forces?|stress", bare)
    if not found:
        return "", ""
    words = set(re.split(r"[\W_]+", f"{bare[: found.start()]} {bare[found.end() :]}"))
    quantity = "forces" if found[0] == "force" else found[0]
    return quantity, " ".join(sorted(words - _ONE_METHOD - {""}))


@dataclass(frozen=True)
class Label:
    """Quantity that all inspected structures have and a network could learn."""

    name: str
    """Name that a target for the quantity can have."""
    key: str
    """Name of the quantity in the files."""
    level: Level
    dim: int
    unit: str
    """Unit; empty if the files do not state it."""
    doubtful: bool = False
    """True if the values are whole numbers or all the same, as identifiers and settings are."""

    @property
    def quantity(self) -> str:
        """Quantity that the shape and key tell: energy, forces or stress; empty if another."""
        quantity, _ = quantity_of(self.key)
        return quantity if (self.level, self.dim) in _SHAPES.get(quantity, ()) else ""

    @property
    def method(self) -> str:
        """Method that the key names, such as ``ref``: labels of one method belong together."""
        return quantity_of(self.key)[1]


_SHAPES: dict[str, list[tuple[Level, int]]] = {
    "energy": [("graph", 1)],
    "forces": [("node", 3)],
    "stress": [("graph", 6), ("graph", 9)],
}
"""Level and number of components by quantity."""


def find_labels(structures: Sequence[Found]) -> tuple[list[Label], dict[str, str]]:
    """Find the quantities of structures, such as energies, that a network could learn.

    They are in the order of the files. Each has the same shape in all structures, with at most nine
    numbers for each structure or atom. Identifiers and counters (whole numbers that mostly grow by
    the same from each structure to the next) are left out. So is `free_energy` beside `energy`.

    Returns
    -------
    labels
        Quantities that every structure has.
    unusable
        Reason, by key, why a quantity cannot be learnt: only some structures have it, or it is an
        energy, forces or a stress of another shape.

    Raises
    ------
    InputError
        If units that structures name under keys of their own differ, or lengths are not in Å.
    """
    found, unusable, units = [], {}, _units_said(structures)
    for key in dict.fromkeys(key for one in structures for key in one.values):
        quantity, method = quantity_of(key)
        wanted = quantity if method in ("", *REFERENCES) else ""
        name = _plain(key)
        if name in _NO_LABELS or (not wanted and _IDS.search(name)):
            continue
        labels = [_label(one, key) for one in structures]
        values = [value for value in labels if value is not None]
        if not wanted and _is_counter(name, values):
            continue
        if len(values) < len(structures):
            text = structures[0].values.get(key)
            if values or wanted or (isinstance(text, str) and _NUMBER.fullmatch(text)):
                unusable[key] = _lacking(structures, key, labels)
            continue
        (ndim, dim), *others = {(value.ndim, value.shape[-1]) for value in values}
        level: Level = "graph" if ndim == 1 else "node"
        if wanted and (others or (level, dim) not in _SHAPES[wanted]):
            many = "in different shapes" if others else f"{dim} for each {_ONE_OF[level]}"
            unusable[key] = f"its numbers are {many}, not {_EXPECTED[wanted]}"
        elif not others and dim <= 9:
            doubtful = level == "graph" and _is_doubtful(np.stack(values))
            found.append(Label(_name(key), key, level, dim, _unit(key, units), doubtful))
    if any(label.key == "energy" for label in found):
        found = [label for label in found if label.key != "free_energy"]
        unusable.pop("free_energy", None)
    return found, unusable


_NUMBER = re.compile(r"\s*[-+]?\d[\d.,]*([deDE][-+]?\d+)?\s*")
_ONE_OF = {"graph": "structure", "node": "atom"}
_EXPECTED = {
    "energy": "one for each structure",
    "forces": "three for each atom",
    "stress": "six or nine for each structure",
}


def _lacking(
    structures: Sequence[Found], key: str, labels: Sequence[NDArray[np.float64] | None]
) -> str:
    """Return in words how many structures have a label, and what the first without it has."""
    first = next(number for number, label in enumerate(labels) if label is None)
    value = structures[first].values.get(key)
    if value is None:
        said = "none"
    elif isinstance(value, str):
        said = repr(value[:40])
        if re.fullmatch(r"[\s\d.+-]+[dD][-+]?\d+\s*", value):
            said += " with Fortran's exponent (write e for D)"
        elif re.fullmatch(r"[\s\d+-]+,\d+\s*", value):
            said += " with a decimal comma (write a point)"
    else:
        said = "NaN, infinity or another shape"
    n = sum(label is not None for label in labels)
    return f"in {n} of {len(structures)} structures looked at; number {first} has {said}"


def _is_doubtful(values: NDArray[np.float64]) -> bool:
    same = len(values) > 1 and bool((values == values[0]).all())
    return same or bool((values % 1 == 0).all())


def _plain(key: str) -> str:
    """Return a key in small letters, with ``_`` between its words, without brackets at its end."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", _bare(key))
    return re.sub(r"[\W_]+", "_", words).strip("_").lower()


def _bare(key: str) -> str:
    """Return a key without the brackets at its end."""
    return re.sub(r"[\[(][^\])]*[\])]\s*$", "", key)


def _units_said(structures: Sequence[Found]) -> dict[str, str]:
    """Return units by the names of quantities, from keys such as `energy_unit` and `units`.

    Raises
    ------
    InputError
        If the unit of a quantity differs between structures, or lengths are not in Å.
    """
    said: dict[str, str] = {}
    for one in structures:
        for key, value in one.values.items():
            if not re.search("(^|_)units?(_|$)|units?$", _plain(key)):
                continue
            for name, unit in (value if isinstance(value, dict) else {key: value}).items():
                of = re.sub("units?", "", _plain(name)).strip("_")
                if not isinstance(unit, str):
                    continue
                if said.setdefault(of, unit) != unit:
                    if quantity_of(of)[0]:
                        raise InputError(
                            f"the key {key!r} is {said[of]!r} in some structures and {unit!r} in "
                            "others; convert the labels to one unit"
                        )
                    said[of] = ""
                if _OTHER_LENGTH.fullmatch(unit.strip()):
                    raise InputError(
                        f"the key {key!r} says {unit!r}, and positions and cells are read in Å; "
                        "convert them"
                    )
    return said


_OTHER_LENGTH = re.compile(r"bohrs?|a0|a_0|nm|pm|nanomet\w+|picomet\w+", re.IGNORECASE)


def _label(one: Found, key: str) -> NDArray[np.float64] | None:
    value: Any = one.values.get(key)
    if value is None or isinstance(value, (bool, np.bool_)):
        return None
    try:
        level = one.levels.get(key) or level_of(value, (key,), len(one.atoms))
        array = shaped(value, level, len(one.atoms))
    except (TypeError, ValueError):  # no numbers, or nothing tells the level
        return None
    fits = array.size > 0 and np.isfinite(array).all()
    return array if fits and (array.ndim == 1 or len(array) == len(one.atoms)) else None


def _is_counter(name: str, values: Sequence[NDArray[np.float64]]) -> bool:
    """Return whether values are whole numbers that count structures, by their name or steps."""
    if any(value.shape != (1,) or value[0] % 1 for value in values):
        return False
    steps, times = np.unique(np.diff(np.ravel(values)), return_counts=True)
    mostly = len(values) > 2 and 2 * times.max() > len(values) - 1 and steps[times.argmax()] > 0
    return bool(values and (mostly or _MAYBE_IDS.search(name)))


def _unit(key: str, said: Mapping[str, str]) -> str:
    """Return the unit of a key, in the key or ``said`` by the file, otherwise ASE's or none.

    ASE's are not taken where the file names another unit of energy.
    """
    if brackets := re.search(r"[\[(]\s*([^\])]+?)\s*[\])]\s*$", key):
        return brackets[1]
    quantity, method = quantity_of(key)
    for name, unit in said.items():
        if name == _plain(key) or (
            quantity and quantity_of(name) in {(quantity, method), (quantity, "")}
        ):
            return unit
    if (end := _UNIT_AT_END.search(key)) and not end[2]:
        return end[1].replace("_", "/")
    others = [unit for name, unit in said.items() if not name or quantity_of(name)[0]]
    is_ase = all(unit.lower().startswith(("ev", "ase", "metal")) for unit in others)
    return _UNITS.get(key, "") if is_ase else ""


def _name(key: str) -> str:
    """Return a valid target name for a key."""
    name = re.sub(r"\W+", "_", _bare(key), flags=re.ASCII).strip("_") or "target"
    try:
        good_names({name: TargetConfig(unit="")})
    except ValueError:
        return f"target_{re.sub('index|batch', '', name)}"
    return name


_LOOKED_AT = 200
RADIUS = 5.0
"""Cutoff radius to propose [Å], unless an atom has more than a hundred neighbours within it."""


@dataclass(frozen=True, kw_only=True)
class Finding(Files):
    """Summary of the data in a directory, from which a first run configuration is written."""

    sizes: dict[Role, int]
    """Number of structures of each role (``train``, ``val``, …) that has files of its own."""
    looked_at: int
    """Number of structures that were read; the fields below describe these."""
    elements: list[str]
    atoms: tuple[int, float, int]
    """Minimum, mean and maximum number of atoms of a structure."""
    labels: list[Label]
    unusable: dict[str, str] = field(default_factory=dict)
    """Reason, by key, why a quantity of the files cannot be learnt."""
    have_cells: bool = False
    """True if all structures are periodic in three directions, so that a stress can be learnt."""
    radius: float = RADIUS
    """Radius to propose [Å]: the longest edge if graphs have their own edges; otherwise a radius
    within which atoms have about a hundred neighbours at most."""
    edges_are_cut: bool = False
    """True if the graphs' own edges leave out neighbours within ``radius``."""
    node_features: list[int] = field(default_factory=lambda: [0])
    """Indices of the node features' columns to propose as inputs of the network."""


def look(directory: Path) -> Finding:
    """Inspect a directory of labelled structures, to propose a first run configuration.

    Only some structures are read, but all are counted.

    Raises
    ------
    InputError
        If the directory holds no data, data of several formats, or nothing that can be learnt.
    """
    files = find_source(directory)
    if files.source["format"] == "hydragnn":
        return _look_at_store(files)
    kind = section_class(files.source["format"])
    # Any target will do here: labels are searched for in all values of a file.
    section = kind.model_validate({**files.source, "targets": {"anything": ""}})
    assert isinstance(section, FilesSection)
    reader: StructureSource[Any] = section.open(files.folder, 0)
    sizes: dict[Role, int] = dict.fromkeys(section.roles, 0)
    by_role = files_by_role(section, files.folder)
    for role, some in by_role.items():
        for file in some:
            with readable(file):
                sizes[role] += sum(stop - start for start, stop in reader.ranges(file))
    structures = list(_first(reader, by_role["train"]))
    if not structures:
        raise no_structures(directory)
    try:
        labels, unusable = find_labels(structures)
    except InputError as error:
        raise InputError(f"{directory}: {error}") from None
    if not labels and unusable:
        told = "; ".join(f"{key!r} is {why}" for key, why in unusable.items())
        raise InputError(
            f"{directory}: no label can be learnt ({told}); correct it, or leave out the "
            "structures without"
        )
    if not labels:
        unused = f"; not used: {', '.join(files.skipped)}" if files.skipped else ""
        raise InputError(
            f"{directory}: its structures have no labels that can be learnt ({files.used}"
            f"{unused}); add a CSV table with a column of file names and a column of numbers for "
            "each label"
        )
    numbers = [len(one.atoms) for one in structures]
    elements = sorted({z for one in structures for z in one.atoms.numbers.tolist()})
    return Finding(
        **vars(files),
        sizes=sizes,
        looked_at=len(structures),
        elements=_symbols(elements),
        atoms=(min(numbers), float(np.mean(numbers)), max(numbers)),
        labels=labels,
        unusable=unusable,
        have_cells=all(one.atoms.pbc.all() and one.atoms.cell.rank == 3 for one in structures),
        radius=_radius(structures),
    )


def _radius(structures: Sequence[Found]) -> float:
    """Return a radius [Å], at most 5, within which atoms have about a hundred neighbours at most.

    Structures may be dense: at high pressure, or if their positions are in another unit.
    """
    radius = RADIUS
    for number, one in enumerate(structures):
        # From small to large: a list of thousands of neighbours would take too long.
        for cutoff in radius / 2.0 ** np.arange(5, -1, -1):
            with suppress(InputError):  # the preparation reports what is wrong with it
                edges = atoms_to_graph(one.atoms, cutoff, None, number).edge_index
                if (most := max(np.bincount(edges[1]), default=0)) > 100:
                    radius = math.floor(100 * cutoff * (100 / most) ** (1 / 3)) / 100
                    break
    return radius


def _first(reader: StructureSource[Any], files: Sequence[Path]) -> Iterator[Found]:
    """Yield at most a few hundred structures, from files spread evenly over ``files``."""
    chosen = files[:: -(-len(files) // _LOOKED_AT)]
    for file in chosen:
        most = -(-_LOOKED_AT // len(chosen))
        with readable(file):
            yield from islice(reader.structures(file, 0, most), most)


def _look_at_store(files: Files) -> Finding:
    section = HydragnnSource.model_validate(files.source)
    reader = section.open(files.folder, 0)
    sizes: dict[Role, int] = {}
    graphs: list[Data] = []
    for chunk in reader.chunks():  # raises an error for a store without targets
        sizes[chunk.role] = sizes.get(chunk.role, 0) + chunk.stop - chunk.start
        some = islice(reader.read(chunk), _LOOKED_AT)
        graphs += [record.graph(math.inf, None) for record in some]
    with GraphStore.open(files.folder / section.file, mode="random") as store:
        manifest = store.manifest
    longest = max(map(longest_edge, graphs), default=0.0)
    # Rounded up: the radius is compared with edges.
    longest = max(math.ceil(1000 * longest) / 1000, manifest.cutoff or 0.0)
    longest = longest or RADIUS
    cut = any(truncation_of(graph, longest).atoms for graph in graphs)
    numbers = [len(graph.pos) for graph in graphs]
    columns = list(range(len(manifest.node_features)))
    return Finding(
        **vars(files),
        sizes=sizes,
        looked_at=len(graphs),
        elements=_symbols(manifest.elements),
        atoms=(min(numbers), float(np.mean(numbers)), max(numbers)),
        labels=[
            Label(name, name, target.level, target.dim, target.unit)
            for name, target in manifest.targets.items()
        ],
        radius=longest,
        edges_are_cut=cut,
        node_features=[0] if manifest.has_atoms else columns,
    )


def _symbols(numbers: Sequence[int]) -> list[str]:
    from ase.data import chemical_symbols

    return [chemical_symbols[z] if z < len(chemical_symbols) else str(z) for z in numbers]
