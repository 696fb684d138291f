"""Stress of periodic graphs, from the gradient of the energy by the vectors of edges."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hydragnn_flow.models.geometry import Geometry, sum_by

STRESS = "stress"
"""Name of the output, and of the target in a store."""

VOIGT = ("xx", "yy", "zz", "yz", "xz", "xy")
"""Components of a symmetric tensor in Voigt order."""
VOIGT_PLACES = (0, 4, 8, 5, 2, 1)
"""Indices of these components in a tensor of nine numbers, row by row."""
TARGET_DIMS = (len(VOIGT), 9)
"""Possible dimensions of a stress target: in Voigt order, or row by row."""


def stress_of(gradient: Tensor, geometry: Geometry, cell: Tensor) -> Tensor:
    """Compute the stress in the order of ``VOIGT``, [n_graphs, 6] in the gradient's unit per Å².

    A strain takes every edge vector v to (1 + ε) v. With the gradients g of an energy by them,
    ``dE/dε = Σ g ⊗ v``. The stress is its symmetric part divided by the volume, with ASE's sign:
    positive where the cell wants to shrink. It is NaN for graphs whose cell has no volume, such as
    those that are not periodic in three directions.

    Parameters
    ----------
    gradient
        Gradient of an energy by the edge vectors [n_edges, 3].
    geometry
        Geometry with these vectors and the graphs of the edges.
    cell
        Lattice vectors of each graph in rows, zero if not periodic, [3 n_graphs, 3] in Å.
    """
    # They do not depend on weights; detached, they make the second derivative cheaper.
    vectors = geometry.vectors.detach()
    symmetric = torch.cat(
        [
            gradient * vectors,
            # Columns 1, 2, 0 times 2, 0, 1 and vice versa: yz, xz and xy, half of each order.
            0.5 * (gradient.roll(-1, 1) * vectors.roll(-2, 1)),
            0.5 * (gradient.roll(-2, 1) * vectors.roll(-1, 1)),
        ],
        dim=1,
    )
    graph = geometry.graph.index_select(0, geometry.receiver)
    sums = sum_by(symmetric, graph, geometry.n_graphs)
    virial = torch.cat([sums[:, :3], sums[:, 3:6] + sums[:, 6:]], dim=1)
    first, second, third = cell.view(-1, 3, 3).to(vectors.dtype).unbind(dim=1)
    volume = (first * torch.linalg.cross(second, third)).sum(dim=1, keepdim=True).abs()
    periodic = volume > 0
    # The divisor is never zero: a quotient that is discarded would still have a NaN gradient.
    return torch.where(periodic, virial / torch.where(periodic, volume, 1.0), math.nan)
