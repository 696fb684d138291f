"""Positions as they are stored: what networks see does not depend on origin and images."""

import ase
import numpy as np
import pytest
import torch
from ase.build import bulk
from graph_source_cases import brought
from hypothesis import example, given
from hypothesis import strategies as st
from in_place_cases import vectors
from torch_geometric.data import Data

from hydragnn_flow.data import atoms_to_graph
from hydragnn_flow.data.neighbours import Neighbours, near_origin
from hydragnn_flow.data.sources.base import Nodes, Record
from hydragnn_flow.errors import InputError

CUTOFF = 5.0
# Of single precision at some 10 Å.
EXACT = 1e-5


def lattice(atoms):
    return np.where(atoms.pbc[:, None], atoms.cell.array, 0.0)


def drifted(atoms, seed, far):
    """Each atom in another image, and all of them somewhere else."""
    rng = np.random.default_rng(seed)
    moved = atoms.copy()
    images = np.round(rng.uniform(-far, far, (len(atoms), 3)) / 4.0)
    moved.positions += images @ lattice(atoms) + rng.uniform(-far, far, 3)
    return moved


@given(seed=st.integers(0, 10**6), far=st.sampled_from([0.0, 30.0, 1e4, 1e6]))
def test_edges_are_those_of_the_structure(structure, seed, far):
    atoms = structure(seed)
    here, there = (
        atoms_to_graph(some, CUTOFF, None) for some in (atoms, drifted(atoms, seed, far))
    )
    assert max(here.pos.abs().max(), there.pos.abs().max()) < 60  # cells and clusters of some 10 Å
    for graph in (here, there):
        lengths = vectors(graph).double().norm(dim=1)
        assert lengths.numpy() == pytest.approx(graph.edge_attr[:, 0].double(), abs=EXACT)
    # The same edges, but for those whose order or presence single rounding errors decide.
    tables = [
        torch.cat([graph.edge_index.t().float(), vectors(graph)], dim=1) for graph in (here, there)
    ]
    inside = [table[table[:, 2:].norm(dim=1) < CUTOFF - 1e-4] for table in tables]
    assert len(inside[0]) == len(inside[1])
    for row in inside[0]:
        assert (inside[1] - row).abs().max(dim=1).values.min() < 1e-5 + 1e-9 * far


@given(seed=st.integers(0, 10**6), far=st.sampled_from([0.0, 50.0, 1e4]))
@example(seed=7913, far=50.0)  # one atom in a slab
def test_atoms_are_in_the_cell_and_stay_where_they_are(structure, seed, far):
    atoms = drifted(structure(seed), seed, far)
    positions, wrapped = near_origin(atoms.positions, atoms.cell.array, atoms.pbc)
    images = wrapped @ np.linalg.pinv(lattice(atoms))
    assert images == pytest.approx(np.round(images), abs=1e-6)
    assert wrapped == pytest.approx(np.round(images) @ lattice(atoms), abs=1e-6)
    inside = positions @ np.linalg.pinv(atoms.cell.array[atoms.pbc])
    assert (inside > -1e-5).all() and (inside < 1 + 1e-5).all()
    # As a whole it is moved once, and what is stored is not moved again.
    rest = atoms.positions - wrapped - positions
    assert rest == pytest.approx(np.broadcast_to(rest[0], rest.shape), abs=1e-9 * (1 + far))
    stored = positions.astype(np.float32).astype(np.float64)
    again, more = near_origin(stored, atoms.cell.array, atoms.pbc)
    assert again + more == pytest.approx(stored, abs=1e-9)


def test_what_is_near_stays_as_it_is():
    """Coordinates are those of the file, unless an atom is outside the cell."""
    molecule = ase.Atoms("OH2", [[0.1, 2.0, 0.3], [-0.7, 2.9, 0.3], [1.2, 1.7, 1.3]])
    crystal = bulk("Cu", cubic=True) * (2, 2, 2)
    for atoms in (molecule, crystal):
        graph = atoms_to_graph(atoms, CUTOFF, None)
        assert graph.pos.numpy() == pytest.approx(atoms.positions.astype(np.float32), abs=0)


def test_units_other_than_angstrom():
    """Grains of a micrometre, a metre away."""
    grains = ase.Atoms("H2", 1e-6 * np.array([[0, 0, 0], [1, 0, 0]]) + [1.0, -1.0, 0.5])
    graph = Data(
        x=torch.ones(2, 1),
        pos=torch.from_numpy(grains.positions),
        edge_index=torch.tensor([[0, 1], [1, 0]]),
    )
    graph = brought(graph, ["size"]).graph(1.0, None)
    assert vectors(graph).norm(dim=1).tolist() == pytest.approx([1e-6, 1e-6], rel=1e-4)


def test_what_single_precision_does_not_resolve_is_refused():
    """Atoms that far apart even ended the process that searched for neighbours."""
    pairs = np.array([[0, 0, 0], [1.1, 0, 0], [3e6, 0, 0], [3e6 + 1.1, 0, 0]])
    with pytest.raises(InputError, match=r"structure 4 is 3e.06 long, .* up to 5; cut it"):
        atoms_to_graph(ase.Atoms("H4", pairs), CUTOFF, None, graph_id=4)
    data = Data(
        x=torch.ones(4, 1),
        pos=torch.from_numpy(pairs),
        edge_index=torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]),
    )
    with pytest.raises(InputError, match=r"^a\.pt: graph 0 is 3e.06 long"):
        brought(data, ["size"]).graph(CUTOFF, None)
    data.edge_index = data.edge_index[:, :0]
    record = brought(data, ["size"])
    assert record.has_own_edges(record.graph(CUTOFF, None), CUTOFF, None)


def test_a_cell_counts_only_where_atoms_are_periodic():
    atoms = ase.Atoms("Cu2", [[0, 0, 0], [0, 0, -2.0]], cell=[10, 10, 10])
    edges = Neighbours(np.array([0, 1]), np.array([1, 0]), np.zeros((2, 3)), np.array([2.0, 2.0]))
    graph = Record(atoms, {}, "a", 0, nodes=Nodes(np.ones((2, 1)), ["f"], edges)).graph(5.0, None)
    assert not graph.pbc.any() and not graph.edge_shifts.any()
