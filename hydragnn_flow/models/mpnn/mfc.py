"""MFC: neural fingerprints, weights by degree. Duvenaud et al., arXiv:1509.09292."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from hydragnn_flow.models.geometry import Geometry, sum_by
from hydragnn_flow.models.kernels.neighbour_sums import NeighbourSums, neighbour_sums
from hydragnn_flow.models.mpnn.layers import Convolutions

BLOCK = 32
"""Number of atoms that are multiplied with a degree class's weights at once."""


class DegreeClasses(NamedTuple):
    """Classes of atoms by degree (number of neighbours), arranged in blocks of rows.

    Each class fills blocks of :data:`BLOCK` rows. There are as many blocks as any batch with this
    many atoms can need. So no shape depends on the degrees, and the host need not wait for an
    accelerator.

    Attributes
    ----------
    places
        Index of each atom's row, int64 [n_atoms].
    of_block
        Index of the degree class of each block, int64 [n_blocks].
    of_atom
        Index of the degree class of each atom, int64 [n_atoms].
    """

    places: Tensor
    of_block: Tensor
    of_atom: Tensor


def degree_classes(degrees: Tensor, smallest: int, largest: int) -> DegreeClasses:
    """Return the class of each atom by degree (number of neighbours), and an order of their rows.

    In this order each class fills blocks of rows.

    Parameters
    ----------
    degrees
        Degree of each atom, int64 [n_atoms].
    smallest, largest
        Smallest and largest degree with a class of its own; other degrees share the nearest class.
    """
    n_atoms, n_classes = degrees.shape[0], largest - smallest + 1
    of_atom = degrees.clamp(smallest, largest) - smallest
    atoms = torch.arange(n_atoms, device=degrees.device)
    counts = sum_by(torch.ones_like(of_atom), of_atom, n_classes)
    blocks = (counts + (BLOCK - 1)) // BLOCK
    ends = blocks.cumsum(0)
    in_order, order = torch.sort(of_atom, stable=True)
    # The rows of a class are consecutive, starting with its first block.
    shift = (ends - blocks) * BLOCK - (counts.cumsum(0) - counts)
    places = torch.empty_like(atoms).index_copy(0, order, atoms + shift.index_select(0, in_order))
    numbers = torch.arange(n_atoms // BLOCK + n_classes, device=degrees.device)
    of_block = torch.searchsorted(ends, numbers, right=True).clamp(max=n_classes - 1)
    return DegreeClasses(places, of_block, of_atom)


class MFCEdges(NamedTuple):
    """Neighbour sums and degree classes of the atoms of a batch, which all MFC layers read."""

    neighbours: NeighbourSums
    classes: DegreeClasses


class MFConvolution(nn.Module):
    """Convolution of MFC: a linear map of an atom's features and its neighbours' summed features.

    The atom's degree (number of neighbours) chooses the map.

    Parameters
    ----------
    width
        Width of the node features.
    classes
        Number of degree classes, each with weights of its own.
    average_neighbours
        Average number of neighbours, whose root divides the sums.
    """

    def __init__(self, width: int, classes: int, average_neighbours: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, 2 * width, width))
        self.bias = nn.Parameter(torch.zeros(classes, width))
        nn.init.normal_(self.weight, std=(2 * width) ** -0.5)
        self.scale = average_neighbours**-0.5

    def forward(self, nodes: Tensor, features: MFCEdges, geometry: Geometry) -> Tensor:
        """Compute the atoms' features after the convolution, [n_atoms, width]."""
        places, of_block, of_atom = features.classes
        inputs = torch.cat([features.neighbours.sum(nodes) * self.scale, nodes], dim=1)
        rows = inputs.new_zeros((of_block.shape[0] * BLOCK, inputs.shape[1]))
        rows = rows.index_copy(0, places, inputs)
        blocks = rows.view(-1, BLOCK, inputs.shape[1])
        new = torch.bmm(blocks, self.weight.index_select(0, of_block))
        new = new.view(rows.shape[0], -1).index_select(0, places)
        return new + self.bias.index_select(0, of_atom)


class MFC(Convolutions):
    """Stack of MFC layers, whose weights depend on the number of neighbours (degree) of an atom.

    Layers read which atoms are connected, but no edge features. Each degree between the smallest
    and the largest of the training split, up to `max_neighbours`, has weights of its own. HydraGNN
    has weights for all degrees from 0 to `max_neighbours`, and those of degrees that never occur
    stay untrained.
    """

    def prepare(self) -> None:
        """Set ``smallest`` and ``largest``, the range of degrees with weights of their own.

        A degree is a number of neighbours.
        """
        seen = [degree for degree, n in enumerate(self.statistics.degree_histogram) if n]
        most = self.architecture.max_neighbours or max(seen, default=0)
        self.largest = min(max(seen, default=0), most)
        self.smallest = min(min(seen, default=0), most)

    def convolution(self, width: int) -> nn.Module:
        """Return the MFC convolution of one layer, for node features [n_atoms, width]."""
        classes = self.largest - self.smallest + 1
        return MFConvolution(width, classes, self.statistics.average_neighbours)

    def edge_features(self, geometry: Geometry) -> MFCEdges:
        """Return an object that sums over neighbours, and the degree classes of a batch's atoms."""
        edges = neighbour_sums(geometry)
        return MFCEdges(edges, degree_classes(edges.degrees, self.smallest, self.largest))
