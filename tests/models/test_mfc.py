"""MFC beside PyG's, and how atoms are sorted by degree."""

import pytest
import torch
from geometry_cases import clusters
from torch_geometric.nn import MFConv

from hydragnn_flow.models.kernels.neighbour_sums import neighbour_sums
from hydragnn_flow.models.mpnn.mfc import BLOCK, MFC, MFCEdges, MFConvolution, degree_classes


def test_as_pygs():
    geometry = clusters()
    torch.manual_seed(0)
    degrees = neighbour_sums(geometry).degrees
    largest = int(degrees.max()) - 2  # so that some atoms share the last class
    assert len(set(degrees.clamp(max=largest).tolist())) > 2
    ours = MFConvolution(6, largest + 1, 1.0).double()
    theirs = MFConv(6, 6, max_degree=largest).double()
    with torch.no_grad():
        ours.bias.normal_()
        for degree in range(largest + 1):
            theirs.lins_l[degree].weight.copy_(ours.weight[degree, :6].t())
            theirs.lins_r[degree].weight.copy_(ours.weight[degree, 6:].t())
            theirs.lins_l[degree].bias.copy_(ours.bias[degree])
    nodes = torch.randn(geometry.n_atoms, 6).double()
    features = MFCEdges(neighbour_sums(geometry), degree_classes(degrees, 0, largest))
    edges = torch.stack([geometry.sender, geometry.receiver])
    torch.testing.assert_close(ours(nodes, features, geometry), theirs(nodes, edges))


@pytest.mark.parametrize("n_atoms", [0, 1, BLOCK, 10 * BLOCK + 3])
def test_blocks_hold_one_class_each(n_atoms):
    degrees = torch.randint(0, 9, (n_atoms,), generator=torch.Generator().manual_seed(0))
    classes = degree_classes(degrees, 2, 6)
    assert torch.equal(classes.of_atom, degrees.clamp(2, 6) - 2)
    assert len(set(classes.places.tolist())) == n_atoms
    assert torch.equal(classes.of_block[classes.places // BLOCK], classes.of_atom)


def test_as_many_blocks_whatever_the_degrees():
    """Shapes that depended on them would make the host wait for an accelerator."""
    same, different = torch.full((100,), 3), torch.arange(100) % 9
    sizes = {degree_classes(degrees, 0, 8).of_block.shape for degrees in (same, different)}
    assert len(sizes) == 1


def test_classes_are_the_degrees_of_the_training_split(make):
    stack = make("MFC", potential=False).encoder.layers
    assert isinstance(stack, MFC)
    assert (stack.smallest, stack.largest) == (12, 16)
    shorter = make("MFC", potential=False, max_neighbours=14).encoder.layers
    assert isinstance(shorter, MFC)
    assert (shorter.smallest, shorter.largest) == (12, 14)
