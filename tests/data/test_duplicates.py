"""Structures that are the same to a network have the same hash, others have another."""

from collections import Counter, defaultdict

import ase
import ase.io
import numpy as np
import pytest
from ase.build import bulk
from ase.formula import Formula
from hypothesis import given
from hypothesis import strategies as st
from source_cases import config, read_all

from hydragnn_flow.config.sources import TEST
from hydragnn_flow.data.columns import Column, pack
from hydragnn_flow.data.divide import Structures, compositions, divide, graph_hashes
from hydragnn_flow.data.graphs import atoms_to_graph
from hydragnn_flow.data.neighbours import neighbour_list
from hydragnn_flow.data.sources.opening import open_source
from hydragnn_flow.errors import InputError

CUTOFF = 3.0
SEEDS = st.integers(0, 2**32)


def columns(graphs):
    return pack(graphs, [""] * len(graphs))


def hashes(structures, cutoff=CUTOFF):
    return graph_hashes(columns([atoms_to_graph(atoms, cutoff, None) for atoms in structures]))


def both_ways(edges):
    return np.array([*edges, *((b, a) for a, b in edges)]).T


def plain(x, edge_index, **features):
    """One graph from bare lists: a node feature, edges, anything else by rows."""
    arrays = {"x": np.asarray(x, dtype=np.float32)[:, None]} | features
    of_rows = {
        key: Column(np.asarray(rows), 0, np.array([len(rows)])) for key, rows in arrays.items()
    }
    return {**of_rows, "edge_index": Column(edge_index, 1, np.array([edge_index.shape[1]]))}


