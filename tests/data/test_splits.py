"""Which structures are the same, and that none of them is in two splits."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import ase
import ase.io
import numpy as np
import pytest
from ase.build import bulk
from ase.formula import Formula
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from hydragnn_flow.data.columns import Column, concatenation_dim
from hydragnn_flow.data.graphs import atoms_to_graph
from hydragnn_flow.data.neighbours import neighbour_list
from hydragnn_flow.data.splits import TEST, TRAIN, VALIDATION
from hydragnn_flow.data.splits.divide import Structures, divide
from hydragnn_flow.data.splits.duplicates import compositions, graph_hashes
from hydragnn_flow.errors import InputError

CUTOFF = 3.0
SEEDS = st.integers(0, 2**32)


def columns(graphs: Sequence[Data]) -> dict[str, Column]:
    """The graphs end to end."""
    joined = {}
    for key in graphs[0].to_dict():
        values = [graph[key].numpy() for graph in graphs]
        dim = concatenation_dim(key, values[0].ndim)
        counts = np.array([value.shape[dim] for value in values])
        joined[key] = Column(np.concatenate(values, axis=dim), dim, counts)
    return joined


def hashes(structures: Sequence[ase.Atoms], cutoff: float = CUTOFF) -> list[str]:
    return graph_hashes(columns([atoms_to_graph(atoms, cutoff, None) for atoms in structures]))


def plain(
    x: Sequence[float], edges: Sequence[tuple[int, int]], **features: object
) -> dict[str, Column]:
    """One graph from bare lists: node features, edges in both directions, anything else."""
    both = np.array([*edges, *((b, a) for a, b in edges)]).T
    joined = {
        "x": Column(np.asarray(x, dtype=np.float32)[:, None], 0, np.array([len(x)])),
        "edge_index": Column(both, 1, np.array([both.shape[1]])),
    }
    for key, values in features.items():
        array = np.asarray(values)
        joined[key] = Column(array, 0, np.array([len(array)]))
    return joined


def moved(atoms: ase.Atoms, seed: int) -> ase.Atoms:
    """The same structure, reordered, turned, shifted, each atom in another periodic image."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    copy = atoms[rng.permutation(len(atoms))]
    images = rng.integers(-2, 3, size=(len(copy), 3)) * copy.pbc
    positions = copy.positions + images @ copy.cell.array + rng.normal(scale=5.0, size=3)
    copy.set_cell(copy.cell.array @ turn)
    copy.positions = positions @ turn
    return copy


def crystal(seed: int) -> ase.Atoms:
    """A thermally disordered alloy in which every atom has neighbours."""
    rng = np.random.default_rng(seed)
    atoms = bulk("Cu", cubic=True).repeat((2, 1, 1))
    atoms.numbers = rng.choice([29, 79], size=len(atoms))
    atoms.rattle(0.05, rng=rng)
    return atoms


# What is the same -----------------------------------------------------------------------------


@given(seed=SEEDS)
def test_hash_is_of_the_structure_alone(structure, seed):
    atoms = structure(seed)
    assert hashes([moved(atoms, seed)]) == hashes([atoms])


@given(seeds=st.lists(SEEDS, min_size=1, max_size=6))
def test_hash_is_independent_of_the_block(structure, seeds):
    several = [structure(seed) for seed in seeds]
    alone = [hashes([atoms])[0] for atoms in several]
    assert hashes(several) == alone
    assert hashes(several[::-1]) == alone[::-1]


@given(seed=SEEDS)
def test_hash_is_independent_of_data_types_and_edge_order(graph, seed):
    wide = columns([graph(seed)])
    order = np.random.default_rng(seed).permutation(int(wide["edge_index"].counts[0]))
    other = {
        key: replace(column, values=np.take(column.values, order, axis=column.dim))
        if key.startswith("edge")
        else column
        for key, column in wide.items()
    }
    other["x"] = replace(wide["x"], values=wide["x"].values.astype(np.int16))
    other["edge_index"] = replace(
        other["edge_index"], values=other["edge_index"].values.astype(np.int32)
    )
    assert graph_hashes(other) == graph_hashes(wide)


