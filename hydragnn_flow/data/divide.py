"""Division of structures into splits, without leaks between them: duplicates stay together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from ase.data import chemical_symbols
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hydragnn_flow.config.sources import CALIBRATION, SPLIT_OF_ROLE, TEST, TRAIN, VALIDATION, Role
from hydragnn_flow.data.columns import Column, edge_lengths, global_edges
from hydragnn_flow.errors import InputError

By = Literal["random", "composition", "group"]


@dataclass(frozen=True)
class Structures:
    """Properties of structures that decide the split of each, one list for each property.

    A split is the training, validation, calibration or test set. All lists are in the order of the
    input.
    """

    role: Sequence[str]
    """Role of each structure's file: ``train``, ``val``, ``calibration`` or ``test``."""
    hash: Sequence[str]
    """Hash of each structure, equal for duplicates."""
    composition: Sequence[str]
    """Composition of each structure, read only if the division is by composition."""
    group: Sequence[str | None]
    """Group of each structure, read only if the division is by group."""


@dataclass(frozen=True)
class Division:
    """Result of :func:`divide`: the split of each structure, and counts of those left out."""

    split: list[str]
    """Split of each structure: ``trainset``, ``valset``, …; an empty string if it is left out."""
    left_out: dict[str, int]
    """Number of structures left out, by reason: ``{role}_duplicate_of_{role}`` or
    ``{role}_group_in_{role}``. The first role is that of the structure left out, the second that of
    the file with its duplicate or group. Reasons that do not occur are missing."""
    duplicates: dict[str, int]
    """Number of structures, by split, that repeat another structure of the same split."""


@dataclass(frozen=True)
class _Component:
    """Indices of structures that must be in the same split, and their composition."""

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
    """Divide structures into training, validation, calibration and test sets without overlap.

    Structures of equal hash go to the same split; if ``by`` is ``group``, so do structures of one
    group. The role of a structure is the set that its file is meant for. If a structure (or its
    group) occurs in files of several roles, it stays in the first of test, calibration, validation
    and training, and is left out of the others.

    Parameters
    ----------
    structures
        All structures of the input.
    by
        Way of drawing structures. ``random``: structures at random. ``composition``: at random,
        with the same fractions of each composition as nearly as whole structures allow. ``group``:
        whole groups at random.
    val, test
        Fraction of the training file to set aside as validation and as test set, at least one
        structure each; None if the input has that set.
    seed
        Seed that, with the order of the structures, determines the draw.
    calibration
        Fraction of the training file to set aside for the weights and error bars of ensembles; None
        if there is no calibration set or the input has it. With ``random`` and without duplicates,
        the validation and test sets do not depend on it.

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
    """Return the indices of structures to keep, by role, and the number left out, by reason."""
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
    """Return sets of structures that must stay together, ordered by their first structure.

    ``pool`` has the indices of the structures to consider.
    """
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
    """Return a code for each value: 0 for the first distinct value, 1 for the second, …"""
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
    """Return a draw that fills each split in ``sizes`` with the first components that fit.

    ``sizes`` has the number of structures to set aside, by split; the rest is for training.
    """
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
    """Return a draw with the same fractions of each composition.

    Each split first gets the integer part of its share of a composition. The remainder, often all
    structures of a rare composition, goes to the split with the largest deficit over all
    compositions so far.
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
    """Move one component to each empty split of ``draw``, in place.

    The component comes from a split that has several, and its number of structures is the nearest
    to the number in ``sizes``.
    """
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


Words = NDArray[np.uint64]


_ATOM, _EDGE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)


_HEAVIEST = len(chemical_symbols) - 1


def graph_hashes(columns: Mapping[str, Column]) -> list[str]:
    """Return a hash of all that a network sees of each graph, equal for duplicates.

    A network sees the node features ``x``, and the edges with their features and length. Each atom
    has a 64-bit word, which three rounds update with the words of its neighbours and of the edges
    to them; a graph's hash is the sum of its atoms' words, mixed. The hash depends neither on the
    order of atoms and edges nor on the other graphs in ``columns``. On position, orientation and
    the choice of periodic images the hash depends only as far as edge features do.

    Structures with the same hash are the same to a network with three message-passing layers that
    read lengths, and count as duplicates: this includes mirror images, and atoms out of each
    other's reach, wherever they are. A supercell differs from its unit cell. Labels do not count.

    The length of an edge is taken from ``edge_attr`` if one of its columns holds it on all edges of
    the graph, otherwise from ``pos`` and ``edge_shifts``; without ``pos`` there are no lengths.

    Features of edges and lengths are rounded to 12 significant binary digits, whatever their unit:
    lengths of 2 to 4 Å to 1e-3 Å, lengths of 4 to 8 Å to 2e-3 Å. Node features count as float32,
    unrounded. Rounding has boundaries: two copies whose lengths differ by a noise of ``d`` Å get
    different hashes with a probability of about ``d / 1e-3`` for each different length. If
    ``edge_attr`` comes from positions in float64 (``d`` near 1e-15) no copy is missed. Lengths from
    float32 positions (``d`` near 1e-6) find copies that are reordered, but only some of those that
    are rotated or wrapped.

    Parameters
    ----------
    columns
        Columns ``x`` and ``edge_index``; ``edge_attr``, ``pos`` and ``edge_shifts`` if the graphs
        have them. Graphs to be compared must have the same keys.

    Returns
    -------
    list of str
        Hash of each graph, 16 hexadecimal digits. Among ``n`` different graphs two have the same
        hash by chance with a probability of about ``n**2 / 2**65``: 3e-8 for a million. ``2**k``
        equal atoms in every graph make this probability ``2**k`` times as large.
    """
    x = columns["x"]
    senders, receivers = global_edges(columns)
    atoms = np.full(len(x.values), _ATOM)
    # Adding zero turns -0 into 0.
    for feature in (x.values.astype(np.float32) + np.float32(0)).T:
        _absorb(atoms, feature.view(np.uint32))
    links = _edge_words(columns, senders, receivers)
    for _ in range(3):
        messages = _mixed(atoms[senders] + links)
        received = np.zeros_like(atoms)
        np.add.at(received, receivers, messages)
        atoms = _mixed(atoms + received)
    return [f"{word:016x}" for word in _mixed(_per_graph(atoms, x.counts)).tolist()]


