"""Inspection of a directory of data for a first configuration: files, structures, labels."""

from __future__ import annotations

import gzip
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Data

from hydragnn_flow.config.sources import Level, Role, TargetConfig, good_names, section_class
from hydragnn_flow.data.graphs import atoms_to_graph, longest_edge, truncation_of
from hydragnn_flow.data.reading.graph_store import GraphStore
from hydragnn_flow.data.sources.arrays import shaped
from hydragnn_flow.data.sources.ase_files import UnknownFormat, format_of
from hydragnn_flow.data.sources.csv_tables import rows_of
from hydragnn_flow.data.sources.file_names import (
    FilesSection,
    files_by_role,
    find_files,
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
    kinds: dict[str, list[Path]] = {}
    for entry in sorted(directory.iterdir(), key=natural_order):
        if entry.name[0] != "." and (entry.is_file() or _is_store(entry)):
            kinds.setdefault(_kind(entry), []).append(entry)
    skipped = [file.name for file in kinds.pop("", ())]
    tables = {file: column for file in kinds.get("csv", ()) if (column := _column(file))}
    if tables and all(is_path for _, is_path in tables.values()):
        # These structures are named by the rows of the tables.
        kinds = {kind: found for kind, found in kinds.items() if not kind.startswith("ase: ")}
    for kind in list(kinds):
        if (kind == "csv" and not tables and kinds.keys() - {"csv", "ase: cif"}) or (
            kind in _BY_HAND.values() and _STORE in kinds
        ):
            skipped += [file.name for file in kinds.pop(kind)]
    if "csv" in kinds and not tables:
        raise InputError(
            f"{kinds['csv'][0]}: no column names structure files (relative to the table, with "
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
    named: dict[str, Any] = {}
    for role, some in roles.items():
        named[role] = _files_name(directory, role, some)
    section: dict[str, Any] = {"format": kind.partition(":")[0], **named, **keys}
    return Files(directory, section, kind.removeprefix("ase: "), skipped + left)


def _is_store(path: Path) -> bool:
    return path.is_dir() and (path.suffix == ".bp" or (path / MANIFEST).is_file())


def _stored(store: Path, skipped: list[str]) -> Files:
    section: dict[str, Any] = {"format": _STORE, "file": store.name}
    used = "HydraGNN's .bp" if store.suffix == ".bp" else "GraphStore"
    return Files(store.absolute().parent, section, used, skipped)


def _kind(entry: Path) -> str:
    """Return the format of `data.source` that reads ``entry``; an empty string if it is no data.

    For files that ASE reads, ASE's own name of the format follows: ``ase: extxyz``.
    """
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
    """Return the format of a JSON file, judged by its first 200 bytes.

    ``json`` stands for records or a table, ``ase: json`` for an ase.db, an empty string for
    anything else.
    """
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
    """Return the name of a table's column of structures, and whether its cells are paths.

    The second value is False if the cells are CIF text. The result is None if the table has no
    column of structures.
    """
    try:
        rows = [row for _, row in islice(rows_of(table), 20)]
    except InputError:  # a table of something else
        return None
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
    """Return files by role, judged by words in their names, and the names of files left over."""
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


def _files_name(directory: Path, role: Role, files: Sequence[Path]) -> str:
    """Return a file name or a glob that matches exactly ``files``, which are those for ``role``."""
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


_UNITS = {
    "energy": "eV",
    "forces": "eV/Å",
    "stress": "eV/Å³",
    "dipole": "e·Å",
    "charges": "e",
    "magmom": "μB",
    "magmoms": "μB",
}
"""Units of ASE's results of calculations; energy and forces in mlearn's records have the same."""
_NO_LABELS = {"", "index", "id", "frame", "step", "number", "row", "nsites", "natoms", "num_atoms"}
_NO_LABELS |= {"n_atoms", "nelements", "spacegroup", "spacegroup_number", "spacegroup_kinds"}
_NO_LABELS |= {"free_energy", "tags", "momenta", "initial_magmoms", "initial_charges", "move_mask"}


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


def find_labels(structures: Sequence[Found]) -> tuple[list[Label], dict[str, int]]:
    """Find the quantities of structures, such as energies, that a network could learn.

    They are in the order of the files. Each has the same shape in all structures, with at most nine
    numbers for each structure or atom. Identifiers and counters (whole numbers that grow by one
    from each structure to the next) are left out.

    Returns
    -------
    labels
        Quantities that every structure has.
    partial
        Number of structures that have a quantity, by its key, for quantities that only some have.
    """
    found, partial = [], {}
    for key in dict.fromkeys(key for one in structures for key in one.values):
        if key.lower() in _NO_LABELS or key.lower().endswith("_id"):
            continue
        values = [value for one in structures if (value := _label(one, key)) is not None]
        if not values or _is_counter(values):
            continue
        of_atoms = {value.ndim == 2 for value in values}
        dims = {value.shape[-1] for value in values}
        if len(of_atoms) > 1 or len(dims) > 1 or (dim := dims.pop()) > 9:
            continue
        if len(values) < len(structures):
            partial[key] = len(values)
            continue
        level: Level = "node" if of_atoms.pop() else "graph"
        found.append(Label(_name(key), key, level, dim, _unit(key)))
    return found, partial


def _label(one: Found, key: str) -> NDArray[np.float64] | None:
    value: Any = one.values.get(key)
    if value is None or isinstance(value, (bool, np.bool_)):
        return None
    try:
        array = shaped(value, one.levels.get(key), len(one.atoms))
    except (TypeError, ValueError):
        return None
    fits = array.size > 0 and np.isfinite(array).all()
    return array if fits and (array.ndim == 1 or len(array) == len(one.atoms)) else None


def _is_counter(values: Sequence[NDArray[np.float64]]) -> bool:
    if len(values) < 3 or any(value.shape != (1,) for value in values):
        return False
    return bool((np.diff(np.concatenate(values)) == 1).all())


def _unit(key: str) -> str:
    """Return the unit in brackets at the end of a key, otherwise ASE's; empty if unknown."""
    brackets = re.search(r"[\[(]\s*([^\])]+?)\s*[\])]\s*$", key)
    return brackets[1] if brackets else _UNITS.get(key, "")


def _name(key: str) -> str:
    """Return a valid target name for a key."""
    bare = re.sub(r"[\[(][^\])]*[\])]\s*$", "", key)
    name = re.sub(r"\W+", "_", bare, flags=re.ASCII).strip("_") or "target"
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
    partial: dict[str, int] = field(default_factory=dict)
    """Number of structures that have a quantity, by its key, for quantities that only some have."""
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
    labels, partial = find_labels(structures)
    if not labels and partial:
        key = max(partial, key=lambda key: partial[key])
        raise InputError(
            f"{directory}: only {partial[key]} of {len(structures)} structures looked at have a "
            f"label {key!r}, and no label is in all; leave out the structures without"
        )
    if not labels:
        raise InputError(
            f"{directory}: its structures have no labels that can be learnt ({files.used}); add a "
            f"CSV table with a column of file names and a column of numbers for each label"
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
        partial=partial,
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