@given(seed=SEEDS, which=st.integers(0, 7))
def test_another_element_gives_another_hash(seed, which):
    atoms = crystal(seed)
    other = atoms.copy()
    other.numbers[which] = 28
    assert hashes([other]) != hashes([atoms])


@given(seed=SEEDS, which=st.integers(0, 7))
def test_a_moved_atom_gives_another_hash(seed, which):
    atoms = crystal(seed)
    other = atoms.copy()
    direction = np.random.default_rng(seed).normal(size=3)
    other.positions[which] += 0.01 * direction / np.linalg.norm(direction)
    assert hashes([other]) != hashes([atoms])


def test_an_atom_moved_off_a_symmetric_site_gives_another_hash():
    """Seen by single lengths; sums of smooth functions of them do not change to first order."""
    atoms = bulk("Cu", cubic=True).repeat(2)
    other = atoms.copy()
    other.positions[0, 0] += 0.005
    assert hashes([other]) != hashes([atoms])


@pytest.mark.parametrize("length", [2.0, 2.25, 2.5, 3.0])
def test_plain_lengths_are_clear_of_rounding_boundaries(length):
    """Even with the noise of float32 positions."""
    atoms = ase.Atoms("Po", cell=[length] * 3, pbc=True).repeat(2)
    copies = columns([atoms_to_graph(moved(atoms, s), 1.2 * length, None) for s in range(50)])
    del copies["edge_attr"]
    assert len(set(graph_hashes(copies))) == 1


def test_labels_do_not_count():
    graphs = [
        atoms_to_graph(crystal(0), CUTOFF, None, i, {"energy": np.array([float(i)])})
        for i in (0, 1)
    ]
    assert len(set(graph_hashes(columns(graphs)))) == 1


@given(seed=SEEDS)
def test_lengths_come_from_positions_where_edges_carry_none(seed):
    def hash_without_attributes(atoms: ase.Atoms, *keys: str) -> str:
        # In float64, as the rounding of float32 positions is not what is tested here.
        edges = neighbour_list(atoms.positions, atoms.cell.array, atoms.pbc, CUTOFF)
        n_edges, n_atoms = np.array([len(edges.senders)]), np.array([len(atoms)])
        found = {
            "x": Column(atoms.numbers[:, None], 0, n_atoms),
            "edge_index": Column(np.stack([edges.senders, edges.receivers]), 1, n_edges),
            "pos": Column(atoms.positions, 0, n_atoms),
            "edge_shifts": Column(edges.shifts, 0, n_edges),
        }
        return graph_hashes({key: found[key] for key in ("x", "edge_index", *keys)})[0]

    atoms, geometry = crystal(seed), ("pos", "edge_shifts")
    farther = atoms.copy()
    farther.positions[3] += 0.02
    one = hash_without_attributes(atoms, *geometry)
    assert hash_without_attributes(moved(atoms, seed), *geometry) == one
    assert hash_without_attributes(farther, *geometry) != one
    assert hash_without_attributes(farther) == hash_without_attributes(atoms)


def test_bonds_without_lengths_do_not_hide_the_positions():
    """Edge features that say nothing of the geometry must not make all conformers one."""
    bonds, single_double = [(0, 1), (1, 2)], [[1.0], [2.0], [1.0], [2.0]]
    bent, straight = ([[0.0, 0, 0], [1, 0, 0], end] for end in ([1.5, 1, 0], [2, 0, 0]))
    found = [
        graph_hashes(plain([8, 6, 7], bonds, edge_attr=kinds, pos=pos))[0]
        for kinds in (single_double, single_double[::-1])
        for pos in (bent, straight)
    ]
    assert len(set(found)) == 4