def compositions(columns: Mapping[str, Column]) -> list[str]:
    """Return the chemical formula of each graph, reduced to the smallest whole ratio.

    Parameters
    ----------
    columns
        Column ``x``, whose first feature is the atomic number.

    Returns
    -------
    list of str
        Formula of each graph, such as ``"Cu1Au3"``: elements in order of atomic number, with their
        counts in the smallest whole ratio.

    Raises
    ------
    InputError
        If ``x`` does not begin with atomic numbers.
    """
    x = columns["x"]
    numbers = x.values[:, 0]
    graph = np.repeat(np.arange(len(x.counts)), x.counts)
    wrong = (numbers < 1) | (numbers > _HEAVIEST) | (numbers != np.floor(numbers))
    if wrong.any():
        first = int(wrong.argmax())
        raise InputError(
            f"data.split.by: graph {graph[first]} begins its node features x with "
            f"{numbers[first]:g}, which is no atomic number, so it has no composition; "
            "set data.split.by to random"
        )
    keys, amounts = np.unique(
        graph * (_HEAVIEST + 1) + numbers.astype(np.int64), return_counts=True
    )
    graphs, elements = np.divmod(keys, _HEAVIEST + 1)
    kinds = np.bincount(graphs, minlength=len(x.counts))
    amounts //= np.repeat(np.gcd.reduceat(amounts, np.cumsum(kinds) - kinds), kinds)
    terms = [
        f"{chemical_symbols[element]}{amount}"
        for element, amount in zip(elements.tolist(), amounts.tolist(), strict=True)
    ]
    ends = np.cumsum(kinds).tolist()
    return ["".join(terms[end - n : end]) for n, end in zip(kinds.tolist(), ends, strict=True)]


def _edge_words(
    columns: Mapping[str, Column], senders: NDArray[np.int64], receivers: NDArray[np.int64]
) -> Words:
    """Return a 64-bit hash of the features and the length of each edge, [n_edges].

    ``senders`` and ``receivers`` are indices into the atoms of all graphs, [n_edges].
    """
    words = np.full(len(senders), _EDGE)
    lengths = edge_lengths(columns, senders, receivers)
    if "edge_attr" in columns:
        features = columns["edge_attr"].values
        features = features[:, None] if features.ndim == 1 else features
        edges = columns["edge_index"].counts
        # A feature within a thousandth of the length is the length: wider than the rounding of
        # float32 positions a few kÅ from the origin, narrower than features of another meaning.
        apart = np.abs(features - lengths[:, None]) > 1e-3 * lengths[:, None]
        known = (_per_graph(apart, edges) == 0).any(axis=1)
        lengths[np.repeat(known, edges)] = 0.0
        for feature in features.T:
            _absorb(words, _rounded(feature))
    _absorb(words, _rounded(lengths))
    return words


def _rounded(values: NDArray[Any]) -> NDArray[np.uint32]:
    """Return each value, rounded to 12 significant binary digits, as an integer code.

    The boundaries between rounded values are numbers of 13 significant binary digits. Numbers of a
    few decimal digits, such as the lengths of ideal crystals, do not lie on them.
    """
    bits = (values.astype(np.float32) + np.float32(0)).view(np.uint32)
    half = np.uint32(1 << 11)
    return (bits + half) >> np.uint32(12)  # of the 24 of a float32


def _absorb(words: Words, values: NDArray[np.uint32]) -> None:
    """Mix one more value into each word, in place."""
    words ^= values
    words[:] = _mixed(words)


def _mixed(words: Words) -> Words:
    """Return words whose 64 bits each depend on all bits of the given word.

    This is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014,
    doi:10.1145/2660193.2660195, with Stafford's constants). It is a bijection, and sums of its
    results are as good as sums of random words.
    """
    words = words ^ (words >> np.uint64(30))
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def _per_graph(rows: NDArray[Any], counts: NDArray[np.int64]) -> Words:
    """Return the sum of each graph's rows modulo 2**64, [n_graphs, ...].

    ``counts`` has the number of rows of each graph. Differences of cumulative sums are exact
    modulo 2**64.
    """
    sums = np.zeros((len(rows) + 1, *rows.shape[1:]), dtype=np.uint64)
    np.cumsum(rows, axis=0, dtype=np.uint64, out=sums[1:])
    ends = np.cumsum(counts)
    per_graph: Words = sums[ends] - sums[ends - counts]
    return per_graph
