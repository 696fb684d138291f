"""Source of Voronoi graphs of point sets: cells of a box, joined if they share a facet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.neighbours import Neighbours
from hydragnn_flow.data.sources.arrays import in_space, named, node_features
from hydragnn_flow.data.sources.base import Nodes
from hydragnn_flow.data.sources.csv_tables import rows_of
from hydragnn_flow.data.sources.file_names import FilesSection, LevelledTargets
from hydragnn_flow.data.sources.structures import Found, StructureSource, points

_AXES = ("x", "y", "z")


class VoronoiSource(FilesSection):
    """Configuration section `data.source` for point sets, whose Voronoi cells become graphs.

    Points are grains, cells or particles of a microstructure. A `.npz` holds one set: `points` [n,
    d] with d of 2 or 3, and further arrays. A `.csv` also holds one set: columns `x`, `y` and
    perhaps `z`, and one for each feature.
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

    def open(self, folder: Path, seed: int) -> VoronoiFiles:
        return VoronoiFiles(self, folder)


class VoronoiFiles(StructureSource[VoronoiSource]):
    """Reader of point sets in `.npz` and `.csv` files, as graphs of their Voronoi cells.

    Features of a node are those that the section chooses, and the volume (in two dimensions, area)
    of its cell. Features of an edge are the distance of its two points and the area (length) of the
    facet between their cells.
    """

    suffixes = (".npz", ".csv")

    def structure(self, file: Path) -> Found:
        origin = str(file)
        arrays = _arrays(file)
        places = named(arrays, "points", origin)
        if places.ndim != 2 or places.shape[1] not in (2, 3) or not len(places):
            raise ValueError(f"points has the shape {list(places.shape)}, not [n, 2] or [n, 3]")
        n, d = places.shape
        features, names = node_features(arrays, self._section.features, n, origin)
        box, periodic = self._domain(arrays, d, origin)
        from hydragnn_flow.data.tessellation import tessellate

        cells = tessellate(places, box, periodic)
        edges = Neighbours(cells.senders, cells.receivers, in_space(cells.shifts), cells.distances)
        nodes = Nodes(
            np.column_stack([features, cells.volumes]),
            [*names, "cell_area" if d == 2 else "cell_volume"],
            edges,
            np.column_stack([cells.distances, cells.areas]),
            of_topology=True,
        )
        periods = np.where(periodic, box[:, 1] - box[:, 0], 0.0)
        lattice = np.diag(np.pad(periods, (0, 3 - d)))
        atoms = points(in_space(places), lattice, np.pad(periodic, (0, 3 - d)))
        return Found(atoms, arrays, nodes=nodes)

    def _domain(
        self, arrays: Mapping[str, Any], d: int, origin: str
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return lowest and highest coordinate of each direction, and which are periodic.

        The arrays are [d, 2] and, as a mask, [d].
        """
        box = named({"box": self._section.box} if self._section.box else arrays, "box", origin)
        if box.shape != (d, 2) or (box[:, 0] >= box[:, 1]).any():
            raise ValueError(f"the box is not [lowest, highest] of each of the {d} directions")
        if unknown := set(self._section.periodic) - set(_AXES[:d]):
            raise ValueError(f"{d} dimensions, but data.source.periodic names {min(unknown)}")
        return box, np.array([axis in self._section.periodic for axis in _AXES[:d]])


def _arrays(file: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file, with the coordinates as ``points``."""
    if file.suffix.lower() != ".csv":
        with np.load(file, allow_pickle=False) as content:
            return dict(content)
    rows = [row for _, row in rows_of(file)]
    arrays: dict[str, NDArray[Any]] = {}
    for name in rows[0]:
        cells = [row[name] for row in rows]
        try:
            arrays[name] = np.array(cells, dtype=np.float64)
        except ValueError:  # a column of text, which no key may name
            arrays[name] = np.array(cells)
    axes = [
        named(arrays, axis, str(file)) for axis in _AXES if axis in ("x", "y") or axis in arrays
    ]
    return {**arrays, "points": np.column_stack(axes)}
