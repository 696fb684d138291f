"""Source of finite-element meshes: points with fields, joined by edges of the elements."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hydragnn_flow.data.neighbours import Neighbours
from hydragnn_flow.data.sources.arrays import in_space, lookup, named, node_features
from hydragnn_flow.data.sources.base import Nodes
from hydragnn_flow.data.sources.csv_tables import rows_of
from hydragnn_flow.data.sources.file_names import FileName, FilesSection, LevelledTargets
from hydragnn_flow.data.sources.structures import Found, StructureSource, points
from hydragnn_flow.errors import InputError

# Corners of the edges of each element, in meshio's (VTK's) order of nodes. Higher-order elements
# list their corners first.
_QUAD = ((0, 1), (1, 2), (2, 3), (3, 0))
_TRIANGLE = ((0, 1), (1, 2), (2, 0))
_EDGES: dict[str, tuple[tuple[int, int], ...]] = {
    "line": ((0, 1),),
    "triangle": _TRIANGLE,
    "quad": _QUAD,
    "tetra": (*_TRIANGLE, (0, 3), (1, 3), (2, 3)),
    "pyramid": (*_QUAD, (0, 4), (1, 4), (2, 4), (3, 4)),
    "wedge": (*_TRIANGLE, (3, 4), (4, 5), (5, 3), (0, 3), (1, 4), (2, 5)),
    "hexahedron": (*_QUAD, (4, 5), (5, 6), (6, 7), (7, 4), (0, 4), (1, 5), (2, 6), (3, 7)),
}
_DIMENSION = {"line": 1, "triangle": 2, "quad": 2}


class MeshSource(FilesSection):
    """Configuration section `data.source` for finite-element meshes that meshio reads.

    Nodes are mesh points. Edges are those of the elements; of higher-order elements, those between
    their corners.
    """

    reads = "finite-element meshes"
    labels = "point data, or columns of a table"
    of_atoms = False

    targets: LevelledTargets
    """Targets by name: level, unit, and key if it has another name. Targets of nodes are point
    data, targets of graphs columns of `table`."""
    features: tuple[str, ...] = Field(min_length=1)
    """Point data that become columns of `x`."""
    table: FileName | None = None
    """CSV of the graphs' targets: a column `file`, the mesh's path relative to the table, and one
    column for each target."""
    elements: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Element types that form the graph, by meshio's names. The default is the types of the highest
    dimension in a mesh, because the others mark its boundary."""
    loose_points: Literal["refuse", "drop"] = "refuse"
    """Treatment of points that belong to no element."""

    @model_validator(mode="after")
    def _complete(self) -> MeshSource:
        of_graphs = [name for name, label in self.targets.items() if label.level == "graph"]
        if of_graphs and self.table is None:
            raise ValueError(f"the graph target {of_graphs[0]!r} needs a table; name its file")
        levels: dict[str, str | None] = {}
        for name, label in self.targets.items():
            key = label.key or name
            if levels.setdefault(key, label.level) != label.level:
                raise ValueError(f"{key!r} is a target of graphs and one of nodes; rename one")
        return self

    def open(self, folder: Path, seed: int) -> MeshFiles:
        return MeshFiles(self, folder)


class MeshFiles(StructureSource[MeshSource]):
    """Reader of finite-element meshes in any format that meshio reads.

    Nodes are the corners of the elements. The features of an edge are its length and the number of
    elements that share it.
    """

    def __init__(self, section: MeshSource, folder: Path) -> None:
        super().__init__(section, folder)
        self.suffixes = _meshio().extension_to_filetypes

    def files(self) -> list[Path]:
        """Return every file that is read: the meshes, then the table of the graphs' targets."""
        table = [] if self._section.table is None else [self._folder / self._section.table]
        return [*super().files(), *table]

    def structure(self, file: Path) -> Found:
        origin = str(file)
        mesh = _read_mesh(file)
        blocks = [(block.type, block.data) for block in mesh.cells]
        edges, shared_by, members = element_edges(blocks, self._section.elements)
        self._check_points(len(mesh.points), members)
        nodes = np.unique(edges)
        positions = in_space(named({"points": mesh.points[nodes]}, "points", origin))
        fields = {name: np.asarray(values)[nodes] for name, values in mesh.point_data.items()}
        x, names = node_features(fields, self._section.features, len(nodes), origin)
        edges = np.searchsorted(nodes, edges)
        both_ways = np.concatenate([edges, edges[:, ::-1]])
        senders, receivers = both_ways.T
        lengths = np.linalg.norm(positions[receivers] - positions[senders], axis=1)
        order = np.lexsort((senders, lengths, receivers))
        senders, receivers, lengths = senders[order], receivers[order], lengths[order]
        bonds = Neighbours(senders, receivers, np.zeros((len(order), 3)), lengths)
        attributes = np.column_stack([lengths, np.tile(shared_by, 2)[order]])
        found = Nodes(x, names, bonds, attributes, of_topology=True)
        return Found(points(positions), self._values(fields, file), nodes=found)

    def _values(self, fields: Mapping[str, Any], file: Path) -> dict[str, Any]:
        """Return the labels of a mesh by key.

        Labels of nodes come from ``fields``, labels of the graph from the table's row for ``file``.
        """
        values: dict[str, Any] = {}
        for name, target in self._section.targets.items():
            key = target.key or name
            there = fields if target.level == "node" else self._row(file)
            values[key] = lookup(there, key, str(file), "label", f"targets.{name}.key")
        return values

    def _check_points(self, n_points: int, members: NDArray[np.int64]) -> None:
        if members[0] < 0 or members[-1] >= n_points:
            raise ValueError(f"elements of points it does not have, of {n_points}")
        loose = np.setdiff1d(np.arange(n_points), members)
        if len(loose) and self._section.loose_points == "refuse":
            raise ValueError(
                f"{len(loose)} point(s) are in no element of the graph, the first being point "
                f"{loose[0]}; remove them or set data.source.loose_points to drop"
            )

    def _row(self, file: Path) -> Mapping[str, Any]:
        row = self._table.get(file.resolve())
        if row is None:
            raise InputError(
                f"{self._folder / str(self._section.table)} has no row for {file}; add one with "
                "its path seen from the table in the column file"
            )
        return row

    @cached_property
    def _table(self) -> dict[Path, dict[str, str | None]]:
        path = self._folder / str(self._section.table)
        rows: dict[Path, dict[str, str | None]] = {}
        for _, row in rows_of(path):
            name = lookup(row, "file", str(path), "column", "table")
            file = (path.parent / str(name)).resolve()
            if file in rows:
                raise InputError(f"{path} has two rows for {file}; remove one")
            rows[file] = row
        return rows


