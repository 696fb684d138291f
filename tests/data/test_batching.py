"""Vectorised batches against PyG's own, field for field."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from hydragnn_flow.data.columns import pack
from hydragnn_flow.data.reading.batching import Assembler

POOL = 12


@pytest.fixture(scope="module")
def pool(graph) -> list[Data]:
    graphs = [graph(seed) for seed in range(POOL - 2)]
    graphs += [graph(100, n_atoms=1), graph(101, n_atoms=2)]
    # Keys whose name tells PyG to number them through, or to join them along another dimension.
    for i, data in enumerate(graphs):
        data.corner_index = torch.arange(data.num_nodes)
        data.face = torch.zeros((3, i % 3), dtype=torch.int64)
        data.spin = torch.full((data.num_nodes, 2, 2), float(i), dtype=torch.float64)
    return graphs


@pytest.fixture(scope="module")
def assembler(pool) -> Assembler:
    return Assembler(pack(pool, "trainset", {}))


def assert_equal(ours: Batch, theirs: Batch) -> None:
    assert list(ours.to_dict()) == list(theirs.to_dict())
    for key, value in theirs.to_dict().items():
        assert ours[key].dtype == value.dtype, key
        assert torch.equal(ours[key], value), key
    assert ours.num_graphs == theirs.num_graphs
    assert ours.num_nodes == theirs.num_nodes
    for book in ("_slice_dict", "_inc_dict"):
        mine, reference = getattr(ours, book), getattr(theirs, book)
        assert mine.keys() == reference.keys()
        for key in reference:
            assert torch.equal(mine[key], reference[key]), (book, key)


@given(indices=st.lists(st.integers(0, POOL - 1), min_size=1, max_size=20))
def test_equals_pyg(assembler, pool, indices):
    chosen = [pool[i] for i in indices]
    assert_equal(assembler.batch(indices), Batch.from_data_list(chosen))


@given(indices=st.lists(st.integers(0, POOL - 1), min_size=1, max_size=20))
def test_comes_apart_again(assembler, pool, same, indices):
    batch = assembler.batch(indices)
    parts = batch.to_data_list()
    assert len(parts) == len(indices)
    assert all(same(part, pool[i]) for part, i in zip(parts, indices, strict=True))
    assert same(batch[len(indices) - 1], pool[indices[-1]])


def test_single_graphs(assembler, pool, same):
    assert all(same(assembler.graph(i), data) for i, data in enumerate(pool))
    assert same(assembler.graph(-1), pool[-1])


@pytest.mark.parametrize("as_type", [list, np.array, torch.tensor])
def test_kinds_of_indices(assembler, pool, as_type):
    assert_equal(assembler.batch(as_type([3, -1])), Batch.from_data_list([pool[3], pool[-1]]))


def test_wrong_indices(assembler):
    with pytest.raises(IndexError):
        assembler.batch([POOL])
    with pytest.raises(IndexError):
        assembler.batch([-POOL - 1])
    with pytest.raises(IndexError):
        assembler.batch([])
    with pytest.raises(TypeError):
        assembler.batch(np.ones(POOL, dtype=bool))


def test_batches_are_copies(assembler, pool):
    batch = assembler.batch([0, 1])
    batch.pos += 1.0
    batch.edge_index += 1
    assembler.graph(0).pos.zero_()
    assert_equal(assembler.batch([0, 1]), Batch.from_data_list(pool[:2]))
