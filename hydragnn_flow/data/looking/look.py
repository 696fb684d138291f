"""Inspection of the structures and labels of a directory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn_flow.config.sources import Role, section_class
from hydragnn_flow.data.graphs import atoms_to_graph
from hydragnn_flow.data.looking.files import Files, find_source
from hydragnn_flow.data.looking.labels import Label, find_labels
from hydragnn_flow.data.reading.graph_store import GraphStore
from hydragnn_flow.data.sources.base import ReadyGraph
from hydragnn_flow.data.sources.file_names import FilesSection, files_by_role
from hydragnn_flow.data.sources.hydragnn import HydragnnSource
from hydragnn_flow.data.sources.structures import Found, StructureSource, no_structures, readable
from hydragnn_flow.errors import InputError

_LOOKED_AT = 200
RADIUS = 5.0
"""Radius of graphs [Å], where no atom has more than a hundred neighbours within it."""


@dataclass(frozen=True)
class Finding:
    """Content of a directory, as far as a first configuration needs it."""

    folder: Path
    """Directory that file names in ``source`` are relative to."""
    source: dict[str, Any]
    """Section `data.source` without targets."""
    used: str
    """Name of the format in words."""
    sizes: dict[Role, int]
    """Number of structures of each role with files of its own."""
    looked_at: int
    """Number of structures that were read, to which the following refers."""
    elements: list[str]
    atoms: tuple[int, float, int]
    """Minimum, mean and maximum number of atoms of a structure."""
    labels: list[Label]
    skipped: list[str] = field(default_factory=list)
    """Names of files that are not used."""
    partial: dict[str, int] = field(default_factory=dict)
    """Keys that only some structures have, and the number of these."""
    radius: float = RADIUS
    """Longest edge if graphs have their own edges; else a radius within which atoms have no more
    neighbours than a network handles in good time."""
    edges_are_cut: bool = False
    """True if the graphs' edges leave out neighbours that are as near."""
    node_features: list[int] = field(default_factory=lambda: [0])
    """Indices of the columns of the node features."""


def look(directory: Path) -> Finding:
    """Inspect a directory of structures with labels.

    Some structures are read, and all are counted.

    Raises
    ------
    InputError
        If it holds no data, data of several formats, or nothing that can be learnt.
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
        files.folder,
        files.source,
        files.used,
        sizes,
        len(structures),
        _symbols(elements),
        (min(numbers), float(np.mean(numbers)), max(numbers)),
        labels,
        files.skipped,
        partial,
        _radius(structures),
    )


def _radius(structures: Sequence[Found]) -> float:
    """Return a radius for structures that may be dense, as at high pressure or in another unit."""
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
    """Yield some structures from files spread evenly among all."""
    chosen = files[:: -(-len(files) // _LOOKED_AT)]
    for file in chosen:
        most = -(-_LOOKED_AT // len(chosen))
        with readable(file):
            yield from islice(reader.structures(file, 0, most), most)


def _look_at_store(files: Files) -> Finding:
    section = HydragnnSource.model_validate(files.source)
    reader = section.open(files.folder, 0)
    sizes: dict[Role, int] = {}
    records: list[ReadyGraph] = []
    for chunk in reader.chunks():  # raises an error for a store without targets
        sizes[chunk.role] = sizes.get(chunk.role, 0) + chunk.stop - chunk.start
        some = islice(reader.read(chunk), _LOOKED_AT)
        records += [record for record in some if isinstance(record, ReadyGraph)]
    with GraphStore.open(files.folder / section.file, mode="random") as store:
        manifest = store.manifest
    longest = max((record.longest_edge for record in records), default=0.0)
    # Rounded up: the radius is compared with edges.
    longest = max(math.ceil(1000 * longest) / 1000, manifest.cutoff or 0.0)
    longest = longest or RADIUS
    cut = any(record.truncation(record.data, longest, None).atoms for record in records)
    numbers = [len(record.data.pos) for record in records]
    columns = list(range(len(manifest.node_features)))
    return Finding(
        files.folder,
        files.source,
        files.used,
        sizes,
        len(records),
        _symbols(manifest.elements),
        (min(numbers), float(np.mean(numbers)), max(numbers)),
        [
            Label(name, name, target.level, target.dim, target.unit)
            for name, target in manifest.targets.items()
        ],
        files.skipped,
        radius=longest,
        edges_are_cut=cut,
        node_features=[0] if manifest.node_features[:1] == ["atomic_number"] else columns,
    )


def _symbols(numbers: Sequence[int]) -> list[str]:
    from ase.data import chemical_symbols

    return [chemical_symbols[z] if z < len(chemical_symbols) else str(z) for z in numbers]
