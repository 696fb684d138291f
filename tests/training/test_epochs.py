"""Epochs are windows of an order: whole passes, or parts of a budget that go on where one ended."""

import tracemalloc
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from test_batching import Sizes, budgets, check, content, graphs_of, indices, many_graphs, oversized
from training_cases import plan_epoch

from hydragnn_flow.data.columns import BranchRuns
from hydragnn_flow.errors import InputError
from hydragnn_flow.training.plan import epochs as module
from hydragnn_flow.training.plan.batching import Budget
from hydragnn_flow.training.plan.epochs import BLOCKS, Epoch, part_of
from hydragnn_flow.training.plan.sampling import InBlocks, InTurns, Shuffled


def planned(epoch, first=0):
    """The steps of an epoch, in windows of few graphs and steps, so that there are several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_GRAPHS", 40)
        patch.setattr(module, "_STEPS", 6)
        return [step for window in epoch.windows(first) for step in window]


def order_of(index, kind, seed):
    half = max(1, len(index) // 2)
    if kind == "turns" and len(index) > 1:
        runs = BranchRuns.of_pairs([(0, half), (1, len(index) - half)])
        return InTurns(runs, {0: 2, 1: 1}, seed)
    return Shuffled(len(index), seed)


@st.composite
def epochs(draw):
    """An epoch of a split, from anywhere in the order, of few windows or several."""
    index, budget = draw(indices(least=1)), draw(budgets())
    assume(len(oversized(index, budget)) < len(index))
    order = order_of(index, draw(st.sampled_from(["shuffled", "turns"])), draw(st.integers(0, 5)))
    length = draw(
        st.fixed_dictionaries({"n_steps": st.integers(1, 40)})
        | st.fixed_dictionaries({"n_graphs": st.integers(1, 150)})
    )
    start, world = draw(st.integers(0, 200)), draw(st.integers(1, 6))
    return Epoch(index, order, budget, start, world, **length)


# Of five graphs two are beyond the budget, in an epoch of steps.
ALONE = Sizes(np.array([8, 90, 8, 70, 8]), np.zeros(5, dtype=np.int64))
SINGLE = Budget(atoms=64, oversized="single")


@given(epoch=epochs())
@example(epoch=Epoch(ALONE, Shuffled(5, 0), SINGLE, 0, 2, n_steps=7))
def test_steps_hold_what_the_order_says_within_the_budget(epoch):
    steps, budget = planned(epoch), epoch.budget
    check(steps, epoch.index, budget, epoch.world)
    ends = [0, *(step.drawn for step in steps)]
    order = epoch.order.graphs(epoch.start, epoch.start + (epoch.n_graphs or ends[-1]))
    if budget.oversized == "skip":
        kept = ~np.isin(order, oversized(epoch.index, budget))
    else:
        kept = np.ones(len(order), dtype=bool)
    assert Counter(graphs_of(steps)) == Counter(order[kept].tolist())
    if epoch.n_graphs is not None and kept.all():
        assert ends[-1] == epoch.n_graphs, "where the next epoch goes on"
    if epoch.n_steps is not None:
        assert len(steps) == epoch.n_steps
        # The next epoch may begin at the end of any step.
        for begin, step in zip(ends, steps, strict=False):
            piece = slice(begin, step.drawn)
            assert Counter(step.order.tolist()) == Counter(order[piece][kept[piece]].tolist())


@given(epoch=epochs(), world=st.sampled_from([1, 2, 8]), first=st.integers(0, 45))
def test_the_same_steps_on_any_ranks_and_from_any_step_on(epoch, world, first):
    steps = planned(epoch)
    assert content(planned(epoch, first)) == content(steps[first:])
    others = planned(replace(epoch, world=world))
    assert [sorted(s.order.tolist()) for s in others] == [sorted(s.order.tolist()) for s in steps]


@given(n=st.integers(1, 500), size=st.integers(1, 80), seed=st.integers(0, 9))
def test_a_pass_is_cut_into_steps_of_equal_size(n, size, seed):
    """In the order that numpy shuffles by seed and epoch, which runs under way go on with."""
    index = Sizes(np.full(n, 8), np.full(n, 90))
    order = np.random.default_rng([seed, 3]).permutation(n)
    expected = np.array_split(order, -(-n // size))
    steps = plan_epoch(index, Budget(graphs=size), seed, 3, 2)
    assert content(steps) == [[step[::2].tolist(), step[1::2].tolist()] for step in expected]
    epoch = Epoch(index, Shuffled(n, seed), Budget(graphs=size), 3 * n, 2, n_graphs=n)
    assert (epoch.steps, epoch.graphs_per_step) == (len(expected), n / len(expected))
    # Windows are alike, so that none of them, and no step, is a small remainder.
    sizes = [step.graphs for step in planned(epoch)]
    assert sum(sizes) == n
    assert max(sizes) <= 2 * min(sizes) + 1


@given(size=st.integers(1, 20), steps=st.integers(1, 40), n=st.integers(1, 200))
def test_steps_of_a_number_of_graphs_are_all_full(size, steps, n):
    index = Sizes(np.arange(1, n + 1), np.zeros(n, dtype=np.int64))
    epoch = Epoch(index, Shuffled(n, 0), Budget(graphs=size), 7, 3, n_steps=steps)
    found = planned(epoch)
    assert [step.graphs for step in found] == [size] * steps
    assert (epoch.steps, epoch.graphs_per_step) == (steps, size)


@given(size=st.integers(1, 1000), epochs=st.integers(1, 50))
def test_epochs_divide_a_budget_evenly(size, epochs):
    parts = [part_of(size, epochs, epoch) for epoch in range(2 * epochs)]
    assert sum(parts[:epochs]) == sum(parts[epochs:]) == size
    assert max(parts) - min(parts) <= 1


def test_seed_and_epoch_decide():
    index = Sizes(np.arange(1, 61), np.arange(60))
    for blocks in (None, np.arange(0, 61, 5)):
        first, again, later, other = (
            content(plan_epoch(index, Budget(atoms=200), seed, epoch, 2, blocks))
            for seed, epoch in ((0, 1), (0, 1), (0, 2), (1, 1))
        )
        assert first == again
        assert first != later and first != other


@given(
    seed=st.integers(0, 99),
    world=st.integers(1, 4),
    kind=st.sampled_from(["graphs", "atoms"]),
    steps=st.integers(1, 30),
)
@settings(max_examples=30)
def test_ranks_of_a_stream_have_ranges_of_their_own(seed, world, kind, steps):
    """Few blocks at a time, each one rank's but for those on borders, of nearly equal work."""
    index, bounds = many_graphs(900), np.arange(0, 901, 15)
    budget = Budget(**{kind: 200 if kind == "atoms" else 10})
    whole = Epoch(index, InBlocks(bounds, seed), budget, 0, world, n_graphs=900, blocks=bounds)
    part = replace(whole, start=45, n_graphs=None, n_steps=steps)
    found = planned(part)
    assert len(found) == steps
    assert content(planned(part, steps // 2)) == content(found[steps // 2 :])
    there = part.order.graphs(45, 45 + found[-1].drawn).tolist()
    assert not Counter(graphs_of(found)) - Counter(there)
    assert sorted(graphs_of(planned(whole))) == [*range(900)]
    every = [step for window in replace(whole).windows() for step in window]
    assert sorted(graphs_of(every)) == [*range(900)]
    check(found + every, index, budget, world)
    mine = [np.concatenate([step.of_rank(rank) for step in every]) for rank in range(world)]
    total, largest = np.maximum(index.n_edges, 1).sum(), index.n_edges.max()
    readers = 0
    for graphs in mine:
        assert abs(np.maximum(index.n_edges, 1)[graphs].sum() - total / world) <= largest
        found_in = [np.flatnonzero(graphs // 15 == block) for block in {*(graphs // 15).tolist()}]
        begun = [sum(f[0] <= place <= f[-1] for f in found_in) for place in range(len(graphs))]
        assert min(BLOCKS, 10) <= max(begun) <= BLOCKS  # shuffled among each other
        readers += len(found_in)
    assert readers <= 60 + world - 1


@dataclass
class Synthetic:
    """An index that knows the sizes of graphs, keeps none of them, and counts what is asked."""

    size: int
    asked: int = 0

    def __len__(self):
        return self.size

    def atoms_of(self, graphs):
        self.asked += len(graphs)
        return 1 + graphs % 97

    def where(self, graph):
        return f"trainset: graph {graph}"

    def edges_of(self, graphs):
        return 10 * self.atoms_of(graphs)


@pytest.mark.parametrize("budget", [Budget(graphs=64), Budget(atoms=3200, edges=40_000)])
@pytest.mark.parametrize("kind", ["shuffled", "turns"])
def test_a_hundred_steps_of_a_hundred_million_graphs_cost_what_they_cost_of_ten_thousand(
    budget, kind
):
    def taken(size):
        """Sizes that are asked for, and the most bytes that are held at a time."""
        index: Any = Synthetic(size)
        epoch = Epoch(index, order_of(index, kind, 0), budget, 0, 8, n_steps=100)
        tracemalloc.start()
        try:
            assert sum(map(len, epoch.windows())) == 100
            return index.asked, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    taken(10**4)  # imports, caches
    (few, few_bytes), (many, many_bytes) = taken(10**4), taken(10**8)
    assert many == pytest.approx(few, rel=0.15)
    assert many < 120 * 64 * 4 + 4096 * 4
    assert many_bytes < 1.5 * few_bytes + 2**20  # a byte of each graph would be 95 MiB


def test_an_epoch_that_is_resumed_plans_only_what_is_left():
    index: Any = Synthetic(4000)
    epoch = Epoch(index, Shuffled(4000, 0), Budget(graphs=10), 0, 2, n_graphs=4000)
    (left,) = planned(epoch, first=399)
    assert left.graphs == 10 and index.asked <= 80


def test_in_a_stream_every_rank_has_blocks_to_shuffle():
    index: Any = Synthetic(4000)
    bounds = np.arange(0, 4001, 10)
    epoch = Epoch(index, InBlocks(bounds, 0), Budget(graphs=10), 0, 4, n_graphs=4000, blocks=bounds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_GRAPHS", 40)
        windows = [sum(step.graphs for step in window) for window in epoch.windows()]
    assert sum(windows) == 4000 and min(windows) >= BLOCKS * 4 * 10 / 2


def test_graphs_that_are_left_out_are_in_no_step_and_not_in_its_mean():
    index = Sizes(np.array([3, 50] * 100), np.zeros(200))
    budget = Budget(atoms=30, oversized="skip")
    assert Epoch(index, Shuffled(200, 0), budget, 0, 1, n_graphs=200).graphs_per_step == 10.0
    # If none is left, an epoch of steps would draw for ever.
    none = Epoch(index, Shuffled(200, 0), replace(budget, atoms=2), 0, 1, n_steps=3)
    with pytest.raises(InputError, match=r"graph 0 has 3 atoms.*as 200 of 200 graphs have"):
        planned(none)