def _meshio() -> Any:
    try:
        import meshio
    except ModuleNotFoundError:
        raise InputError(
            "data.source.format: mesh needs meshio, which is not installed; "
            'pip install "hydragnn_flow[mesh]"'
        ) from None
    return meshio


def _read_mesh(file: Path) -> Any:
    said = io.StringIO()
    try:
        # On errors meshio prints a message and exits the interpreter.
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return _meshio().read(file)
    except SystemExit:
        raise ValueError(" ".join(said.getvalue().split()).removeprefix("Error: ")) from None


def element_edges(
    cells: Sequence[tuple[str, Any]], chosen: Sequence[str] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the edges of a finite-element mesh, and how many elements share each edge.

    Parameters
    ----------
    cells
        Element type by meshio's name and points of each element [n_elements, n_points], for each
        block of the mesh.
    chosen
        Element types that form the graph; by default those of the highest dimension.

    Returns
    -------
    tuple
        Indices of the points of each edge, the lower first, [n_edges, 2] in ascending order; the
        number of elements that share each edge, [n_edges]; the indices of all points of the
        elements, ascending.

    Raises
    ------
    ValueError
        If the edges of an element type are not known, or no element or no edge is left.
    """
    # A vertex is a marked point, which has no edges.
    cells = [(kind, corners) for kind, corners in cells if kind != "vertex" and len(corners)]
    if chosen is None:
        highest = max((_dimension(kind) for kind, _ in cells), default=0)
        cells = [(kind, corners) for kind, corners in cells if _dimension(kind) == highest]
    else:
        cells = [(kind, corners) for kind, corners in cells if kind in chosen]
    if not cells:
        wanted = " or ".join(chosen or ("line, triangle or other element",))
        raise ValueError(f"it has no {wanted}; give a mesh that has, or name other elements")
    members = np.unique(np.concatenate([np.ravel(corners) for _, corners in cells])).astype(
        np.int64
    )
    # Both ends of an edge in one number, which sorts many times faster than pairs.
    span = members[-1] + 1
    found = []
    for kind, corners in cells:
        ends = np.asarray(corners, dtype=np.int64)[:, np.array(_edges(kind))]
        codes = np.sort(ends.min(axis=2) * span + ends.max(axis=2), axis=1)
        # A quad that repeats a corner is a triangle: drop edges to itself and repeated ones.
        edge = codes // span != codes % span
        edge[:, 1:] &= codes[:, 1:] != codes[:, :-1]
        found.append(codes[edge])
    codes, shared_by = np.unique(np.concatenate(found), return_counts=True)
    if not len(codes):
        raise ValueError("it has elements of one point only, which have no edges")
    return np.column_stack(np.divmod(codes, span)), shared_by, members


def _edges(kind: str) -> tuple[tuple[int, int], ...]:
    """Return the edges of an element type as pairs of corners.

    ``kind`` is meshio's name of the type; ``triangle6`` has the edges of ``triangle``.
    """
    found = re.fullmatch(r"([a-z]+)\d*", kind)
    if found is None or found[1] not in _EDGES:
        raise ValueError(
            f"the edges of elements of the type {kind!r} are not known; convert them to "
            f"{', '.join(_EDGES)}, or name the elements to use in data.source.elements"
        )
    return _EDGES[found[1]]


def _dimension(kind: str) -> int:
    _edges(kind)
    return _DIMENSION.get(kind.rstrip("0123456789"), 3)
