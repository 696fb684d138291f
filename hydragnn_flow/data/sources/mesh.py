"""Source of finite-element meshes: points with fields, joined by edges of the elements."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hydragnn_flow.data.sources.base import ReadyGraph, Record
from hydragnn_flow.data.sources.features import in_space, named, node_features
from hydragnn_flow.data.sources.file_names import FileName, FilesSection
from hydragnn_flow.data.sources.graph_files import GraphFiles, LevelledTargets, read_columns
from hydragnn_flow.data.sources.mesh_edges import element_edges
from hydragnn_flow.errors import InputError


class MeshSource(FilesSection):
    """Finite-element meshes in any format that meshio reads: nodes are mesh points, edges those of
    the elements (for higher-order elements, those between their corners)."""

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
        return self

    def open(self, folder: Path, seed: int) -> MeshFiles:
        return MeshFiles(self, folder)


class MeshFiles(GraphFiles[MeshSource]):
    """Reader of meshes in any format of meshio.

    Nodes are the corners of the elements; edges have their length and the number of elements that
    share them.

    Parameters
    ----------
    section
        Section of the source: files, features, targets and elements.
    folder
        Directory that the file names are relative to.
    """

    def __init__(self, section: MeshSource, folder: Path) -> None:
        super().__init__(section, folder, suffixes=_meshio().extension_to_filetypes)

    def files(self) -> list[Path]:
        """Return every file that is read, in order."""
        table = [] if self._section.table is None else [self._folder / self._section.table]
        return [*super().files(), *table]

    def _read(self, path: Path, index: int) -> tuple[Record, Sequence[str]]:
        from hydragnn_flow.data.graphs import assemble_graph
        from hydragnn_flow.data.neighbours import Neighbours

        origin = str(path)
        mesh = read_mesh(path)
        blocks = [(block.type, block.data) for block in mesh.cells]
        edges, shared_by, members = element_edges(blocks, self._section.elements, path)
        self._check_points(len(mesh.points), members, path)
        nodes = np.unique(edges)
        n = len(nodes)
        positions = in_space(named({"points": mesh.points[nodes]}, "points", origin))
        fields = {name: np.asarray(values)[nodes] for name, values in mesh.point_data.items()}
        x, names = node_features(fields, self._section.features, n, origin)
        targets = self._targets(fields, self._row(path), n, origin)
        edges = np.searchsorted(nodes, edges)
        both_ways = np.concatenate([edges, edges[:, ::-1]])
        senders, receivers = both_ways.T
        lengths = np.linalg.norm(positions[receivers] - positions[senders], axis=1)
        order = np.lexsort((senders, lengths, receivers))
        senders, receivers, lengths = senders[order], receivers[order], lengths[order]
        graph = assemble_graph(
            x,
            positions,
            np.zeros((3, 3)),
            np.zeros(3, dtype=np.bool_),
            Neighbours(senders, receivers, np.zeros((len(order), 3)), lengths),
            graph_id=index,
            targets=targets,
            edge_attr=np.column_stack([lengths, np.tile(shared_by, 2)[order]]),
            origin=origin,
        )
        return ReadyGraph(graph, origin, index, of_topology=True), names

    def _check_points(self, n_points: int, members: NDArray[np.int64], path: Path) -> None:
        if members[0] < 0 or members[-1] >= n_points:
            raise InputError(
                f"{path} has elements of points it does not have (it has {n_points}); correct it"
            )
        loose = np.setdiff1d(np.arange(n_points), members)
        if len(loose) and self._section.loose_points == "refuse":
            raise InputError(
                f"{path} has {len(loose)} point(s) in no element of the graph, the first being "
                f"point {loose[0]}; remove them or set data.source.loose_points to drop"
            )

    def _row(self, path: Path) -> dict[str, NDArray[Any]]:
        if self._section.table is None:
            return {}
        row = self._table.get(path.resolve())
        if row is None:
            raise InputError(
                f"{self._folder / self._section.table} has no row for {path}; add one with its "
                "path seen from the table in the column file"
            )
        return row

    @cached_property
    def _table(self) -> dict[Path, dict[str, NDArray[Any]]]:
        path = self._folder / str(self._section.table)
        columns = read_columns(path, text=["file"])
        if "file" not in columns:
            raise InputError(f"{path} has no column 'file' to name the meshes; add it")
        files = [(path.parent / str(name)).resolve() for name in columns.pop("file")]
        if len(set(files)) != len(files):
            twice = next(file for file in files if files.count(file) > 1)
            raise InputError(f"{path} has two rows for {twice}; remove one")
        return {
            file: {name: values[i] for name, values in columns.items()}
            for i, file in enumerate(files)
        }


def _meshio() -> Any:
    try:
        import meshio
    except ModuleNotFoundError:
        raise InputError(
            "data.source.format: mesh needs meshio, which is not installed; "
            'pip install "hydragnn_flow[mesh]"'
        ) from None
    return meshio


def read_mesh(path: Path) -> Any:
    """Read a mesh with meshio.

    Raises
    ------
    InputError
        If meshio cannot read the file.
    """
    meshio = _meshio()
    reasons, outcome = io.StringIO(), io.StringIO()
    try:
        # On errors meshio prints a message and exits the interpreter.
        with contextlib.redirect_stdout(reasons), contextlib.redirect_stderr(outcome):
            return meshio.read(path)
    except (Exception, SystemExit) as error:
        reason = str(error)
        if isinstance(error, SystemExit):
            reason = reasons.getvalue().strip() or outcome.getvalue()
        reason = " ".join(reason.split()).removeprefix("Error: ") or type(error).__name__
        raise InputError(
            f"{path} cannot be read as a mesh ({reason}); give a file meshio can read"
        ) from None
