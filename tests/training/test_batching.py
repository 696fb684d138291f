"""Plans of steps: every graph once, within the budget, the same wherever they are made."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hydragnn_flow.errors import InputError
from hydragnn_flow.training.batching import Budget, plan_epoch, plan_in_order

KINDS = ("graphs", "atoms", "edges")


def oversized(index, budget):
    """The graphs that are beyond a budget on their own, counted plainly."""
    sizes = {"graphs": [1] * len(index), "atoms": index.n_atoms, "edges": index.n_edges}
    beyond = [
        i
        for i in range(len(index))
        if any(sizes[name][i] > limit for name, limit in budget.limits.items())
    ]
    return np.array(beyond, dtype=np.int64)


@dataclass(frozen=True)
class Sizes:
    """The index of a split."""

    n_atoms: NDArray[np.int64]
    n_edges: NDArray[np.int64]
    name: str = "trainset"

    def __len__(self):
        return len(self.n_atoms)

    def atoms_of(self, graphs):
        return self.n_atoms[graphs]

    def edges_of(self, graphs):
        return self.n_edges[graphs]

    def total(self, kind, graphs):
        sizes = {"graphs": np.ones(len(self)), "atoms": self.n_atoms, "edges": self.n_edges}
        return int(sizes[kind][graphs].sum())

    def largest(self, kind):
        return max(self.total(kind, np.array([i])) for i in range(len(self)))


@st.composite
def indices(draw):
    graphs = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 200)), max_size=60))
    atoms, edges = np.array(graphs, dtype=np.int64).reshape(-1, 2).T
    return Sizes(atoms, edges)


@st.composite
def budgets(draw):
    limits = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "graphs": st.integers(1, 20),
                "atoms": st.integers(5, 300),
                "edges": st.integers(20, 900),
            },
        ).filter(bool)
    )
    return Budget(**limits, oversized=draw(st.sampled_from(["single", "skip"])))


@st.composite
def cases(draw):
    """A split, a budget some graphs may be beyond, ranks, blocks or none, and a window."""
    index, budget = draw(indices()), draw(budgets())
    assume(budget.oversized == "single" or len(oversized(index, budget)) < max(len(index), 1))
    blocks = None
    if draw(st.booleans()):
        inner = draw(st.sets(st.integers(1, max(len(index) - 1, 1)), max_size=12))
        blocks = np.array(sorted({0, len(index)} | {i for i in inner if i < len(index)}))
    return index, budget, draw(st.integers(1, 6)), blocks, draw(st.integers(1, 5))


def many_graphs(n):
    rng = np.random.default_rng(0)
    atoms = rng.integers(1, 40, n)
    return Sizes(atoms, atoms * rng.integers(0, 20, n))


def random_blocks(n, seed):
    inner = np.random.default_rng(seed).choice(np.arange(1, n), 20, replace=False)
    return np.concatenate([[0], np.sort(inner), [n]])


def graphs_of(steps):
    return [int(graph) for step in steps for graph in step.order]


def content(steps):
    return [[part.tolist() for part in step.by_rank] for step in steps]


def check(steps, index, budget, world):
    """What holds for every plan."""
    beyond = set(oversized(index, budget).tolist())
    for step in steps:
        assert step.graphs > 0
        assert len(step.by_rank) == world
        assert np.array_equal(np.concatenate(step.by_rank), step.order)
        assert step.atoms == index.n_atoms[step.order].sum()
        if not beyond.isdisjoint(step.order.tolist()):
            assert step.graphs == 1
        else:
            for kind, limit in budget.limits.items():
                assert index.total(kind, step.order) <= limit


@given(case=cases(), seed=st.integers(0, 5))
def test_an_epoch_is_every_graph_once_within_the_budget(case, seed):
    index, budget, world, blocks, window = case
    steps = plan_epoch(index, budget, seed, 3, world, blocks, window)
    check(steps, index, budget, world)
    skipped = oversized(index, budget).tolist() if budget.oversized == "skip" else []
    assert Counter(graphs_of(steps)) == Counter(set(range(len(index))) - set(skipped))
    again = plan_epoch(index, budget, seed, 3, world, blocks, window)
    assert content(again) == content(steps)
    if not len(oversized(index, budget)):
        totals = [index.total(kind, np.arange(len(index))) for kind in KINDS]
        assert len(steps) >= budget.least_steps(*totals)


@given(case=cases(), seed=st.integers(0, 5))
def test_a_bootstrap_is_as_many_graphs_the_same_on_any_ranks_in_any_epoch(case, seed):
    index, budget, world, blocks, window = case

    def drawn(epoch, ranks):
        steps = plan_epoch(index, budget, seed, epoch, ranks, blocks, window, bootstrap=True)
        check(steps, index, budget, ranks)
        return Counter(graphs_of(steps))

    found = drawn(0, world)
    assert found == drawn(3, 1)
    assert found.total() == len(graphs_of(plan_epoch(index, budget, seed, 0, 1)))


def test_a_bootstrap_has_63_per_cent_of_the_graphs_and_depends_on_the_seed():
    index = Sizes(np.full(2000, 3), np.full(2000, 6))

    def drawn(seed):
        return graphs_of(plan_epoch(index, Budget(graphs=10), seed, 0, 1, bootstrap=True))

    one, other = drawn(1), drawn(2)
    assert len(one) == 2000
    assert len(set(one)) / 2000 == pytest.approx(1 - np.exp(-1), abs=0.03)
    assert len(set(one) & set(other)) / 2000 == pytest.approx((1 - np.exp(-1)) ** 2, abs=0.03)


@given(case=cases())
def test_in_order_each_rank_goes_through_a_range_of_its_own(case):
    index, budget, world, _, _ = case
    steps = plan_in_order(index, replace(budget, oversized="error"), world)
    check(steps, index, budget, world)
    assert sorted(graphs_of(steps)) == list(range(len(index)))
    ordinary = set(range(len(index))) - set(oversized(index, budget).tolist())
    previous = -1
    for rank in range(world):
        mine = [int(graph) for step in steps for graph in step.of_rank(rank)]
        ascending = [graph for graph in mine if graph in ordinary]
        assert ascending == sorted(ascending)
        assert min(mine, default=len(index)) > previous
        previous = max(mine, default=previous)


@given(
    n=st.integers(1, 500), size=st.integers(1, 80), seed=st.integers(0, 9), world=st.integers(1, 8)
)
def test_a_budget_of_graphs_alone_cuts_steps_of_equal_size(n, size, seed, world):
    index = Sizes(np.arange(1, n + 1), np.zeros(n, dtype=np.int64))
    order = np.random.default_rng([seed, 3]).permutation(n)
    expected = np.array_split(order, -(-n // size))
    steps = plan_epoch(index, Budget(graphs=size), seed, 3, world)
    assert content(steps) == [
        [step[rank::world].tolist() for rank in range(world)] for step in expected
    ]


@given(index=indices(), budget=budgets(), world=st.integers(2, 8))
def test_steps_do_not_depend_on_the_number_of_ranks(index, budget, world):
    budget = replace(budget, oversized="single")
    one, many = (plan_epoch(index, budget, 1, 2, ranks) for ranks in (1, world))
    assert [sorted(s.order.tolist()) for s in one] == [sorted(s.order.tolist()) for s in many]


@given(index=indices(), world=st.integers(2, 8), kind=st.sampled_from(["atoms", "edges"]))
def test_no_two_ranks_differ_by_more_than_a_graph(index, world, kind):
    assume(len(index))
    for step in plan_epoch(index, Budget(**{kind: 900}), 0, 0, world):
        loads = [index.total(kind, part) for part in step.by_rank]
        largest = max(index.total(kind, np.array([graph])) for graph in step.order)
        assert max(loads) - min(loads) <= largest


@pytest.mark.parametrize("kind", ["atoms", "edges"])
def test_with_many_graphs_to_a_rank_costs_are_nearly_equal(kind):
    index = many_graphs(640)
    n_steps = -(-index.total(kind, np.arange(640)) // 10)
    for step in plan_epoch(index, Budget(**{kind: n_steps}), 0, 0, 4):
        loads = [index.total(kind, part) for part in step.by_rank]
        assert max(loads) <= 1.02 * np.mean(loads)


@given(index=indices(), budget=budgets())
def test_there_are_no_more_steps_than_filling_one_after_the_other_takes(index, budget):
    assume(not len(oversized(index, budget)))
    n_steps, held = 0, []
    for graph in range(len(index)):
        held.append(graph)
        if not n_steps or any(
            index.total(kind, np.array(held)) > limit for kind, limit in budget.limits.items()
        ):
            n_steps, held = n_steps + 1, [graph]
    assert len(plan_in_order(index, budget, 1)) == n_steps


def test_no_step_is_a_tiny_remainder():
    index = Sizes(np.full(100, 10), np.full(100, 200))
    for budget in (Budget(atoms=339), Budget(edges=6700), Budget(graphs=33, edges=10_000)):
        assert [step.graphs for step in plan_epoch(index, budget, 0, 0, 1)] == [25] * 4


@pytest.mark.parametrize("blocks", [None, np.arange(0, 61, 5)])
def test_seed_and_epoch_decide(blocks):
    index = Sizes(np.arange(1, 61), np.arange(60))

    def plan(seed, epoch):
        return content(plan_epoch(index, Budget(atoms=200), seed, epoch, 2, blocks, window=3))

    assert plan(0, 1) == plan(0, 1)
    assert plan(0, 1) != plan(0, 2)
    assert plan(0, 1) != plan(1, 1)


@given(seed=st.integers(0, 999), world=st.integers(1, 5), window=st.integers(1, 6))
def test_a_stream_needs_few_blocks_at_a_time(seed, world, window):
    index, blocks = many_graphs(300), random_blocks(300, seed)
    steps = plan_epoch(index, Budget(atoms=200), seed, 0, world, blocks, window)
    readers: Counter[int] = Counter()
    most = 0
    for rank in range(world):
        mine = np.concatenate([step.of_rank(rank) for step in steps])
        block_of = np.searchsorted(blocks, mine, side="right") - 1
        found = [np.flatnonzero(block_of == block) for block in set(block_of.tolist())]
        readers.update(set(block_of.tolist()))
        begun = [sum(f[0] <= place <= f[-1] for f in found) for place in range(len(mine))]
        most = max(most, *begun)
    assert most <= window
    assert most >= min(window, 2)  # they were shuffled among each other, too
    assert sum(count - 1 for count in readers.values()) <= world - 1


@given(seed=st.integers(0, 999), world=st.integers(1, 5), kind=st.sampled_from(KINDS))
def test_a_stream_is_shared_out_evenly(seed, world, kind):
    index = many_graphs(300)
    total, largest = index.total(kind, np.arange(300)), index.largest(kind)
    budget = Budget(**{kind: total // 8})
    steps = plan_epoch(index, budget, seed, 0, world, random_blocks(300, seed))
    parts = np.array([[index.total(kind, part) for part in step.by_rank] for step in steps])
    assert (abs(parts.sum(axis=0) - total / world) <= largest).all()
    assert (abs(parts - parts.mean(axis=1, keepdims=True)) <= 2 * largest).all()


def test_a_stream_is_shuffled():
    index = Sizes(np.full(1000, 10), np.full(1000, 100))
    blocks = np.arange(0, 1001, 50)
    firsts = []
    for epoch in range(2):
        steps = plan_epoch(index, Budget(graphs=100), 0, epoch, 1, blocks, window=8)
        met = [set((step.order // 50).tolist()) for step in steps]
        assert len(met[0]) >= 4
        assert len(met[5]) >= 8
        firsts.append(met[0])
    assert firsts[0] != firsts[1]
    assert len(firsts[0] | firsts[1]) > 8


@pytest.mark.parametrize("blocks", [None, np.array([0, 4])])
def test_graphs_beyond_the_budget(blocks):
    index = Sizes(np.array([8, 90, 8, 70]), np.array([20, 20, 20, 20]))
    budget = Budget(graphs=4, atoms=64)
    with pytest.raises(InputError) as caught:
        plan_epoch(index, budget, 0, 0, 1, blocks)
    assert str(caught.value) == (
        "trainset: graph 1 has 90 atoms, more than the 64 of Training.Batching.max_nodes, as 2 of "
        "4 graphs have; raise it (to 90 for all of them) or set Training.Batching.oversized_sample "
        "to 'single' or 'skip'"
    )
    assert oversized(index, budget).tolist() == [1, 3]
    single = plan_epoch(index, replace(budget, oversized="single"), 0, 0, 2, blocks)
    assert sorted(sorted(step.order.tolist()) for step in single) == [[0, 2], [1], [3]]
    (skip,) = plan_epoch(index, replace(budget, oversized="skip"), 0, 0, 2, blocks)
    assert sorted(skip.order.tolist()) == [0, 2]
    nothing_left = replace(budget, atoms=4, oversized="skip")
    with pytest.raises(InputError, match=r"graph 0 has 8 atoms.*4 of 4 graphs.*to 'single'$"):
        plan_epoch(index, nothing_left, 0, 0, 1, blocks)


def test_isolated_graphs_come_at_their_place_in_the_order():
    index = Sizes(np.array([90] * 10 + [8] * 40), np.zeros(50))
    steps = plan_epoch(index, Budget(atoms=64, oversized="single"), 0, 0, 1)
    alone = [place for place, step in enumerate(steps) if step.atoms == 90]
    assert alone[0] < 5
    assert alone[-1] > 9
    assert alone != list(range(alone[0], alone[0] + 10))


def test_a_budget_limits_something():
    with pytest.raises(ValueError, match="graphs, atoms or edges"):
        Budget()
    with pytest.raises(ValueError, match="1 at least"):
        Budget(graphs=4, atoms=0)
