"""Neighbour lists against ASE's, the positions they are stored with, and neighbours left out."""

from functools import reduce

import ase
import numpy as np
import pytest
import torch
from ase.build import bulk
from ase.neighborlist import neighbor_list
from graph_source_cases import brought
from hypothesis import example, given
from hypothesis import strategies as st
from in_place_cases import vectors
from torch_geometric.data import Data

from hydragnn_flow.data import atoms_to_graph
from hydragnn_flow.data.neighbours import Neighbours, Truncation, near_origin, neighbour_list
from hydragnn_flow.data.sources.base import Nodes, Record
from hydragnn_flow.errors import InputError

# Of single precision at some 10 Å.
EXACT = 1e-5
CUTOFF = 5.0


def lattice(atoms):
    return np.where(atoms.pbc[:, None], atoms.cell.array, 0.0)


def find(atoms, cutoff, k=None):
    return neighbour_list(atoms.positions, lattice(atoms), atoms.pbc, cutoff, k)


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
    theirs = rows(i, j, images @ lattice(atoms))
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
    for k, degree in ((5, 12), (12, 12), (13, 18)):
        assert (np.bincount(find(atoms, 4.0, k).receivers) == degree).all()


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


def pairs(positions, **keys):
    """The record of a graph of atoms that are linked two by two."""
    n = len(positions)
    index = torch.stack([torch.arange(n), torch.arange(n) ^ 1])
    values = {"x": torch.ones(n, 1), "pos": torch.from_numpy(positions), "edge_index": index}
    return brought(Data(**(values | keys)), ["size"])


def test_units_other_than_angstrom():
    """Grains of a micrometre, a metre away."""
    grains = 1e-6 * np.array([[0, 0, 0], [1, 0, 0]]) + [1.0, -1.0, 0.5]
    graph = pairs(grains).graph(1.0, None)
    assert vectors(graph).norm(dim=1).tolist() == pytest.approx([1e-6, 1e-6], rel=1e-4)


def test_what_single_precision_does_not_resolve_is_refused():
    """Atoms that far apart even ended the process that searched for neighbours."""
    far = np.array([[0, 0, 0], [1.1, 0, 0], [3e6, 0, 0], [3e6 + 1.1, 0, 0]])
    with pytest.raises(InputError, match=r"structure 4 is 3e.06 long, .* up to 5; cut it"):
        atoms_to_graph(ase.Atoms("H4", far), CUTOFF, None, graph_id=4)
    with pytest.raises(InputError, match=r"^a\.pt: graph 0 is 3e.06 long"):
        pairs(far).graph(CUTOFF, None)
    record = pairs(far, edge_index=torch.empty(2, 0, dtype=torch.int64))
    assert record.has_own_edges(record.graph(CUTOFF, None), CUTOFF, None)


def test_a_cell_counts_only_where_atoms_are_periodic():
    atoms = ase.Atoms("Cu2", [[0, 0, 0], [0, 0, -2.0]], cell=[10, 10, 10])
    edges = Neighbours(np.array([0, 1]), np.array([1, 0]), np.zeros((2, 3)), np.array([2.0, 2.0]))
    graph = Record(atoms, {}, "a", 0, nodes=Nodes(np.ones((2, 1)), ["f"], edges)).graph(5.0, None)
    assert not graph.pbc.any() and not graph.edge_shifts.any()


def counted(atoms, k, cutoff=CUTOFF):
    record = Record(atoms, {}, "a.xyz", 0)
    return record.truncation(record.graph(cutoff, k), cutoff, k)


def as_brought(graph, **nodes):
    values = Data(**{key: value for key, value in graph.to_dict().items() if key != "graph_id"})
    return brought(values, ["atomic_number"], **nodes).truncation(graph, CUTOFF, None)


