"""Edges of the elements of a finite-element mesh."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
# Type of a marked point, which has no edges.
_POINT = "vertex"


def element_edges(
    cells: Sequence[tuple[str, Any]], chosen: Sequence[str] | None, path: Path
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the edges of the elements of a mesh.

    Parameters
    ----------
    cells
        Element type by meshio's name and points of each element [n_elements, n_points], for each
        block of the mesh.
    chosen
        Element types that form the graph; by default those of the highest dimension.
    path
        File of the mesh, for messages.

    Returns
    -------
    tuple
        Points of each edge, the lower first, [n_edges, 2] in ascending order; the number of
        elements that share it, [n_edges]; all points of the elements, ascending.

    Raises
    ------
    InputError
        If the edges of a type are not known, or no element or no edge is left.
    """
    cells = [(kind, points) for kind, points in cells if kind != _POINT and len(points)]
    if chosen is None:
        highest = max((_dimension(kind, path) for kind, _ in cells), default=0)
        cells = [(kind, points) for kind, points in cells if _dimension(kind, path) == highest]
    else:
        cells = [(kind, points) for kind, points in cells if kind in chosen]
    if not cells:
        wanted = " or ".join(chosen or ("line, triangle or other element",))
        raise InputError(f"{path} has no {wanted}; give a mesh that has, or name other elements")
    members = np.unique(np.concatenate([np.ravel(points) for _, points in cells])).astype(np.int64)
    # Both ends of an edge in one number, which sorts many times faster than pairs.
    span = members[-1] + 1
    found = []
    for kind, points in cells:
        ends = np.asarray(points, dtype=np.int64)[:, np.array(_edges(kind, path))]
        codes = np.sort(ends.min(axis=2) * span + ends.max(axis=2), axis=1)
        # A quad that repeats a corner is a triangle: drop edges to itself and repeated ones.
        edge = codes // span != codes % span
        edge[:, 1:] &= codes[:, 1:] != codes[:, :-1]
        found.append(codes[edge])
    codes, shared_by = np.unique(np.concatenate(found), return_counts=True)
    if not len(codes):
        raise InputError(f"{path} has elements of one point only, which have no edges; correct it")
    return np.column_stack(np.divmod(codes, span)), shared_by, members


def _edges(kind: str, path: Path) -> tuple[tuple[int, int], ...]:
    """Return the edges of an element type; ``triangle6`` has those of ``triangle``."""
    found = re.fullmatch(r"([a-z]+)\d*", kind)
    if found is None or found[1] not in _EDGES:
        raise InputError(
            f"{path} has elements of the type {kind!r}, whose edges are not known; convert them to "
            f"{', '.join(_EDGES)}, or name the elements to use in data.source.elements"
        )
    return _EDGES[found[1]]


def _dimension(kind: str, path: Path) -> int:
    _edges(kind, path)
    return _DIMENSION.get(kind.rstrip("0123456789"), 3)