def moved(atoms, seed):
    """The same structure, reordered, turned, shifted, each atom in another periodic image."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    copy = atoms[rng.permutation(len(atoms))]
    images = rng.integers(-2, 3, size=(len(copy), 3)) * copy.pbc
    positions = copy.positions + images @ copy.cell.array + rng.normal(scale=5.0, size=3)
    copy.set_cell(copy.cell.array @ turn)
    copy.positions = positions @ turn
    return copy


def crystal(seed):
    """A thermally disordered alloy in which every atom has neighbours."""
    rng = np.random.default_rng(seed)
    atoms = bulk("Cu", cubic=True).repeat((2, 1, 1))
    atoms.numbers = rng.choice([29, 79], size=len(atoms))
    atoms.rattle(0.05, rng=rng)
    return atoms


@given(seed=SEEDS)
def test_hash_is_of_the_structure_alone(structure, seed):
    atoms = structure(seed)
    labelled = atoms_to_graph(moved(atoms, seed), CUTOFF, None, 1, {"energy": np.ones(1)})
    assert graph_hashes(columns([labelled])) == hashes([atoms])


@given(seeds=st.lists(SEEDS, min_size=1, max_size=6))
def test_hash_is_independent_of_the_block(structure, seeds):
    several = [atoms_to_graph(structure(seed), CUTOFF, None) for seed in seeds]
    alone = [graph_hashes(columns([graph]))[0] for graph in several]
    assert graph_hashes(columns(several)) == alone
    assert graph_hashes(columns(several[::-1])) == alone[::-1]


@given(seed=SEEDS, which=st.integers(0, 7))
def test_another_element_or_place_of_an_atom_gives_another_hash(seed, which):
    atoms = crystal(seed)
    other, moved_one = atoms.copy(), atoms.copy()
    other.numbers[which] = 28
    direction = np.random.default_rng(seed).normal(size=3)
    moved_one.positions[which] += 0.01 * direction / np.linalg.norm(direction)
    assert len(set(hashes([atoms, other, moved_one]))) == 3


def test_an_atom_moved_off_a_symmetric_site_gives_another_hash():
    """Seen by single lengths; sums of smooth functions of them do not change to first order."""
    atoms = bulk("Cu", cubic=True).repeat(2)
    other = atoms.copy()
    other.positions[0, 0] += 0.005
    assert hashes([other]) != hashes([atoms])


@pytest.mark.parametrize("length", [2.0, 2.25, 2.5, 3.0])
def test_plain_lengths_are_clear_of_rounding_boundaries(length):
    atoms = ase.Atoms("Po", cell=[length] * 3, pbc=True).repeat(2)
    copies = columns([atoms_to_graph(moved(atoms, s), 1.2 * length, None) for s in range(50)])
    del copies["edge_attr"]
    assert len(set(graph_hashes(copies))) == 1


@given(seed=SEEDS)
def test_lengths_come_from_positions_where_edges_carry_none(seed):
    def hash_without_attributes(atoms, with_geometry=True):
        # In float64, as the rounding of float32 positions is not what is tested here.
        edges = neighbour_list(atoms.positions, atoms.cell.array, atoms.pbc, CUTOFF)
        geometry = {"pos": atoms.positions, "edge_shifts": edges.shifts} if with_geometry else {}
        index = np.stack([edges.senders, edges.receivers])
        return graph_hashes(plain(atoms.numbers, index, **geometry))[0]

    atoms = crystal(seed)
    farther = atoms.copy()
    farther.positions[3] += 0.02
    assert hash_without_attributes(moved(atoms, seed)) == hash_without_attributes(atoms)
    assert hash_without_attributes(farther) != hash_without_attributes(atoms)
    assert hash_without_attributes(farther, False) == hash_without_attributes(atoms, False)


def test_bonds_without_lengths_do_not_hide_the_positions():
    """Edge features that say nothing of the geometry must not make all conformers one."""
    bonds, single_double = both_ways([(0, 1), (1, 2)]), [[1.0], [2.0], [1.0], [2.0]]
    bent, straight = ([[0.0, 0, 0], [1, 0, 0], end] for end in ([1.5, 1, 0], [2, 0, 0]))
    found = [
        graph_hashes(plain([8, 6, 7], bonds, edge_attr=kinds, pos=pos))[0]
        for kinds in (single_double, single_double[::-1])
        for pos in (bent, straight)
    ]
    assert len(set(found)) == 4


def test_topology_alone_tells_graphs_apart():
    path, star = [(0, 1), (1, 2), (2, 3)], [(0, 1), (0, 2), (0, 3)]
    three = (path, [(3, 1), (1, 0), (0, 2)], star)
    one, same, other = (graph_hashes(plain([1] * 4, both_ways(edges))) for edges in three)
    assert one == same != other


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_lengths_of_any_unit(unit):
    """A mesh in metres is not rounded to nothing."""
    corners = unit * np.array([[0.0, 0], [1, 0], [0, 1]])
    triangle = both_ways([(0, 1), (1, 2), (2, 0)])
    one, same, other = (
        graph_hashes(plain([0.0, 0, 0], triangle, pos=pos))
        for pos in (corners, corners[::-1], corners * [1.0, 1.01])
    )
    assert one == same != other


def test_hash_does_not_change_between_versions():
    assert hashes([ase.Atoms("CuAu", positions=[[0, 0, 0], [2.5, 0, 0]])]) == ["b0dff75a96ba2001"]


@given(
    graphs=st.lists(
        st.lists(st.sampled_from([1, 6, 8, 29, 118]), min_size=1, max_size=30),
        min_size=1,
        max_size=8,
    )
)
def test_compositions_are_reduced_formulas(graphs):
    counts = np.array([len(numbers) for numbers in graphs])
    x = np.concatenate(graphs).astype(np.float32)[:, None]
    names = compositions({"x": Column(x, 0, counts)})
    for name, numbers in zip(names, graphs, strict=True):
        formula = Formula.from_list(list(ase.Atoms(numbers).symbols))
        assert Formula(name).count() == formula.reduce()[0].count()
        assert list(Formula(name).count()) == list(ase.Atoms(sorted(set(numbers))).symbols)


@pytest.mark.parametrize("wrong", [0.5, 0.0, -1.0, 119.0])
def test_no_composition_without_atoms(wrong):
    x = np.array([[6.0], [1.0], [wrong]])
    with pytest.raises(InputError, match=r"graph 1 .* set data.split.by to random"):
        compositions({"x": Column(x, 0, np.array([2, 1]))})


@pytest.mark.parametrize("element", ["Si", "Ge"])
def test_mlearn_repeats_structures_across_its_own_sets(shared_data, element):
    """Shear along x, y and z, forward and back: turned copies with the same energy."""
    section = {"format": "json", "targets": {"energy": "eV"}}
    section |= {"train": f"{element}_training.json", "test": f"{element}_test.json"}
    read = read_all(open_source(config(shared_data / "mlearn", **section), seed=0))
    energies: dict[str, list[float]] = defaultdict(list)
    found = {}
    for role, structures in read.items():
        found[role] = hashes([one.atoms for one in structures], 4.0)
        for name, one in zip(found[role], structures, strict=True):
            energies[name].append(one.targets["energy"][0] / len(one.atoms))
    assert max(np.ptp(same) for same in energies.values()) < 1e-6
    training, test = found["train"], found["test"]
    assert len(training) - len(set(training)) == 40
    assert len(test) - len(set(test)) == 4
    roles = ["train"] * len(training) + ["test"] * len(test)
    nothing = [""] * len(roles)
    structures = Structures(roles, training + test, nothing, nothing)
    division = divide(structures, "random", 0.1, None, 0)
    assert division.left_out == {"train_duplicate_of_test": 3}
    assert Counter(division.split)[TEST] == 25


def test_snapshots_of_a_trajectory_are_not_the_same(shared_data):
    frames = ase.io.read(shared_data / "acac" / "train_300K.xyz", ":200")
    assert len(set(hashes(frames, 5.0))) == 200