def test_edge_features_of_one_dimension():
    kinds = np.array([1.0, 2.0, 1.0, 2.0])
    one, same = (
        graph_hashes(plain([8, 6, 7], [(0, 1), (1, 2)], edge_attr=values))
        for values in (kinds, kinds[:, None])
    )
    assert one == same


def test_topology_alone_tells_graphs_apart():
    """As many equal nodes and as many equal edges, arranged in other ways."""
    path, star = [(0, 1), (1, 2), (2, 3)], [(0, 1), (0, 2), (0, 3)]
    relabelled = [(3, 1), (1, 0), (0, 2)]
    one, same, other = (graph_hashes(plain([1] * 4, e)) for e in (path, relabelled, star))
    assert one == same != other


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_lengths_of_any_unit(unit):
    """A mesh in metres is not rounded to nothing."""
    corners = unit * np.array([[0.0, 0], [1, 0], [0, 1]])
    triangle = [(0, 1), (1, 2), (2, 0)]
    one, same, other = (
        graph_hashes(plain([0.0, 0, 0], triangle, pos=pos))
        for pos in (corners, corners[::-1], corners * [1.0, 1.01])
    )
    assert one == same != other


def test_hash_does_not_change_between_versions():
    """So that hashes written down earlier can still be compared."""
    assert hashes([ase.Atoms("CuAu", positions=[[0, 0, 0], [2.5, 0, 0]])]) == ["b0dff75a96ba2001"]


def test_graphs_without_edges():
    atoms = [ase.Atoms("H"), ase.Atoms("He"), ase.Atoms("H2", positions=[[0, 0, 0], [50, 0, 0]])]
    assert len(set(hashes(atoms))) == 3


# Compositions ---------------------------------------------------------------------------------


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


def test_composition_is_written_out():
    atoms = [bulk("Cu"), ase.Atoms("Au6Cu2"), ase.Atoms("CH3CH2OH")]
    for some in atoms:
        some.positions[:, 0] = np.arange(len(some))
    x = columns([atoms_to_graph(some, CUTOFF, None) for some in atoms])
    assert compositions(x) == ["Cu1", "Cu1Au3", "H6C2O1"]


@pytest.mark.parametrize("wrong", [0.5, 0.0, -1.0, 119.0])
def test_no_composition_without_atoms(wrong):
    x = np.array([[6.0], [1.0], [wrong]])
    with pytest.raises(InputError, match=r"graph 1 .* set data.split.by to random"):
        compositions({"x": Column(x, 0, np.array([2, 1]))})


# Real data ------------------------------------------------------------------------------------


@pytest.mark.parametrize("element", ["Si", "Ge"])
def test_mlearn_repeats_structures_across_its_own_sets(shared_data, element):
    """Shear along x, y and z, forward and back: turned copies with the same energy."""
    energies: dict[str, list[float]] = defaultdict(list)
    found = {}
    for part in ("training", "test"):
        entries = json.loads((shared_data / "mlearn" / f"{element}_{part}.json").read_text())
        structures = []
        for entry in entries:
            sites = entry["structure"]["sites"]
            structures.append(
                ase.Atoms(
                    [site["species"][0]["element"] for site in sites],
                    positions=[site["xyz"] for site in sites],
                    cell=entry["structure"]["lattice"]["matrix"],
                    pbc=True,
                )
            )
        found[part] = hashes(structures, 4.0)
        for name, entry, atoms in zip(found[part], entries, structures, strict=True):
            energies[name].append(entry["outputs"]["energy"] / len(atoms))
    assert max(np.ptp(same) for same in energies.values()) < 1e-6
    training, test = found["training"], found["test"]
    assert len(training) - len(set(training)) == 40
    assert len(test) - len(set(test)) == 4
    roles = ["train"] * len(training) + ["test"] * len(test)
    division = divide(together(roles, training + test), "random", 0.1, None, 0)
    assert division.left_out == {"train_duplicate_of_test": 3}
    assert Counter(division.split)[TEST] == 25