@given(seed=st.integers(0, 10**6), k=st.integers(1, 40))
def test_every_neighbour_left_out_is_counted(structure, seed, k):
    atoms = structure(seed)
    every, kept = find(atoms, CUTOFF), find(atoms, CUTOFF, k)
    missing = []
    for atom in range(len(atoms)):
        there, here = (np.sort(e.distances[e.receivers == atom]) for e in (every, kept))
        missing.append(there[len(here) :])
    found = counted(atoms, k)
    left_out = np.concatenate(missing)
    assert found.atoms == sum(len(distances) > 0 for distances in missing)
    assert (found.of_atoms, found.edges) == (len(atoms), len(left_out))
    assert found.of_edges == len(every.distances)
    assert found.most == np.bincount(every.receivers, minlength=len(atoms)).max()
    assert (found.nearest is None) == (len(left_out) == 0)
    if found.nearest is not None:
        assert found.nearest == pytest.approx(left_out.min(), rel=1e-9)
        # What the refusal of a potential advises.
        assert counted(atoms, k, found.nearest * (1 - 1e-6)).atoms == 0
        assert found.reaches(CUTOFF) and not found.reaches(found.nearest)
    assert counted(atoms, max(found.most, 1)).atoms == counted(atoms, None).atoms == 0


@given(seeds=st.lists(st.integers(0, 10**6), max_size=5), k=st.integers(1, 20))
def test_parts_add_up_in_any_order(structure, seeds, k):
    parts = [counted(structure(seed), k) for seed in seeds]
    total = sum(parts, Truncation())
    assert total == reduce(lambda a, b: b + a, parts, Truncation())
    assert total.edges == sum(part.edges for part in parts)
    assert total.most == max((part.most for part in parts), default=0)


def rattled(seed):
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.rattle(0.1, seed=seed)
    return atoms


def test_edges_that_a_source_brings_are_counted_too():
    atoms = rattled(0)
    for k, cut in ((20, True), (None, False)):
        graph = atoms_to_graph(atoms, CUTOFF, k)
        found = as_brought(graph)
        assert (found.atoms > 0) == cut
        assert found.edges == pytest.approx(counted(atoms, k).edges, abs=2)
        assert found.nearest == pytest.approx(counted(atoms, k).nearest, abs=1e-5)
    graph = atoms_to_graph(atoms, CUTOFF, 12)
    assert as_brought(graph, of_topology=True).atoms == 0


@pytest.mark.parametrize("seed", range(2))
def test_lists_that_end_with_others_than_the_nearest_are_told_by_the_nearest_missing(seed):
    """PyTorch Geometric's radius graph keeps whatever neighbours it comes upon first."""
    graph = atoms_to_graph(rattled(seed), CUTOFF, None)
    left_out = np.random.default_rng(seed).choice(graph.num_edges, 3, replace=False)
    stays = np.isin(np.arange(graph.num_edges), left_out, invert=True)
    found = as_brought(graph.edge_subgraph(torch.from_numpy(stays)))
    assert found.edges == 3
    # Another at the same distance may stand for it, as far as single precision tells them apart.
    assert found.nearest == pytest.approx(graph.edge_attr[left_out, 0].min().item(), rel=3e-4)


def test_what_rounding_puts_beyond_the_cutoff_is_not_missing():
    """A whole shell of an ideal lattice may lie exactly there."""
    atoms = bulk("Cu", a=CUTOFF, cubic=True)
    graph = atoms_to_graph(atoms, CUTOFF * (1 - 1e-9), None)
    assert as_brought(graph).atoms == 0


def test_the_sentences_say_what_would_help():
    found = Truncation(atoms=4, of_atoms=8, edges=30, of_edges=1000, most=42, nearest=3.61999)
    refusal = found.refusal(5.0, 12)
    for words in ("out 3 %", "radius of 5", "at 50 %", "up to 42", "write 42 or more, ", "3.619, "):
        assert words in refusal
    assert "42 or more (so far)" in found.refusal(5.0, 12, so_far=True)
    assert "the edges that the data bring leave out" in found.refusal(5.0, None)
    assert "or more" not in found.refusal(5.0, None)
