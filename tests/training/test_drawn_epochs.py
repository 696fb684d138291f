"""Epochs that are parts of a budget: planned while they are trained, each from where one ended."""

import tracemalloc
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_batching import Sizes, budgets, check, indices, oversized

from hydragnn_flow.data.branch_runs import BranchRuns
from hydragnn_flow.errors import InputError
from hydragnn_flow.training import drawn_epochs
from hydragnn_flow.training.batching import Budget
from hydragnn_flow.training.drawn_epochs import DrawnEpoch, Length
from hydragnn_flow.training.epochs import part_of
from hydragnn_flow.training.orders import InBlocks, InTurns, Shuffled


def planned(epoch, first=0):
    return [step for window in epoch.windows(first) for step in window]


def content(steps):
    return [[part.tolist() for part in step.by_rank] for step in steps]


def order_of(index, kind, seed):
    half = max(1, len(index) // 2)
    if kind == "turns" and len(index) > 1:
        runs = BranchRuns.of_pairs([(0, half), (1, len(index) - half)])
        return InTurns(runs, {0: 2, 1: 1}, seed)
    return Shuffled(len(index), seed)


@st.composite
def epochs(draw):
    """An epoch of a split, from anywhere in the order, of few windows or several."""
    index, budget = draw(indices()), draw(budgets())
    assume(len(index) and len(oversized(index, budget)) < len(index))
    order = order_of(index, draw(st.sampled_from(["shuffled", "turns"])), draw(st.integers(0, 5)))
    if draw(st.booleans()):
        length = Length(steps=draw(st.integers(1, 40)))
    else:
        length = Length(graphs=draw(st.integers(1, 150)))
    start, world = draw(st.integers(0, 200)), draw(st.integers(1, 6))
    return DrawnEpoch(index, order, budget, length, start, world)


@pytest.fixture(autouse=True)
def small_windows():
    """Of some steps only, so that there are several of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawn_epochs, "_MOST_STEPS", 6)
        yield


@given(epoch=epochs())
def test_steps_hold_what_the_order_says_within_the_budget(epoch):
    steps, budget = planned(epoch), epoch.budget
    check(steps, epoch.index, budget, epoch.world)
    drawn, last = 0, max([0, *(step.drawn for step in steps)])
    order = epoch.order.graphs(epoch.start, epoch.start + (epoch.length.graphs or last))
    for step in steps:
        graphs = order[drawn : step.drawn]
        if budget.oversized == "skip":
            graphs = graphs[~np.isin(graphs, oversized(epoch.index, budget))]
        assert Counter(step.order.tolist()) == Counter(graphs.tolist())
        drawn = step.drawn
    if epoch.length.steps is not None:
        assert len(steps) == epoch.length.steps
    else:
        rest = order[drawn:]
        assert np.isin(rest, oversized(epoch.index, budget)).all()
        assert budget.oversized == "skip" or not len(rest)


@given(epoch=epochs(), world=st.sampled_from([1, 2, 8]), first=st.integers(0, 45))
def test_the_same_steps_on_any_ranks_and_from_any_step_on(epoch, world, first):
    steps = planned(epoch)
    assert content(planned(epoch, first)) == content(steps[first:])
    others = planned(replace(epoch, world=world))
    assert [sorted(s.order.tolist()) for s in others] == [sorted(s.order.tolist()) for s in steps]


@given(
    index=indices(),
    budget=budgets(),
    each=st.integers(1, 30),
    unit=st.sampled_from(["steps", "graphs"]),
    kind=st.sampled_from(["shuffled", "turns"]),
)
def test_epochs_go_on_where_they_ended_so_that_a_pass_has_every_graph_once(
    index, budget, each, unit, kind
):
    assume(len(index) and not len(oversized(index, budget)))
    order, drawn, start = order_of(index, kind, 1), [], 0
    while len(drawn) < 3 * len(index):
        steps = planned(DrawnEpoch(index, order, budget, Length(**{unit: each}), start, 1))
        drawn += [int(graph) for step in steps for graph in step.order]
        start += steps[-1].drawn
    assert start == len(drawn)
    if kind == "shuffled":
        for number in range(3):
            assert sorted(drawn[number * len(index) :][: len(index)]) == [*range(len(index))]
    assert sorted(drawn) == sorted(order.graphs(0, start).tolist())


@given(
    size=st.integers(1, 20),
    steps=st.integers(1, 40),
    n=st.integers(1, 200),
    world=st.integers(1, 8),
)
def test_steps_of_a_number_of_graphs_are_all_full(size, steps, n, world):
    index = Sizes(np.arange(1, n + 1), np.zeros(n, dtype=np.int64))
    epoch = DrawnEpoch(index, Shuffled(n, 0), Budget(graphs=size), Length(steps=steps), 7, world)
    found = planned(epoch)
    assert [step.graphs for step in found] == [size] * steps
    assert epoch.steps == steps
    for k, step in enumerate(found):
        graphs = epoch.order.graphs(7 + k * size, 7 + (k + 1) * size)
        assert [part.tolist() for part in step.by_rank] == [
            graphs[rank::world].tolist() for rank in range(world)
        ]


@given(size=st.integers(1, 1000), epochs=st.integers(1, 50))
def test_epochs_divide_a_budget_evenly(size, epochs):
    parts = [part_of(size, epochs, epoch) for epoch in range(2 * epochs)]
    assert sum(parts[:epochs]) == sum(parts[epochs:]) == size
    assert max(parts) - min(parts) <= 1


@given(
    seed=st.integers(0, 9),
    world=st.integers(1, 4),
    kind=st.sampled_from(["graphs", "atoms"]),
    steps=st.integers(1, 30),
    first=st.integers(0, 30),
)
@settings(max_examples=40)
def test_a_stream_is_cut_into_ranges_of_the_ranks(seed, world, kind, steps, first):
    rng = np.random.default_rng(seed)
    index = Sizes(rng.integers(1, 40, 900), np.zeros(900, dtype=np.int64))
    bounds = np.arange(0, 901, 30)
    budget = Budget(**{kind: 200 if kind == "atoms" else 10})
    order = InBlocks(bounds, seed)
    epoch = DrawnEpoch(index, order, budget, Length(steps=steps), 45, world, 30.0, seed)
    found = planned(epoch)
    assert len(found) == steps
    assert content(planned(epoch, first)) == content(found[first:])
    check(found, index, budget, world)
    drawn = [int(graph) for step in found for graph in step.order]
    there = order.graphs(45, 45 + found[-1].drawn).tolist()
    assert not Counter(drawn) - Counter(there)
    if kind == "graphs":
        assert Counter(drawn) == Counter(there)
    whole = planned(replace(epoch, start=0, length=Length(graphs=900)))
    assert sorted(int(graph) for step in whole for graph in step.order) == [*range(900)]
    ranks = [np.concatenate([step.of_rank(rank) for step in whole]) for rank in range(world)]
    blocks = [{*(mine // 30).tolist()} for mine in ranks]
    # Each block is one rank's, but for those on borders and at the start in the middle of one.
    windows = -(-900 // (world * 16 * 30)) + 1
    assert sum(map(len, blocks)) <= 30 + windows * (world + 1)


def test_a_split_of_which_no_graph_fits_is_refused_after_a_pass():
    """It would be drawn from for ever."""
    index = Sizes(np.full(30, 20), np.full(30, 20))
    budget = Budget(atoms=10, oversized="skip")
    epoch = DrawnEpoch(index, Shuffled(30, 0), budget, Length(steps=3), 0, 1)
    with pytest.raises(InputError, match=r"no graph that is drawn fits .*Training\.Batching"):
        planned(epoch)


def test_a_graph_above_the_budget_is_named_by_its_place_in_the_split():
    index = Sizes(np.array([8] * 500 + [90]), np.full(501, 20))
    epoch = DrawnEpoch(index, Shuffled(501, 0), Budget(atoms=64), Length(graphs=501), 0, 1)
    with pytest.raises(InputError, match=r"trainset: graph 500 has 90 atoms, more than the 64"):
        planned(epoch)


@dataclass
class Synthetic:
    """An index that knows the sizes of graphs, keeps none of them, and counts what is asked."""

    size: int
    name: str = "trainset"
    asked: int = 0

    def __len__(self):
        return self.size

    @property
    def n_atoms(self):
        raise AssertionError("the sizes of all graphs are asked for")

    n_edges = n_atoms

    def atoms_of(self, graphs):
        self.asked += len(graphs)
        return 1 + graphs % 97

    def edges_of(self, graphs):
        self.asked += len(graphs)
        return 10 * (1 + graphs % 97)


@pytest.mark.parametrize("budget", [Budget(graphs=64), Budget(atoms=3200, edges=40_000)])
@pytest.mark.parametrize("kind", ["shuffled", "turns"])
def test_a_hundred_steps_of_a_hundred_million_graphs_cost_what_they_cost_of_ten_thousand(
    budget, kind
):
    def taken(size):
        """Sizes that are asked for, and the most bytes that are held at a time."""
        index: Any = Synthetic(size)
        epoch = DrawnEpoch(index, order_of(index, kind, 0), budget, Length(steps=100), 0, 8)
        tracemalloc.start()
        try:
            assert len(planned(epoch)) == 100
            return index.asked, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    taken(10**4)  # imports, caches
    (few, few_bytes), (many, many_bytes) = taken(10**4), taken(10**8)
    assert many == pytest.approx(few, rel=0.15)
    assert many < 100 * 64 * 3 + 4096 * 3
    assert many_bytes < 1.5 * few_bytes + 2**20  # a byte of each graph would be 95 MiB