def test_snapshots_of_a_trajectory_are_not_the_same(shared_data):
    frames = ase.io.read(shared_data / "acac" / "train_300K.xyz", ":200")
    assert len(set(hashes(frames, 5.0))) == 200


# Dividing -------------------------------------------------------------------------------------


def together(
    role: Sequence[str] | None = None,
    hash: Sequence[str] = (),
    composition: Sequence[str] | None = None,
    group: Sequence[str | None] | None = None,
) -> Structures:
    """Structures, of the training file and without composition or group where none are given."""
    n = len(hash)
    return Structures(
        role or ["train"] * n, list(hash), composition or [""] * n, group or [None] * n
    )


def largest_component(structures: Structures, by_group: bool) -> int:
    """By spreading labels until nothing changes: slow and plain."""
    labels = list(range(len(structures.hash)))
    keys = [structures.hash, structures.group] if by_group else [structures.hash]
    before: list[int] = []
    while labels != before:
        before = list(labels)
        for key in keys:
            least: dict[object, int] = {}
            for value, label in zip(key, labels, strict=True):
                least[value] = min(label, least.get(value, label))
            labels = [least[value] for value in key]
    return max(Counter(labels).values())


def assert_no_leak(values: Sequence[object], splits: Sequence[str]) -> None:
    homes: Mapping[object, set[str]] = defaultdict(set)
    for value, split in zip(values, splits, strict=True):
        if split:
            homes[value].add(split)
    assert all(len(found) == 1 for found in homes.values())


@st.composite
def inputs(draw: st.DrawFn, roles: Sequence[str] = ("train",)) -> Structures:
    """Structures with repeats, in compositions (equal for duplicates) and groups."""
    kinds = draw(st.integers(3, 60))
    n = draw(st.integers(kinds, 120))
    rng = np.random.default_rng(draw(SEEDS))
    kind = np.concatenate([np.arange(kinds), rng.integers(0, kinds, n - kinds)])
    rng.shuffle(kind)
    composition = rng.integers(0, draw(st.integers(1, kinds)), kinds)
    group = rng.integers(0, draw(st.integers(1, n)), n)
    return Structures(
        [roles[i] for i in rng.integers(0, len(roles), n)],
        [f"h{k}" for k in kind],
        [f"c{composition[k]}" for k in kind],
        [f"g{g}" for g in group],
    )


SHARE = st.floats(0.01, 0.4)


@given(n=st.integers(3, 500), val=SHARE, test=st.none() | SHARE, seed=SEEDS)
def test_random_division_of_different_structures(n, val, test, seed):
    """The first of one permutation validate, the next test: that draw is part of the format."""
    given_test = 0 if test else 2
    roles = ["train"] * n + ["test"] * given_test
    structures = together(roles, [str(i) for i in range(n + given_test)])
    n_val, n_test = max(1, round(val * n)), max(1, round(test * n)) if test else 0
    if n_val + n_test >= n:
        with pytest.raises(InputError, match="nothing to train on"):
            divide(structures, "random", val, test, seed)
        return
    order = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,))).permutation(n)
    expected = np.full(n, TRAIN, dtype=object)
    expected[order[:n_val]] = VALIDATION
    expected[order[n_val : n_val + n_test]] = TEST
    division = divide(structures, "random", val, test, seed)
    assert division.split == [*expected, *[TEST] * given_test]
    assert division.left_out == {}
    assert division.duplicates == {TRAIN: 0, VALIDATION: 0, TEST: 0}


@pytest.mark.parametrize("by", ["random", "composition", "group"])
@given(structures=inputs(), val=SHARE, test=SHARE, seed=SEEDS)
def test_divisions_keep_together_what_belongs_together(by, structures, val, test, seed):
    try:
        division = divide(structures, by, val, test, seed)
    except InputError as error:
        assert "data.split" in str(error)
        return
    splits = division.split
    assert set(splits) == {TRAIN, VALIDATION, TEST}
    assert division.left_out == {}
    assert_no_leak(structures.hash, splits)
    if by == "group":
        assert_no_leak(structures.group, splits)
    assert divide(structures, by, val, test, seed) == division
    repeats = len(structures.hash) - len(set(structures.hash))
    assert sum(division.duplicates.values()) == repeats
    n, largest = len(splits), largest_component(structures, by == "group")
    assert abs(splits.count(VALIDATION) - val * n) <= largest + 1
    assert abs(splits.count(TEST) - test * n) <= largest + 1


