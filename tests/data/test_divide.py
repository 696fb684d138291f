"""Structures are divided so that no two splits hold the same one."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.config.sources import CALIBRATION, TEST, TRAIN, VALIDATION
from hydragnn_flow.data.divide import Structures, divide
from hydragnn_flow.data.reading.inspection import left_out
from hydragnn_flow.errors import InputError

SEEDS = st.integers(0, 2**32)


def together(role=None, hash=(), composition=None, group=None):
    """Structures, of the training file and without composition or group where none are given."""
    n = len(hash)
    return Structures(
        role or ["train"] * n, list(hash), composition or [""] * n, group or [None] * n
    )


def largest_component(structures, by_group):
    """By spreading labels until nothing changes: slow and plain."""
    labels, before = list(range(len(structures.hash))), []
    while labels != before:
        before = labels
        for key in [structures.hash, structures.group] if by_group else [structures.hash]:
            least: dict[object, int] = {}
            for value, label in zip(key, labels, strict=True):
                least[value] = min(label, least.get(value, label))
            labels = [least[value] for value in key]
    return max(Counter(labels).values())


def assert_no_leak(values, splits):
    pairs = {(value, split) for value, split in zip(values, splits, strict=True) if split}
    assert len(pairs) == len({value for value, _ in pairs})


@st.composite
def inputs(draw, roles=("train",)):
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
OR_NONE = st.none() | SHARE


@given(n=st.integers(3, 500), val=SHARE, others=st.tuples(OR_NONE, OR_NONE), seed=SEEDS)
def test_random_division_of_different_structures(n, val, others, seed):
    """The first of one permutation validate, the next test, and only then some calibrate.

    That draw is part of the format.
    """
    test, calibration = others
    given_test = 0 if test else 2
    roles = ["train"] * n + ["test"] * given_test
    structures = together(roles, [str(i) for i in range(n + given_test)])
    sizes = [share and max(1, round(share * n)) for share in (val, test, calibration)]
    if sum(filter(None, sizes)) >= n:
        with pytest.raises(InputError, match="nothing to train on"):
            divide(structures, "random", val, test, seed, calibration)
        return
    order = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,))).permutation(n)
    expected = np.full(n, TRAIN, dtype=object)
    for name, size in zip((VALIDATION, TEST, CALIBRATION), sizes, strict=True):
        expected[order[: size or 0]] = name
        order = order[size or 0 :]
    division = divide(structures, "random", val, test, seed, calibration)
    assert division.split == [*expected, *[TEST] * given_test]
    assert division.left_out == {}
    assert division.duplicates == dict.fromkeys(division.split, 0)


@pytest.mark.parametrize("by", ["random", "composition", "group"])
@given(structures=inputs(), val=SHARE, test=SHARE, calibration=OR_NONE, seed=SEEDS)
def test_divisions_keep_together_what_belongs_together(
    by, structures, val, test, calibration, seed
):
    try:
        division = divide(structures, by, val, test, seed, calibration)
    except InputError as error:
        assert "data.split" in str(error)
        return
    splits = division.split
    assert set(splits) == {TRAIN, VALIDATION, TEST, *([CALIBRATION] if calibration else [])}
    assert division.left_out == {}
    assert_no_leak(structures.hash, splits)
    if by == "group":
        assert_no_leak(structures.group, splits)
    assert divide(structures, by, val, test, seed, calibration) == division
    repeats = len(structures.hash) - len(set(structures.hash))
    assert sum(division.duplicates.values()) == repeats
    n, largest = len(splits), largest_component(structures, by == "group")
    for name, share in ((VALIDATION, val), (TEST, test), (CALIBRATION, calibration or 0)):
        assert abs(splits.count(name) - share * n) <= largest + 1


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
    test=OR_NONE,
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
            assert any(
                structures.hash[j] == structures.hash[i]
                or (by == "group" and structures.group[j] == structures.group[i])
                for j, home in enumerate(division.split)
                if home and structures.role[j] != structures.role[i]
            )


def test_what_is_left_out_is_counted_by_reason():
    roles = ["train"] * 5 + ["val"] * 3 + ["test"]
    structures = together(roles, "abcdgbeea", group=list("123495453"))
    division = divide(structures, "random", None, None, 0)
    assert division.split == ["", "", *[TRAIN] * 3, *[VALIDATION] * 3, TEST]
    assert division.left_out == {"train_duplicate_of_test": 1, "train_duplicate_of_val": 1}
    assert division.duplicates == {TRAIN: 0, VALIDATION: 1, TEST: 0}
    by_group = divide(structures, "group", None, None, 0)
    assert by_group.split == ["", "", "", "", TRAIN, *[VALIDATION] * 3, TEST]
    of_groups = {"train_group_in_test": 1, "train_group_in_val": 1}
    assert by_group.left_out == division.left_out | of_groups


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


@pytest.mark.parametrize(
    ("structures", "shares", "says"),
    [
        (together(hash="abcd", group=list("xxxy")), (0.1, 0.1), "is 2, and the largest has 3"),
        (together(hash="abc", group=["1", None, "2"]), (0.1, 0.1), "structure 1 has no"),
        (together(hash=["a"] * 9 + ["b"]), (0.1, 0.1), "give more structures that differ"),
        (together(hash="abc"), (0.5, 0.4), "3 structures, 2 for valset, 1 for testset"),
        (together(hash="abcdef"), (0.1, None), "there is no test set"),
        (together(hash="abcdef"), (None, 0.1), "there is no val set"),
        (together(["train", "train", "test"], "aaa"), (0.1, None), "all 2 .*of_test: 2"),
        (together(["train", "val", "test"], "abb"), (None, None), "no val set: .*test: 1"),
        (
            together(["train", "train", "train", "calibration", "test"], "abcdd"),
            (0.3, None),
            "there is no calibration set",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(structures, shares, says):
    with pytest.raises(InputError, match=says) as error:
        divide(structures, "group" if any(structures.group) else "random", *shares, seed=0)
    assert "\n" not in str(error.value)


def test_a_set_given_for_calibration_is_not_trained_on():
    structures = together(["train"] * 6 + ["calibration"] * 2 + ["test"], "abcdefaxx")
    division = divide(structures, "random", 0.2, None, 0)
    assert division.split[0] == division.split[7] == ""
    assert division.split[6:] == [CALIBRATION, "", TEST]
    counts = {"train_duplicate_of_calibration": 1, "calibration_duplicate_of_test": 1}
    assert division.left_out == counts
    kept = SimpleNamespace(provenance={"division": {"left_out": division.left_out}})
    assert "to calibrate with left out" in "".join(left_out(SimpleNamespace(manifest=kept)))
