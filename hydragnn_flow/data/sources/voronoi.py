"""Source of Voronoi graphs of point sets, whose cells are joined if they share a facet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator

from hydragnn_flow.data.sources.base import ReadyGraph, Record
from hydragnn_flow.data.sources.features import in_space, named, node_features
from hydragnn_flow.data.sources.file_names import FilesSection
from hydragnn_flow.data.sources.graph_files import GraphFiles, LevelledTargets, read_columns
from hydragnn_flow.errors import InputError

_AXES = ("x", "y", "z")
_SIZE = {2: "cell_area", 3: "cell_volume"}


class VoronoiSource(FilesSection):
    """Voronoi graphs of point sets: grains, cells or particles of a microstructure.

    A `.npz` holds one set: `points` [n, d] with d of 2 or 3, and further arrays. A `.csv` also
    holds one set: columns `x`, `y` and perhaps `z`, and one for each feature.
    """

    reads = "point sets, such as grains or cells"
    labels = "arrays or columns"
    of_atoms = False

    targets: LevelledTargets
    """Targets by name: level, unit, and array or column if it has another name."""
    features: tuple[str, ...] = ()
    """Arrays of the points that become columns of `x`. The last column is always the volume (area)
    of the cell."""
    box: tuple[tuple[float, float], ...] | None = None
    """Lowest and highest coordinate of each direction. By default each `.npz` has its own, an array
    `box` [d, 2]."""
    periodic: tuple[Literal["x", "y", "z"], ...] = ()
    """Directions in which the box is periodic. The other directions end in walls."""

    @field_validator("box")
    @classmethod
    def _has_volume(
        cls, box: tuple[tuple[float, float], ...] | None
    ) -> tuple[tuple[float, float], ...] | None:
        if box is not None and (len(box) not in (2, 3) or any(low >= high for low, high in box)):
            raise ValueError("give [lowest, highest] of two or three directions")
        return box

    def open(self, folder: Path, seed: int) -> VoronoiFiles:
        return VoronoiFiles(self, folder)


class VoronoiFiles(GraphFiles[VoronoiSource]):
    """Reader of point sets in `.npz` and `.csv` files.

    Nodes have the chosen features and the size of their cell; edges have the distance of the two
    points and the area (length) of the facet between their cells.

    Parameters
    ----------
    section
        Section of the source: files, box, features and targets.
    folder
        Directory that the file names are relative to.
    """

    def __init__(self, section: VoronoiSource, folder: Path) -> None:
        super().__init__(section, folder, suffixes=(".npz", ".csv"))

    def _read(self, path: Path, index: int) -> tuple[Record, Sequence[str]]:
        from hydragnn_flow.data.graphs import assemble_graph
        from hydragnn_flow.data.neighbours import Neighbours
        from hydragnn_flow.data.sources.tessellation import tessellate

        origin = str(path)
        arrays = _read_csv(path) if path.suffix.lower() == ".csv" else _read_npz(path)
        points = named(arrays, "points", origin)
        if points.ndim != 2 or points.shape[1] not in _SIZE or not len(points):
            raise InputError(
                f"{origin}: points has the shape {list(points.shape)}, not [n, 2] or [n, 3] with "
                "one point at least; correct it"
            )
        n, d = points.shape
        features, names = node_features(arrays, self._section.features, n, origin)
        targets = self._targets(arrays, arrays, n, origin)
        box, periodic = self._domain(arrays, d, origin)
        try:
            cells = tessellate(points, box, periodic)
        except InputError as error:
            raise InputError(f"{origin}: {error}") from None
        graph = assemble_graph(
            np.column_stack([features, cells.volumes]),
            in_space(points),
            _lattice(box, periodic),
            np.pad(periodic, (0, 3 - d)),
            Neighbours(cells.senders, cells.receivers, in_space(cells.shifts), cells.distances),
            graph_id=index,
            targets=targets,
            edge_attr=np.column_stack([cells.distances, cells.areas]),
            origin=origin,
        )
        return ReadyGraph(graph, origin, index, of_topology=True), [*names, _SIZE[d]]

    def _domain(
        self, arrays: dict[str, NDArray[Any]], d: int, origin: str
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return lowest and highest coordinate of each direction, and the periodic ones."""
        if self._section.box is not None:
            box = np.array(self._section.box)
        elif "box" in arrays:
            box = named(arrays, "box", origin)
        else:
            raise InputError(f"{origin} has no array 'box' [{d}, 2]; add it or set data.source.box")
        if box.shape != (d, 2) or (box[:, 0] >= box[:, 1]).any():
            raise InputError(
                f"{origin}: the box is not [lowest, highest] of each of the {d} directions; "
                "correct it"
            )
        if unknown := set(self._section.periodic) - set(_AXES[:d]):
            raise InputError(
                f"{origin} has {d} dimensions, but data.source.periodic names {min(unknown)}; "
                "correct it"
            )
        return box, np.array([axis in self._section.periodic for axis in _AXES[:d]])


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except Exception as error:  # a damaged archive can raise any exception
        raise InputError(
            f"{path} cannot be read as a .npz of plain arrays ({error}); write it with numpy.savez"
        ) from None


def _read_csv(path: Path) -> dict[str, NDArray[Any]]:
    arrays = read_columns(path)
    axes = [axis for axis in _AXES if axis in arrays]
    if axes[:2] != ["x", "y"]:
        raise InputError(f"{path} has no columns x and y for the points' coordinates; add them")
    arrays["points"] = np.column_stack([named(arrays, axis, str(path)) for axis in axes])
    return arrays


def _lattice(box: NDArray[np.float64], periodic: NDArray[np.bool_]) -> NDArray[np.float64]:
    period = np.where(periodic, box[:, 1] - box[:, 0], 0.0)
    return np.diag(np.pad(period, (0, 3 - len(period))))
