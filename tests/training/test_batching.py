"""Steps of a sequence: within the budget, as few as there can be, and dealt to the ranks evenly."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from training_cases import by_rank, plan_epoch

from hydragnn_flow.errors import InputError
from hydragnn_flow.training.plan.batching import Budget, deal, plan_in_order

KINDS = ("graphs", "atoms", "edges")


@dataclass(frozen=True)
class Sizes:
    """The index of a split."""

    n_atoms: NDArray[np.int64]
    n_edges: NDArray[np.int64]

    def __len__(self):
        return len(self.n_atoms)

    def atoms_of(self, graphs):
        return self.n_atoms[graphs]

    def where(self, graph):
        return f"trainset: graph {graph}"

    def edges_of(self, graphs):
        return self.n_edges[graphs]

    def total(self, kind, graphs):
        sizes = {"graphs": np.ones(len(self)), "atoms": self.n_atoms, "edges": self.n_edges}
        return int(sizes[kind][graphs].sum())


def oversized(index, budget):
    """The graphs that are beyond a budget on their own."""
    return np.array(
        [
            graph
            for graph in range(len(index))
            if any(index.total(kind, [graph]) > limit for kind, limit in budget.limits.items())
        ],
        dtype=np.int64,
    )


@st.composite
def indices(draw, least=0):
    graph = st.tuples(st.integers(1, 40), st.integers(0, 200))
    graphs = draw(st.lists(graph, min_size=least, max_size=60))
    return Sizes(*np.array(graphs, dtype=np.int64).reshape(-1, 2).T)


@st.composite
def budgets(draw):
    limits = {"graphs": st.integers(1, 20), "atoms": st.integers(5, 300)}
    limits["edges"] = st.integers(20, 900)
    given = draw(st.fixed_dictionaries({}, optional=limits).filter(bool))
    return Budget(**given, oversized=draw(st.sampled_from(["single", "skip"])))


def many_graphs(n):
    rng = np.random.default_rng(0)
    atoms = rng.integers(1, 40, n)
    return Sizes(atoms, atoms * rng.integers(0, 20, n))


def graphs_of(steps):
    return [int(graph) for step in steps for graph in step.order]


def content(steps):
    return [[part.tolist() for part in by_rank(step)] for step in steps]


def check(steps, index, budget, world):
    """What holds for every plan."""
    beyond = set(oversized(index, budget).tolist())
    for step in steps:
        assert step.graphs > 0
        assert len(by_rank(step)) == world
        assert np.array_equal(np.concatenate(by_rank(step)), step.order)
        assert step.atoms == index.n_atoms[step.order].sum()
        if not beyond.isdisjoint(step.order.tolist()):
            assert step.graphs == 1
        else:
            for kind, limit in budget.limits.items():
                assert index.total(kind, step.order) <= limit


@given(index=indices(), budget=budgets(), world=st.integers(1, 6))
def test_in_order_each_rank_goes_through_a_range_of_its_own(index, budget, world):
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


def work(index, step, world):
    """Edges of each rank, and of the largest graph; atoms if there are no edges at all."""
    kind = "edges" if index.n_edges.any() else "atoms"
    loads = [max(index.total(kind, part), len(part)) for part in by_rank(step)]
    return loads, max(index.total(kind, [graph]) for graph in step.order)


@given(index=indices(least=1), budget=budgets(), world=st.integers(2, 8))
def test_no_two_ranks_differ_by_more_than_a_graph(index, budget, world):
    assume(len(oversized(index, budget)) < len(index))
    for step in plan_epoch(index, budget, 0, 0, world):
        loads, largest = work(index, step, world)
        isolated = int((index.n_edges[step.order] == 0).sum())  # whose work is an edge's
        assert max(loads) - min(loads) <= max(largest, 1) + isolated


def of_sizes(sizes, n):
    """Graphs of uniform or log-normal numbers of atoms, with 15 to 60 edges each."""
    rng = np.random.default_rng(0)
    if sizes == "uniform":
        atoms = rng.integers(8, 65, n)
    else:
        atoms = rng.lognormal(3.0, 1.1, n).clip(2, 500).astype(int)
    return Sizes(atoms, (atoms * rng.uniform(15, 60, n)).astype(int))


@pytest.mark.parametrize("sizes", ["uniform", "log-normal"])
@pytest.mark.parametrize(("world", "each", "steps"), [(2, 8, 99), (8, 8, 50), (64, 32, 8)])
@pytest.mark.parametrize("kind", KINDS)
def test_work_is_dealt_evenly_whatever_the_limit_is(sizes, world, each, steps, kind):
    index = of_sizes(sizes, world * each * steps)
    limit = each * index.total(kind, np.arange(len(index))) // len(index)
    budget = Budget(**{kind: limit}, oversized="single", batches=world)
    found = [work(index, step, world)[0] for step in plan_epoch(index, budget, 0, 0, world)]
    largest = [index.n_edges[s.order].max() for s in plan_epoch(index, budget, 0, 0, world)]
    even = [
        max(loads) / np.mean(loads)
        for loads, graph in zip(found, largest, strict=True)
        if graph <= np.mean(loads)
    ]
    assert len(even) > steps / 4 and np.mean(even) < 1.02


@pytest.mark.parametrize("sizes", ["uniform", "log-normal"])
@pytest.mark.parametrize(("world", "each"), [(2, 1000), (64, 200), (2048, 8), (2048, 200)])
def test_many_graphs_are_dealt_evenly_in_few_rounds(sizes, world, each, monkeypatch):
    costs = of_sizes(sizes, world * each).n_edges
    rounds = 0

    def counted(*args, **options):
        nonlocal rounds
        rounds += 1
        return sort(*args, **options)

    sort = np.argsort
    monkeypatch.setattr(np, "argsort", counted)
    ranks = deal(costs, world)
    assert rounds < 50
    loads = np.bincount(ranks, costs, world)
    assert loads.max() < max(1.05 * loads.mean(), 1.001 * costs.max())


@pytest.mark.parametrize("world", [2, 200])
def test_few_large_graphs_among_many_small_ones(world):
    """All small ones belong to the one rank that has no large one."""
    costs = np.concatenate([np.full(9000, 1), np.full(world - 1, 9000)])
    loads = np.bincount(deal(costs, world), costs, world)
    assert loads.max() < 1.07 * loads.mean()


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
    steps = plan_in_order(index, budget, 1)
    assert len(steps) == n_steps
    totals = [index.total(kind, np.arange(len(index))) for kind in KINDS]
    assert len(steps) >= budget.least_steps(*totals)


def test_no_step_is_a_tiny_remainder():
    index = Sizes(np.full(100, 10), np.full(100, 200))
    for budget in (Budget(atoms=339), Budget(edges=6700), Budget(graphs=33, edges=10_000)):
        assert [step.graphs for step in plan_epoch(index, budget, 0, 0, 1)] == [25] * 4


@pytest.mark.parametrize("blocks", [None, np.array([0, 4])])
def test_graphs_beyond_the_budget(blocks):
    index = Sizes(np.array([8, 90, 8, 70]), np.array([20, 20, 20, 20]))
    budget = Budget(graphs=4, atoms=64)
    words = r"max_nodes, as 2 of 4 graphs have; raise it \(to 90 .* or 'skip'"
    with pytest.raises(InputError, match=words) as caught:
        plan_epoch(index, budget, 0, 0, 1, blocks)
    graph, atoms = (1, 90) if "graph 1" in str(caught.value) else (3, 70)
    assert f"trainset: graph {graph} has {atoms} atoms, more than the 64" in str(caught.value)
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
