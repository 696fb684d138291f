"""Neighbours that lists leave out, against a count by hand."""

from functools import reduce

import numpy as np
import pytest
import torch
from ase.build import bulk
from graph_source_cases import brought
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from hydragnn_flow.data import atoms_to_graph
from hydragnn_flow.data.neighbours import Truncation, neighbour_list
from hydragnn_flow.data.sources.base import Record

CUTOFF = 5.0


def counted(atoms, k, cutoff=CUTOFF):
    record = Record(atoms, {}, "a.xyz", 0)
    return record.truncation(record.graph(cutoff, k), cutoff, k)


def as_brought(graph, **nodes):
    values = Data(**{key: value for key, value in graph.to_dict().items() if key != "graph_id"})
    return brought(values, ["atomic_number"], **nodes).truncation(graph, CUTOFF, None)


@given(seed=st.integers(0, 10**6), k=st.integers(1, 40))
def test_every_neighbour_left_out_is_counted(structure, seed, k):
    atoms = structure(seed)
    cell = np.where(atoms.pbc[:, None], atoms.cell.array, 0.0)
    every, kept = (neighbour_list(atoms.positions, cell, atoms.pbc, CUTOFF, n) for n in (None, k))
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


def test_edges_that_a_source_brings_are_counted_too():
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.rattle(0.1, seed=0)
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
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.rattle(0.1, seed=seed)
    graph = atoms_to_graph(atoms, CUTOFF, None)
    chance = np.random.default_rng(seed)
    left_out = chance.choice(graph.num_edges, 3, replace=False)
    stays = torch.from_numpy(np.delete(np.arange(graph.num_edges), left_out))
    expected = graph.edge_attr[left_out, 0].min()
    for key in ("edge_index", "edge_attr", "edge_shifts"):
        graph[key] = graph[key][..., stays] if key == "edge_index" else graph[key][stays]
    found = as_brought(graph)
    assert found.edges == 3
    # Another at the same distance may stand for it, as far as single precision tells them apart.
    assert found.nearest == pytest.approx(float(expected), rel=3e-4)


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
