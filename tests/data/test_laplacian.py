"""Encodings by eigenvectors of the Laplacian: what they are, and what they depend on."""

import ase
import numpy as np
import pytest
import torch
from ase.build import bulk
from hypothesis import assume, given
from hypothesis import strategies as st
from torch_geometric.transforms import AddLaplacianEigenvectorPE

from hydragnn_flow.data import graphs as laplacian
from hydragnn_flow.data.graphs import add_encodings, atoms_to_graph, laplacian_encodings


def cluster(seed, n):
    """Atoms at random in a box, some 8 of which see each other."""
    rng = np.random.default_rng(seed)
    return ase.Atoms(numbers=[6] * n, positions=rng.uniform(0, 1.6 * n ** (1 / 3), (n, 3)))


def edges(atoms, cutoff=3.0, most=None):
    return atoms_to_graph(atoms, cutoff, most).edge_index.numpy()


def spectrum(index, n):
    """All eigenvalues of the normalised Laplacian, from its definition."""
    count = np.zeros((n, n))
    np.add.at(count, (index[0], index[1]), 0.5)
    np.add.at(count, (index[1], index[0]), 0.5)
    np.fill_diagonal(count, 0)
    root = np.sqrt(np.maximum(count.sum(axis=1), 1e-30))
    return np.linalg.eigvalsh(np.eye(n) - count / root[:, None] / root[None])


def simple(values, k):
    return bool((np.diff(values[: k + 2]) > 1e-3).all())


@given(st.integers(0, 10_000), st.integers(6, 24), st.integers(1, 4))
def test_they_are_torch_geometrics_but_for_the_sign(seed, n, k):
    graph = atoms_to_graph(cluster(seed, n), 3.0, None)
    assume(simple(spectrum(graph.edge_index.numpy(), n), k))
    theirs = AddLaplacianEigenvectorPE(k, "theirs", is_undirected=True)(graph.clone()).theirs
    assert add_encodings(graph, k)
    np.testing.assert_allclose(graph.pe.abs(), theirs.abs(), atol=1e-5)
    senders, receivers = graph.edge_index
    # Differences do not depend on the sign, so they are HydraGNN's.
    np.testing.assert_allclose(graph.rel_pe, (theirs[senders] - theirs[receivers]).abs(), atol=1e-5)


@given(st.integers(0, 10_000), st.integers(6, 24), st.integers(1, 4))
def test_they_follow_the_order_of_the_atoms_and_nothing_else(seed, n, k):
    atoms = cluster(seed, n)
    index = edges(atoms)
    assume(simple(spectrum(index, n), k))
    found = laplacian_encodings(index, n, k)
    order = np.random.default_rng(seed).permutation(n)
    moved = atoms[order]
    moved.rotate(40, "xyz")
    moved.translate([3, -1, 7])
    other = laplacian_encodings(edges(moved), n, k)
    # The sign of a vector is its own, unless the vector and its negative are alike.
    lopsided = np.abs((found.astype(float) ** 3).sum(axis=0)) > 1e-3
    np.testing.assert_allclose(other[:, lopsided], found[order][:, lopsided], atol=1e-4)
    np.testing.assert_allclose(np.abs(other), np.abs(found[order]), atol=1e-4)
    np.testing.assert_allclose(np.square(found.astype(float)).sum(axis=0), 1, atol=1e-5)


def test_images_count_as_often_as_they_are_there_and_those_of_an_atom_itself_never():
    graph = atoms_to_graph(bulk("NaCl", "rocksalt", a=4.1), 4.2, None)
    assert (graph.edge_index[0] == graph.edge_index[1]).any()
    found = laplacian_encodings(graph.edge_index.numpy(), 2, 3)
    np.testing.assert_allclose(np.abs(found), [[0.5**0.5, 0, 0]] * 2, atol=1e-6)
    assert found[0, 0] == pytest.approx(-found[1, 0])


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_graph_of_few_atoms_has_zeros_for_what_it_lacks(n):
    apart = ase.Atoms("H3", positions=[[0, 0, 0], [1, 0, 0], [50, 0, 0]])
    assert np.isfinite(laplacian_encodings(edges(apart), 3, 2)).all()
    atoms = ase.Atoms(f"H{n}", positions=[[1.1 * i, 0, 0] for i in range(n)])
    found = laplacian_encodings(edges(atoms), n, 6)
    assert found.shape == (n, 6)
    assert not found[:, n - 1 :].any()
    assert found[:, : n - 1].any(axis=0).all()


def test_an_edge_without_its_counterpart_is_not_lost():
    atoms = cluster(1, 20)
    index = edges(atoms, most=3)
    assert {*map(tuple, index.T)} != {*map(tuple, index[::-1].T)}
    turned = laplacian_encodings(index[::-1].copy(), 20, 3)
    np.testing.assert_array_equal(laplacian_encodings(index, 20, 3), turned)


def test_large_graphs_are_solved_alike(monkeypatch):
    atoms = cluster(5, 300)
    index = edges(atoms)
    assert simple(spectrum(index, 300), 4)
    dense = laplacian_encodings(index, 300, 4)
    monkeypatch.setattr(laplacian, "_DENSE", 10)
    by_lanczos = laplacian_encodings(index, 300, 4)
    np.testing.assert_allclose(by_lanczos, dense, atol=1e-5)
    np.testing.assert_array_equal(laplacian_encodings(index, 300, 4), by_lanczos)


def test_what_a_graph_brings_stays():
    graph = atoms_to_graph(cluster(2, 8), 3.0, None)
    graph.pe = torch.arange(16.0).reshape(8, 2)
    assert not add_encodings(graph, 5)
    assert torch.equal(graph.pe, torch.arange(16.0).reshape(8, 2))
    senders, receivers = graph.edge_index
    assert torch.equal(graph.rel_pe, (graph.pe[senders] - graph.pe[receivers]).abs())
    graph.rel_pe = torch.zeros(graph.num_edges, 2)
    assert not add_encodings(graph, 5)
    assert not graph.rel_pe.any()
