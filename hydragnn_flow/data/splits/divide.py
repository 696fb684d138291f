"""Division of structures into splits, without leaks between them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hydragnn_flow.config.sources import Role
from hydragnn_flow.data.splits import CALIBRATION, SPLIT_OF_ROLE, TEST, TRAIN, VALIDATION
from hydragnn_flow.errors import InputError

By = Literal["random", "composition", "group"]


@dataclass(frozen=True)
class Structures:
    """Properties of structures that decide their split, as parallel lists in input order."""

    role: Sequence[str]
    """Role of the file of each: ``train``, ``val``, ``calibration`` or ``test``."""
    hash: Sequence[str]
    """Hash of each structure, equal for duplicates."""
    composition: Sequence[str]
    """Composition of each, read only if the division is by composition."""
    group: Sequence[str | None]
    """Group of each, read only if the division is by group."""


@dataclass(frozen=True)
class Division:
    """Split of each structure, and the structures left out."""

    split: list[str]
    """Split of each structure: ``trainset``, ``valset``, …, or empty if it is left out."""
    left_out: dict[str, int]
    """Number of structures left out by reason: ``{role}_duplicate_of_{role}`` or
    ``{role}_group_in_{role}``, where the first role is the structure's and the second that of the
    set with its duplicate or group. Reasons that do not occur are missing."""
    duplicates: dict[str, int]
    """Number of structures of each split that repeat another one in it."""


@dataclass(frozen=True)
class _Component:
    """Structures that must be in one split."""

    members: list[int]
    composition: str

    def __len__(self) -> int:
        return len(self.members)


_Draw = dict[str, list[_Component]]


def divide(
    structures: Structures,
    by: By,
    val: float | None,
    test: float | None,
    seed: int,
    calibration: float | None = None,
) -> Division:
    """Divide structures so that no two splits hold the same one.

    Structures of equal hash stay together; by group, so do structures of one group. Given sets come
    first: a structure of the training file that a given set repeats (or, by group, whose group
    occurs there) is left out, as is one of the given validation set that the given test set
    repeats.

    Parameters
    ----------
    structures
        All structures of the input.
    by
        Way of drawing. ``random``: at random. ``composition``: at random, of each composition the
        same fractions as nearly as whole structures allow. ``group``: whole groups at random.
    val, test
        Fractions of the training file to set aside, at least one structure each; None if the input
        has such a set.
    seed
        Seed that, with the order of the structures, determines the draw.
    calibration
        Fraction for calibration. The validation and test sets do not depend on it.

    Raises
    ------
    InputError
        If a split would be empty, or a structure has no group to divide by.
    """
    if by == "group" and None in structures.group:
        raise InputError(
            f"data.split.by is group, but structure {structures.group.index(None)} has no group; "
            "give every structure one or set data.split.by to random"
        )
    kept, left_out = _without_repeats(structures, by == "group")
    pool = kept.pop("train")
    if not pool:
        raise InputError(
            f"nothing is left to train on: all {structures.role.count('train')} structures of the "
            f"training file are left out ({_listed(left_out)}); give another file"
        )
    shares = ((VALIDATION, val), (TEST, test), (CALIBRATION, calibration))
    fractions = {name: share for name, share in shares if share is not None}
    components = _components(structures, pool, by == "group")
    split = [""] * len(structures.hash)
    for name, drawn in _draw(components, fractions, by, seed).items():
        for component in drawn:
            for i in component.members:
                split[i] = name
    for role, members in kept.items():
        for i in members:
            split[i] = SPLIT_OF_ROLE[role]
        needed = role != "calibration" or role in structures.role
        if needed and SPLIT_OF_ROLE[role] not in split:
            raise InputError(
                f"there is no {role} set: data.split.{role} has no fraction, and of "
                f"{structures.role.count(role)} structures given, {len(members)} are left "
                f"({_listed(left_out)}); give data.split.{role} a fraction or another file"
            )
    return Division(split, left_out, _duplicates(structures.hash, split))


def _without_repeats(
    structures: Structures, by_group: bool
) -> tuple[dict[Role, list[int]], dict[str, int]]:
    """Return the structures to keep of each role, and the numbers left out by reason."""
    marks: dict[str, Sequence[Hashable]] = {"duplicate_of": structures.hash}
    if by_group:
        marks["group_in"] = structures.group
    of_role: dict[str, list[int]] = {role: [] for role in SPLIT_OF_ROLE}
    for i, role in enumerate(structures.role):
        of_role[role].append(i)
    kept: dict[Role, list[int]] = {}
    taken: dict[tuple[str, str], set[Hashable]] = {}
    left_out: Counter[str] = Counter()
    # The test set is never cut, so that results are comparable with others on the same set.
    last_to_first: tuple[Role, ...] = ("test", "calibration", "val", "train")
    for role in last_to_first:
        kept[role] = []
        for i in of_role[role]:
            for (mark, other), values in taken.items():
                if marks[mark][i] in values:
                    left_out[f"{role}_{mark}_{other}"] += 1
                    break
            else:
                kept[role].append(i)
        for mark, value in marks.items():
            taken[mark, role] = {value[i] for i in kept[role]}
    return kept, dict(left_out)


def _components(structures: Structures, pool: list[int], by_group: bool) -> list[_Component]:
    """Return sets of structures that must stay together, ordered by their first structure."""
    labels = _numbered(structures.hash[i] for i in pool)
    if by_group:
        groups = _numbered(structures.group[i] for i in pool)
        n = len(pool)
        # Hashes and groups are the nodes, each structure a link between its own two.
        links = coo_array((np.ones(n), (labels, groups + n)), shape=(2 * n, 2 * n))
        _, component_of_node = connected_components(links, directed=False)
        labels = _numbered(component_of_node[labels].tolist())
    members: list[list[int]] = [[] for _ in range(int(labels.max()) + 1)]
    for i, label in zip(pool, labels.tolist(), strict=True):
        members[label].append(i)
    return [_Component(some, structures.composition[some[0]]) for some in members]


def _numbered(values: Iterable[Hashable]) -> NDArray[np.int64]:
    """Number different values in the order in which they first occur."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values])


