"""Endless orders: every graph once in a pass, in proportion, and any part of one alone."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.data.columns import BranchRuns
from hydragnn_flow.errors import InputError
from hydragnn_flow.training.plan import sampling as module
from hydragnn_flow.training.plan.sampling import (
    InBlocks,
    InTurns,
    Order,
    Shuffled,
    permutation,
    shares_of,
)


@given(size=st.integers(1, 5000), key=st.tuples(st.integers(0, 99), st.integers(0, 99)))
def test_a_permutation_that_is_computed_has_every_number_once(size, key):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_KEPT", 0)
        permutation.cache_clear()
        computed = permutation(size, *key)
    permutation.cache_clear()
    numbers = computed(np.arange(size))
    assert np.array_equal(np.sort(numbers), np.arange(size))
    some = np.random.default_rng(0).integers(0, size, 20)
    assert np.array_equal(computed(some), numbers[some])


def test_a_large_permutation_is_random():
    """Neighbours, and places and numbers, know nothing of each other; keys differ."""
    size, n = 10**7, 10**5
    one, other = (permutation(size, key)(np.arange(n)) for key in (1, 2))
    assert len(np.unique(one)) == n
    chance = 4 / np.sqrt(n)
    assert abs(np.corrcoef(one, np.arange(n))[0, 1]) < chance
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < chance
    assert abs(np.corrcoef(one, other)[0, 1]) < chance
    for unit in (2, 10, 1000, 3163):  # no digit of one shows in the other
        counts = np.bincount(one % unit, minlength=unit)
        assert abs(counts - n / unit).max() < 6 * np.sqrt(n / unit)
    steps = np.histogram(np.diff(one), bins=20, range=(-size, size))[0]
    expected = n * (1 - abs(np.linspace(-0.95, 0.95, 20))) / 10
    assert (abs(steps - expected) < 6 * np.sqrt(expected)).all()


@st.composite
def orders(draw):
    """An order without a bootstrap, and the number of its graphs."""
    size, seed = draw(st.integers(1, 300)), draw(st.integers(0, 9))
    if draw(st.booleans()):
        return Shuffled(size, seed), size
    inner = draw(st.sets(st.integers(1, size), max_size=9))
    return InBlocks(np.array(sorted({0, size} | inner)), seed), size


@given(case=orders(), passes=st.integers(1, 3), cuts=st.lists(st.integers(0, 900), max_size=5))
def test_every_graph_comes_once_in_a_pass_however_it_is_asked_for(case, passes, cuts):
    order, size = case
    whole = order.graphs(0, passes * size)
    for number in range(passes):
        assert sorted(whole[number * size : (number + 1) * size]) == [*range(size)]
    bounds = sorted({0, passes * size} | {cut for cut in cuts if cut < passes * size})
    pieces = [order.graphs(a, b) for a, b in pairwise(bounds)]
    assert np.array_equal(np.concatenate(pieces), whole)


branches = st.lists(st.integers(0, 4), min_size=1, max_size=200)


@given(of_graph=branches, cuts=st.sets(st.integers(1, 199)))
def test_runs_know_the_branch_of_every_graph(of_graph, cuts):
    pieces = np.split(np.array(of_graph), sorted(cut for cut in cuts if cut < len(of_graph)))
    runs = BranchRuns.of(pieces)
    assert np.repeat(runs.branches, np.diff(runs.bounds)).tolist() == of_graph
    assert (np.diff(runs.branches) != 0).all()
    assert runs.graphs == Counter(of_graph)
    for branch, number in runs.graphs.items():
        mine = runs.of_branch(branch).graphs(np.arange(number))
        assert mine.tolist() == np.flatnonzero(np.array(of_graph) == branch).tolist()
    again = BranchRuns.of_pairs(runs.pairs)
    assert np.array_equal(again.bounds, runs.bounds)


@given(
    of_graph=branches,
    seed=st.integers(0, 9),
    weights=st.lists(st.integers(1, 5), min_size=5, max_size=5),
    start=st.integers(0, 3000),
    count=st.integers(0, 3000),
)
@settings(max_examples=30)
def test_branches_come_in_proportion_and_no_graph_twice_before_all_of_its_branch(
    of_graph, seed, weights, start, count
):
    runs = BranchRuns.of([np.array(of_graph)])
    shares = {branch: weights[branch] for branch in runs.graphs}
    order = InTurns(runs, shares, seed)
    total = sum(shares.values())
    together = total * -(-1024 // total)
    drawn = order.graphs(0, 4 * together)
    of_drawn = np.array(of_graph)[drawn]
    for branch, share in shares.items():
        for number in range(4):  # exact in each round
            of_round = of_drawn[number * together : (number + 1) * together]
            assert (of_round == branch).sum() == together * share // total
        mine, size = drawn[of_drawn == branch], runs.graphs[branch]
        passes = np.sort(mine[: len(mine) // size * size].reshape(-1, size))
        assert (passes[:, 1:] != passes[:, :-1]).all()
    part = order.graphs(start, start + count)
    assert np.array_equal(part, order.graphs(0, start + count)[start:])


def test_branches_are_mixed_within_a_step():
    """Though they lie one behind the other, and whatever the number of ranks that take turns."""
    runs = BranchRuns.of_pairs([(0, 9000), (1, 500), (2, 500)])
    drawn = InTurns(runs, dict.fromkeys(range(3), 1), 0).graphs(0, 30_000)
    branch = np.searchsorted(runs.bounds, drawn, side="right") - 1
    for step in np.split(branch, 1000):
        assert len({*step.tolist()}) == 3
    for rank in range(3):
        assert np.bincount(branch[rank::3]) == pytest.approx(10_000 / 3, rel=0.05)


@given(case=st.sampled_from(["shuffled", "blocks", "turns"]), seed=st.integers(0, 5))
def test_a_bootstrap_is_the_same_63_per_cent_in_every_pass(case, seed):
    size = 3000
    runs = BranchRuns.of_pairs([(0, 1000), (1, 2000)])
    order: Order = {
        "shuffled": lambda: Shuffled(size, seed, bootstrap=True),
        "blocks": lambda: InBlocks(np.arange(0, size + 1, 100), seed, bootstrap=True),
        "turns": lambda: InTurns(runs, {0: 1, 1: 2}, seed, bootstrap=True),
    }[case]()
    passes = [Counter(order.graphs(k * size, (k + 1) * size).tolist()) for k in range(3)]
    assert len(passes[0]) / size == pytest.approx(1 - np.exp(-1), abs=0.04)
    if case != "turns":  # whose rounds do not end with a pass
        assert passes[0] == passes[1] == passes[2]
    seen = set().union(*passes)
    assert len(seen) / size == pytest.approx(1 - np.exp(-1), abs=0.04)


def test_weights_become_the_fewest_draws_that_have_them():
    graphs = {0: 10, 1: 20, 3: 5}
    names = ["mptrj", "ani", "none", "qm7x"]
    assert shares_of("proportional", graphs) is None
    assert shares_of("equal", graphs) == {0: 1, 1: 1, 3: 1}
    assert shares_of({"0": 0.1, "1": 0.2, "3": 0.3}, graphs) == {0: 1, 1: 2, 3: 3}
    assert shares_of({"mptrj": 4, "qm7x": 2, "ani": 1}, graphs, names) == {0: 4, 1: 1, 3: 2}


@pytest.mark.parametrize(
    ("sampling", "graphs", "said"),
    [
        ("equal", {0: 4}, r"data\.sampling chooses among the branches.*remove it"),
        ({"0": 1, "1": 1, "2": 3}, {0: 1, 1: 1}, r"data\.sampling\.2: no structure.* are 0, 1"),
        ({"0": 1}, {0: 1, 1: 1}, r"branch 1 has no weight; give it one"),
        ({"0": 0.1234567, "1": 1}, {0: 1, 1: 1}, r"come true only every .* write rounder ones"),
    ],
)
def test_weights_that_cannot_be(sampling, graphs, said):
    with pytest.raises(InputError, match=said):
        shares_of(sampling, graphs)
