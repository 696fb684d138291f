"""Voronoi cells of points in a box: volumes and common facets."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import QhullError, Voronoi


@dataclass(frozen=True)
class Tessellation:
    """Voronoi cells of points, and directed edges between cells that share a facet.

    Edges are sorted by receiver, distance and sender.

    The vector of edge ``e`` is ``points[receivers[e]] - points[senders[e]] + shifts[e]``.
    """

    volumes: NDArray[np.float64]
    """Volume (in two dimensions, area) of each cell, [n_points]."""
    senders: NDArray[np.int64]
    """Index of the cell at which each edge begins, [n_edges]."""
    receivers: NDArray[np.int64]
    """Index of the cell at which each edge ends, [n_edges]."""
    shifts: NDArray[np.float64]
    """Multiple of the periods that is added to the difference of points, [n_edges, d]."""
    distances: NDArray[np.float64]
    """Distance between the two points of each edge, [n_edges]."""
    areas: NDArray[np.float64]
    """Area (in two dimensions, length) of the facet between both cells, [n_edges]."""


def tessellate(
    points: NDArray[np.float64], box: NDArray[np.float64], periodic: NDArray[np.bool_]
) -> Tessellation:
    """Divide a box into the Voronoi cells of points, and find the facets that cells share.

    Walls are mirrors: points are reflected at them, so that the facet between a point and its
    mirror image is the wall itself and cells end there exactly. In periodic directions the points
    are repeated by one period on either side: a cell of an orthogonal box touches no other image.

    Parameters
    ----------
    points
        Coordinates [n_points, d] with d of 2 or 3; inside the walls, except in periodic directions.
    box
        Lowest and highest coordinate of each direction, [d, 2].
    periodic
        Mask of periodic directions, [d].

    Raises
    ------
    ValueError
        If a point is on or outside a wall, or two points coincide.
    """
    low, length = box[:, 0], box[:, 1] - box[:, 0]
    relative = points - low
    outside = ((relative <= 0) | (relative >= length)) & ~periodic
    if outside.any():
        raise ValueError(
            f"point {int(outside.any(axis=1).argmax())} is on or outside a wall of the box; "
            "enlarge the box or remove the point"
        )
    turns = np.where(periodic, np.floor(relative / length), 0.0)
    wrapped = relative - turns * length
    mean_cell = float(np.prod(length)) / len(points)
    margin = 3.0 * mean_cell ** (1 / len(length))
    while True:
        everywhere, owner, turn = _surroundings(wrapped, length, periodic, margin)
        pairs, areas, reach = _facets(everywhere, len(points))
        # An image left out could only cut a corner nearer to it than to the cell's own point.
        if margin >= min(2 * reach, length.max()):
            break
        margin = min(2 * reach, length.max())

    # Every facet of a cell once, with the cell as receiver and its neighbour or wall as sender.
    pairs = np.concatenate([pairs, pairs[:, ::-1]])
    areas = np.concatenate([areas, areas])
    own = pairs[:, 0] < len(points)
    pairs, areas = pairs[own], areas[own]
    receivers = pairs[:, 0]
    distances = np.linalg.norm(everywhere[pairs[:, 0]] - everywhere[pairs[:, 1]], axis=1)
    volumes = _volumes(receivers, distances, areas, wrapped, length)

    # On a regular lattice four cells and more meet in a point or a line, which rounding turns into
    # facets of almost no area. Coordinates in single precision leave some 1e-5 of the mean facet.
    smallest = 1e-4 * mean_cell ** (1 - 1 / len(length))
    kept = (owner[pairs[:, 1]] >= 0) & (areas > smallest)
    senders = owner[pairs[kept, 1]]
    receivers = receivers[kept]
    images = turns[senders] - turns[receivers] - turn[pairs[kept, 1]]
    distances, areas = distances[kept], areas[kept]
    order = np.lexsort((*images.T[::-1], senders, distances, receivers))
    return Tessellation(
        volumes=volumes,
        senders=senders[order],
        receivers=receivers[order],
        shifts=images[order] * length,
        distances=distances[order],
        areas=areas[order],
    )


def _surroundings(
    points: NDArray[np.float64],
    length: NDArray[np.float64],
    periodic: NDArray[np.bool_],
    margin: float,
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the points and their periodic and mirror images up to ``margin`` outside the box.

    The result is all points, the original ones first, [n, d]; the index of each point's original,
    -1 for mirror images, [n]; and each point's displacement in periods, [n, d]. ``length`` has the
    lengths of the box, [d].
    """
    steps = [(0.0, -1.0, 1.0) if repeated else (0.0,) for repeated in periodic]
    turn = np.repeat(np.array(list(itertools.product(*steps))), len(points), axis=0)
    owner = np.tile(np.arange(len(points)), len(turn) // len(points))
    images = points[owner] + turn * length
    mirrored = []
    for direction in np.flatnonzero(~periodic):
        for wall in (0.0, length[direction]):
            reflection = images.copy()
            reflection[:, direction] = 2 * wall - reflection[:, direction]
            mirrored.append(reflection)
    everywhere = np.concatenate([images, *mirrored])
    n_mirrored = len(everywhere) - len(images)
    owner = np.concatenate([owner, np.full(n_mirrored, -1)])
    turn = np.concatenate([turn, np.zeros((n_mirrored, len(length)))])
    near = ((everywhere >= -margin) & (everywhere <= length + margin)).all(axis=1)
    return everywhere[near], owner[near], turn[near]


def _facets(
    points: NDArray[np.float64], n_own: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
    """Return the facets of the cells of the first ``n_own`` points.

    The result is the indices of the points on either side of each facet, [n, 2]; areas (in two
    dimensions, lengths) of the facets, [n]; and the largest distance between a facet's corner and
    its points, infinite if a cell is not closed.
    """
    try:
        diagram = Voronoi(points)
    except QhullError as error:
        first_line = str(error).strip().splitlines()[0]
        raise ValueError(f"the points have no Voronoi cells ({first_line}); check them") from None
    own = np.flatnonzero(diagram.ridge_points.min(axis=1) < n_own)
    pairs = diagram.ridge_points[own].astype(np.int64)
    rings = [diagram.ridge_vertices[i] for i in own]
    sizes = np.array([len(ring) for ring in rings])
    corner = np.fromiter(itertools.chain.from_iterable(rings), dtype=np.int64)
    if (corner < 0).any():
        return pairs, np.full(len(pairs), np.nan), np.inf
    # Qhull lists the corners of a facet in order around it. Its area is half the sum of the cross
    # products of successive corners, seen from any one of them.
    following = np.fromiter(
        itertools.chain.from_iterable([*ring[1:], ring[0]] for ring in rings), dtype=np.int64
    )
    begin = np.cumsum(sizes) - sizes
    origin = np.repeat(diagram.vertices[corner[begin]], sizes, axis=0)
    one, two = diagram.vertices[corner] - origin, diagram.vertices[following] - origin
    if points.shape[1] == 2:
        areas = np.linalg.norm(two[begin], axis=1)
    else:
        areas = np.linalg.norm(np.add.reduceat(np.cross(one, two), begin, axis=0), axis=1) / 2
    # Both points of a facet are equally far from its corners.
    centre = points[np.repeat(pairs[:, 0], sizes)]
    reach = float(np.linalg.norm(diagram.vertices[corner] - centre, axis=1).max())
    return pairs, areas, reach


def _volumes(
    receivers: NDArray[np.int64],
    distances: NDArray[np.float64],
    areas: NDArray[np.float64],
    points: NDArray[np.float64],
    length: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the volume (in two dimensions, area) of each cell, [n_points].

    A cell is a sum of pyramids (triangles) on its facets, whose height is half the distance of the
    two ``points`` [n_points, d] that a facet separates. Each facet has the index of its cell in
    ``receivers``, that distance in ``distances`` and its area in ``areas``, [n_facets] each.
    ``length`` has the lengths of the box, [d].
    """
    n_dims = len(length)
    volumes = np.zeros(len(points))
    np.add.at(volumes, receivers, areas * distances / (2 * n_dims))
    whole = float(np.prod(length))
    if not (volumes > 0).all():
        raise ValueError(
            f"point {int(volumes.argmin())} has no cell of its own: another point is at the same "
            "place; remove one of them"
        )
    if not abs(volumes.sum() - whole) <= 1e-6 * whole:
        raise ValueError(
            "the Voronoi cells do not fill the box: points are too close to each other or to a "
            "wall for their coordinates' precision; remove or move them"
        )
    return volumes