def _draw(components: list[_Component], fractions: Mapping[str, float], by: By, seed: int) -> _Draw:
    n = sum(map(len, components))
    sizes = {name: max(1, round(fraction * n)) for name, fraction in fractions.items()}
    if sum(sizes.values()) >= n:
        raise InputError(
            f"data.split leaves nothing to train on: {n} structures, "
            f"{', '.join(f'{size} for {name}' for name, size in sizes.items())}; give more "
            "structures or smaller fractions"
        )
    if len(components) <= len(fractions):
        raise InputError(
            f"data.split.by: {by} cannot fill {len(fractions) + 1} splits from {n} structures, as "
            f"the number of sets that must stay together is {len(components)}, and the largest has "
            f"{max(map(len, components))} structures; "
            + ("give finer groups" if by == "group" else "give more structures that differ")
        )
    # A separate random stream: generated structures draw from other children of this seed.
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    shuffled = [components[i] for i in rng.permutation(len(components)).tolist()]
    if by == "composition":
        draw = _of_each_composition(shuffled, fractions)
    else:
        draw = _at_random(shuffled, sizes)
    _fill_empty(draw, {TRAIN: n - sum(sizes.values()), **sizes})
    return draw


def _at_random(components: list[_Component], sizes: Mapping[str, int]) -> _Draw:
    """Fill the splits to set aside with the first components that fit; the rest is for training."""
    draw: _Draw = {name: [] for name in (TRAIN, *sizes)}
    room = dict(sizes)
    for component in components:
        name = next((name for name in room if len(component) <= room[name]), None)
        if name is not None:
            room[name] -= len(component)
        draw[name or TRAIN].append(component)
    for name, missing in room.items():
        nearest = min(draw[TRAIN], key=lambda component: abs(len(component) - missing))
        if len(draw[TRAIN]) > 1 and abs(len(nearest) - missing) < missing:
            _move(nearest, draw[TRAIN], draw[name])
    return draw


def _of_each_composition(components: list[_Component], fractions: Mapping[str, float]) -> _Draw:
    """Divide each composition in the same fractions.

    Each split first gets the integer share of a composition. The remainder, often all structures of
    a rare composition, goes to the split that lacks most over all compositions so far.
    """
    fractions = {TRAIN: 1.0 - sum(fractions.values()), **fractions}
    draw: _Draw = {name: [] for name in fractions}
    strata = defaultdict(list)
    for component in components:
        strata[component.composition].append(component)
    missing = dict.fromkeys(fractions, 0.0)
    for stratum in strata.values():
        n = sum(map(len, stratum))
        due = {name: fraction * n for name, fraction in fractions.items()}
        missing = {name: missing[name] + due[name] for name in fractions}
        for component in stratum:
            # Fractions times sizes carry the rounding of floating-point numbers.
            whole = [name for name in due if due[name] >= len(component) - 1e-9]
            name = max(whole or [name for name in due if due[name] > 1e-9], key=missing.__getitem__)
            due[name] -= len(component)
            missing[name] -= len(component)
            draw[name].append(component)
    return draw


def _fill_empty(draw: _Draw, sizes: Mapping[str, int]) -> None:
    """Give an empty split the component nearest its size from a split that has several."""
    for name, size in sizes.items():
        if not draw[name]:
            donor, component = min(
                ((donor, some) for donor in draw.values() if len(donor) > 1 for some in donor),
                key=lambda pair: abs(len(pair[1]) - size),
            )
            _move(component, donor, draw[name])


def _move(component: _Component, source: list[_Component], target: list[_Component]) -> None:
    source.remove(component)
    target.append(component)


def _duplicates(hashes: Sequence[str], split: Sequence[str]) -> dict[str, int]:
    different = Counter(name for name, _ in set(zip(split, hashes, strict=True)))
    sizes = Counter(split)
    return {name: sizes[name] - different[name] for name in SPLIT_OF_ROLE.values() if sizes[name]}


def _listed(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{reason}: {n}" for reason, n in left_out.items()) or "none left out"
