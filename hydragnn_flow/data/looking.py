"""Inspection of a directory of data for a first configuration: files, structures, labels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch_geometric.data import Data

from hydragnn_flow.config.sources import Role, section_class
from hydragnn_flow.data.found_files import Files, find_source
from hydragnn_flow.data.found_labels import Label, find_labels
from hydragnn_flow.data.graphs import atoms_to_graph, longest_edge, truncation_of
from hydragnn_flow.data.reading.graph_store import GraphStore
from hydragnn_flow.data.sources.file_names import (
    FilesSection,
    files_by_role,
)
from hydragnn_flow.data.sources.hydragnn import HydragnnSource
from hydragnn_flow.data.sources.labels import CONFIG_WEIGHT, MissingLabel, weight_in
from hydragnn_flow.data.sources.structures import Found, StructureSource, no_structures, readable
from hydragnn_flow.data.store.manifest import symbols
from hydragnn_flow.errors import InputError

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


def look(path: Path) -> Finding:
    """Inspect a directory or file of labelled structures, to propose a first run configuration.

    Only some structures are read, but all are counted.

    Raises
    ------
    InputError
        If the directory holds no data, data of several formats, or nothing that can be learnt.
    """
    files = find_source(path)
    if files.source["format"] == "hydragnn":
        return _look_at_store(files)
    kind = section_class(files.source["format"])
    # Any target will do here: labels are searched for in all values of a file.
    section = kind.model_validate({**files.source, "targets": {"anything": ""}})
    assert isinstance(section, FilesSection)
    reader: StructureSource[Any] = section.open(files.folder, 0)
    sizes: dict[Role, int] = dict.fromkeys(section.roles, 0)
    by_role, faults = files_by_role(section, files.folder), list[str]()
    for role, some in by_role.items():
        for file in some:
            with readable(file, faults):
                sizes[role] += sum(stop - start for start, stop in reader.ranges(file))
    structures = list(_first(reader, by_role["train"], faults))
    if faults or not structures:
        raise no_structures(path, faults)
    try:
        labels, unusable = find_labels(structures)
        if files.source["format"] == "ase":  # which defines the units of energies and slopes
            labels = [replace(label, assumed=False) for label in labels]
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if not labels and unusable:
        told = "; ".join(f"{key!r} is {why}" for key, why in unusable.items())
        raise InputError(
            f"{path}: no label can be learnt ({told}); correct it, or leave out the "
            "structures without"
        )
    if not labels:
        unused = f"; not used: {', '.join(files.skipped)}" if files.skipped else ""
        raise InputError(
            f"{path}: its structures have no labels that can be learnt ({files.used}"
            f"{unused}); add a CSV table with a column of file names and a column of numbers for "
            "each label"
        )
    if "weight" in kind.model_fields and len(_weights(structures, path)) > 1:
        files = replace(files, source={**files.source, "weight": CONFIG_WEIGHT})
    numbers = [len(one.atoms) for one in structures]
    elements = sorted({z for one in structures for z in one.atoms.numbers.tolist()})
    return Finding(
        **vars(files),
        sizes=sizes,
        looked_at=len(structures),
        elements=symbols(elements),
        atoms=(min(numbers), float(np.mean(numbers)), max(numbers)),
        labels=labels,
        unusable=unusable,
        have_cells=all(one.atoms.pbc.all() and one.atoms.cell.rank == 3 for one in structures),
        radius=_radius(structures),
    )


def _weights(structures: Sequence[Found], path: Path) -> set[float]:
    """Return all weights above 0 that MACE's key gives the structures."""
    weights = set()
    for number, one in enumerate(structures):
        with suppress(MissingLabel):
            origin = f"{path}: number {number} of the structures looked at"
            weights.add(weight_in(one.values, CONFIG_WEIGHT, origin).item())
    return weights


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


def _first(
    reader: StructureSource[Any], files: Sequence[Path], faults: list[str]
) -> Iterator[Found]:
    """Yield at most a few hundred structures, from files spread evenly over ``files``.

    Those that cannot be read are added to ``faults``.
    """
    chosen = files[:: -(-len(files) // _LOOKED_AT)]
    for file in chosen:
        most = -(-_LOOKED_AT // len(chosen))
        with readable(file, faults):
            yield from (found for _, found in reader.found(file, 0, most))


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
        elements=symbols(manifest.elements),
        atoms=(min(numbers), float(np.mean(numbers)), max(numbers)),
        labels=[
            Label(name, name, target.level, target.dim, target.unit, classes=target.classes)
            for name, target in manifest.targets.items()
        ],
        radius=longest,
        edges_are_cut=cut,
        node_features=[0] if manifest.has_atoms else columns,
    )