def test_another_seed_is_another_draw():
    structures = together(hash=[str(i) for i in range(1000)])
    first, second = (divide(structures, "random", 0.5, 0.1, seed).split for seed in (0, 1))
    differing = sum(a != b for a, b in zip(first, second, strict=True))
    assert 400 < differing < 750


@given(pairs=st.integers(0, 20), singles=st.integers(10, 60), seed=SEEDS)
def test_shares_are_met_exactly_where_single_structures_allow(pairs, singles, seed):
    hashes = [f"p{i % pairs}" for i in range(2 * pairs)] + [f"s{i}" for i in range(singles)]
    splits = divide(together(hash=hashes), "random", 0.1, 0.1, seed).split
    size = max(1, round(0.1 * len(hashes)))
    # One odd place may remain where only pairs are left to fill it.
    assert abs(splits.count(VALIDATION) - size) <= 1
    assert abs(splits.count(TEST) - size) <= 1


@given(
    sizes=st.lists(st.integers(1, 40), min_size=3, max_size=40),
    val=st.floats(0.05, 0.4),
    test=st.none() | st.floats(0.05, 0.4),
    seed=SEEDS,
)
def test_each_composition_is_divided_in_the_same_shares(sizes, val, test, seed):
    names = [f"c{k}" for k, size in enumerate(sizes) for _ in range(size)]
    n = len(names)
    roles = ["train"] * n + ["test"] * (test is None)
    hashes = [str(i) for i in range(len(roles))]
    structures = together(roles, hashes, [*names, *["other"] * (test is None)])
    shares = {TRAIN: 1 - val - (test or 0), VALIDATION: val, TEST: test or 0}
    if round(val * n) + round((test or 0) * n) >= n:
        return
    splits = divide(structures, "composition", val, test, seed).split[:n]
    found = Counter(zip(names, splits, strict=True))
    filled = min(splits.count(split) for split, share in shares.items() if share) == 1
    for split, share in shares.items():
        assert abs(splits.count(split) - share * n) < 2
        for k, size in enumerate(sizes):
            # A split that would be empty takes one structure from wherever there are several.
            assert abs(found[f"c{k}", split] - share * size) < 1 + 1e-6 + filled


@given(structures=inputs(roles=("train", "val", "test")), seed=SEEDS)
@pytest.mark.parametrize("by", ["random", "composition", "group"])
def test_given_sets_keep_theirs(by, structures, seed):
    try:
        division = divide(structures, by, None, None, seed)
    except InputError as error:
        assert "is left to train on" in str(error) or "there is no" in str(error)
        return
    homes = {"train": TRAIN, "val": VALIDATION, "test": TEST}
    for role, split in zip(structures.role, division.split, strict=True):
        assert split == homes[role] or (split == "" and role != "test")
    assert_no_leak(structures.hash, division.split)
    if by == "group":
        assert_no_leak(structures.group, division.split)
    assert sum(division.left_out.values()) == division.split.count("")
    # Nothing is left out without need.
    for i, split in enumerate(division.split):
        if split == "":
            kept = [j for j, other in enumerate(division.split) if other and j != i]
            assert any(
                structures.hash[j] == structures.hash[i]
                or (by == "group" and structures.group[j] == structures.group[i])
                for j in kept
                if structures.role[j] != structures.role[i]
            )


