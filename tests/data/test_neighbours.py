"""Neighbour lists against ASE's, and their independence of the order of atoms."""

import ase
import numpy as np
import pytest
from ase.build import bulk
from ase.neighborlist import neighbor_list
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.data import atoms_to_graph
from hydragnn_flow.data.neighbours import neighbour_list
from hydragnn_flow.errors import InputError


def find(atoms, cutoff, k=None):
    cell = np.where(atoms.pbc[:, None], atoms.cell.array, 0.0)
    return neighbour_list(atoms.positions, cell, atoms.pbc, cutoff, k)


def rows(senders, receivers, shifts):
    """Edges as sorted rows, to compare lists in different order."""
    table = np.column_stack([senders, receivers, np.round(shifts, 6) + 0.0])
    return table[np.lexsort(table.T[::-1])]


@given(seed=st.integers(0, 10**6), cutoff=st.floats(1.0, 7.0))
def test_equals_ase(structure, seed, cutoff):
    # Cells from 2.5 Å against cutoffs to 7 Å: several images of every atom, its own included.
    atoms = structure(seed)
    ours = find(atoms, cutoff)
    i, j, images = neighbor_list("ijS", atoms, cutoff)
    theirs = rows(i, j, images @ np.where(atoms.pbc[:, None], atoms.cell.array, 0.0))
    assert rows(ours.senders, ours.receivers, ours.shifts) == pytest.approx(theirs, abs=1e-5)
    vectors = atoms.positions[ours.receivers] - atoms.positions[ours.senders] + ours.shifts
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(ours.distances)
    step = np.diff(ours.receivers)  # sorted by receiver, then distance
    assert (step >= 0).all() and (np.diff(ours.distances)[step == 0] >= 0).all()


@given(seed=st.integers(0, 10**6), k=st.integers(1, 20))
def test_cap_keeps_the_nearest(structure, seed, k):
    atoms = structure(seed)
    every, capped = find(atoms, 6.0), find(atoms, 6.0, k)
    for atom in range(len(atoms)):
        nearest = np.sort(every.distances[every.receivers == atom])[:k]
        kept = capped.distances[capped.receivers == atom]
        assert kept[: len(nearest)] == pytest.approx(nearest)
        # More than k only for ties with the k-th.
        assert kept[len(nearest) :] == pytest.approx(
            kept[len(nearest) - 1 : len(nearest)].max(initial=0)
        )


def test_ties_are_kept_whole():
    # 12 nearest neighbours and 6 second ones in fcc: a cap within a shell keeps the shell.
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    degree = {k: np.bincount(find(atoms, 4.0, k).receivers) for k in (5, 12, 13)}
    assert (degree[5] == 12).all()
    assert (degree[12] == 12).all()
    assert (degree[13] == 18).all()


@given(seed=st.integers(0, 10**6), k=st.sampled_from([None, 4, 12]))
def test_graph_does_not_depend_on_the_order_of_atoms(seed, k):
    rng = np.random.default_rng(seed)
    atoms = bulk("Cu", cubic=True) * (2, 1, 1)
    order = rng.permutation(len(atoms))
    edges, shuffled = find(atoms, 5.0, k), find(atoms[order], 5.0, k)
    renamed = rows(order[shuffled.senders], order[shuffled.receivers], shuffled.shifts)
    assert renamed == pytest.approx(rows(edges.senders, edges.receivers, edges.shifts), abs=1e-9)


def test_graph_has_hydragnns_layout(structure):
    atoms = structure(3, n_atoms=5)
    graph = atoms_to_graph(
        atoms, 4.0, None, graph_id=7, targets={"energy": np.ones(1), "forces": np.ones((5, 3))}
    )
    n, e = 5, graph.edge_index.shape[1]
    assert e > 0
    shapes = {key: (str(value.dtype)[6:], tuple(value.shape)) for key, value in graph}
    assert shapes == {
        "x": ("float32", (n, 1)),
        "pos": ("float32", (n, 3)),
        "cell": ("float32", (3, 3)),
        "pbc": ("int32", (3,)),
        "edge_index": ("int64", (2, e)),
        "edge_shifts": ("float32", (e, 3)),
        "edge_attr": ("float32", (e, 1)),
        "graph_id": ("int64", (1,)),
        "energy": ("float64", (1,)),
        "forces": ("float32", (n, 3)),
        "y": ("float32", (1 + 3 * n, 1)),
        "y_loc": ("int64", (1, 3)),
    }
    assert graph.y_loc.tolist() == [[0, 1, 1 + 3 * n]]
    assert (graph.cell[~atoms.pbc] == 0).all()
    unlabelled = atoms_to_graph(atoms, 4.0, 3)
    assert not {"energy", "forces", "y", "y_loc"} & set(unlabelled.keys())


@pytest.mark.parametrize(
    ("atoms", "complaint"),
    [
        (ase.Atoms(), "no atoms"),
        (ase.Atoms("H", positions=[[np.nan, 0, 0]]), "not finite"),
        (ase.Atoms("X", positions=[[0, 0, 0]]), "unknown element"),
        (ase.Atoms("H", cell=[3, 3, 0], pbc=True), "no cell vector"),
        (ase.Atoms("HO2", [[0, 0, 1], [1, 0, 0], [1, 0, 1e-4]]), "atoms 1 and 2 at one place"),
        (bulk("Cu") + ase.Atoms("Cu", [[-3.61, 0, 3.61]]), "atoms 0 and 1 at one place"),
        (ase.Atoms("H", cell=[9e-4, 99, 99], pbc=True), "atom 0 and its periodic image at one"),
        (ase.Atoms("Cu", cell=[1e-3] * 3, pbc=True), r"1e-09 Å³ for 1 atoms.*cell and positions"),
    ],
)
def test_structures_that_are_no_graph(atoms, complaint):
    with pytest.raises(InputError, match=f"structure 4 .*{complaint}"):
        atoms_to_graph(atoms, 4.0, None, graph_id=4)