def test_what_is_left_out_is_counted_by_reason():
    structures = together(
        role=["train", "train", "train", "train", "train", "val", "val", "val", "test"],
        hash=list("abcdgbeea"),
        group=list("123495453"),
    )
    division = divide(structures, "random", None, None, 0)
    assert division.split == ["", "", *[TRAIN] * 3, *[VALIDATION] * 3, TEST]
    assert division.left_out == {"train_duplicate_of_test": 1, "train_duplicate_of_val": 1}
    assert division.duplicates == {TRAIN: 0, VALIDATION: 1, TEST: 0}
    by_group = divide(structures, "group", None, None, 0)
    assert by_group.split == ["", "", "", "", TRAIN, *[VALIDATION] * 3, TEST]
    assert by_group.left_out == {
        "train_duplicate_of_test": 1,
        "train_duplicate_of_val": 1,
        "train_group_in_test": 1,
        "train_group_in_val": 1,
    }


def test_what_validation_shares_with_the_test_leaves_validation():
    structures = together(["train", "train", "val", "val", "test"], ["a", "b", "c", "t", "t"])
    division = divide(structures, "random", None, None, 0)
    assert division.split == [TRAIN, TRAIN, VALIDATION, "", TEST]
    assert division.left_out == {"val_duplicate_of_test": 1}


@pytest.mark.parametrize("by", ["random", "composition"])
def test_duplicates_are_set_aside_as_often_as_others(by):
    hashes = [f"p{i // 2}" for i in range(1000)] + [f"s{i}" for i in range(1000)]
    division = divide(together(hash=hashes), by, 0.2, 0.2, 0)
    for name, share in ((VALIDATION, 0.2), (TEST, 0.2)):
        assert abs(division.duplicates[name] - share * 500) < 50


def test_a_giant_group_trains():
    groups = ["big"] * 90 + ["small", "other"] * 5
    structures = together(hash=[str(i) for i in range(100)], group=groups)
    splits = divide(structures, "group", 0.1, 0.1, 0).split
    assert splits[:90] == [TRAIN] * 90
    assert {splits[90], splits[91]} == {VALIDATION, TEST}


@pytest.mark.parametrize(("val", "size"), [(0.1, 10), (0.14, 10), (0.18, 20), (0.02, 10)])
def test_whole_groups_come_as_near_to_the_share_as_they_can(val, size):
    structures = together(hash=[str(i) for i in range(100)], group=list("0123456789") * 10)
    splits = divide(structures, "group", val, 0.1, 0).split
    assert (splits.count(VALIDATION), splits.count(TEST)) == (size, 10)


def test_duplicates_join_groups():
    """Two groups with a structure in common are one."""
    structures = together(hash="abbcde", group=list("112345"))
    for seed in range(20):
        splits = divide(structures, "group", 0.2, 0.2, seed).split
        assert len(set(splits[:3])) == 1


@pytest.mark.parametrize(
    ("structures", "by", "shares", "says"),
    [
        (
            together(hash=[str(i) for i in range(100)], group=["a"] * 99 + ["b"]),
            "group",
            (0.1, 0.1),
            "is 2, and the largest has 99 structures; give finer groups",
        ),
        (together(hash=["a"] * 9 + ["b"]), "random", (0.1, 0.1), "give more structures that diff"),
        (together(hash="abc"), "random", (0.5, 0.4), "3 structures, 2 for validation, 1 for"),
        (together(hash="abc", group=["1", None, "2"]), "group", (0.1, 0.1), "structure 1 has no"),
        (together(hash="abcdef"), "random", (0.1, None), "there is no test set"),
        (together(hash="abcdef"), "random", (None, 0.1), "there is no val set"),
        (
            together(["train", "train", "test"], "aaa"),
            "random",
            (0.1, None),
            r"all 2 structures .* left out \(train_duplicate_of_test: 2\)",
        ),
        (
            together(["train", "val", "test"], "abb"),
            "random",
            (None, None),
            r"there is no val set: .* \(val_duplicate_of_test: 1\)",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(structures, by, shares, says):
    with pytest.raises(InputError, match=says) as error:
        divide(structures, by, *shares, seed=0)
    assert "\n" not in str(error.value)
