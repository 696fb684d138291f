"""Hashes and compositions of graphs, by which structures are divided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from ase.data import chemical_symbols
from numpy.typing import NDArray

from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    from hydragnn_flow.data.columns import Column

Words = NDArray[np.uint64]

_ATOM, _EDGE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_HEAVIEST = len(chemical_symbols) - 1


def graph_hashes(columns: Mapping[str, Column]) -> list[str]:
    """Hash all that a network sees of each graph.

    That is the node features ``x``, and the edges with their features and length. In three rounds
    each atom's word is updated with those of its neighbours and of the edges between; a graph's
    hash is the sum of its atoms' words, mixed. It depends neither on the order of atoms and edges
    nor on the index of the graph in the block, and on position, orientation and the choice of
    periodic images only as far as edge features do. Structures with the same hash are the same to a
    network with three message passing steps along lengths, and count as duplicates: this includes
    mirror images, and atoms out of each other's reach, wherever they are. A supercell differs from
    its unit cell. Labels do not count.

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
        equal atoms in every graph make it ``2**k`` times as large.
    """
    x, edges = columns["x"], columns["edge_index"]
    offsets = np.repeat(x.starts(), edges.counts)
    senders, receivers = edges.values[0] + offsets, edges.values[1] + offsets

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
    """Return the composition of each graph of atoms.

    Parameters
    ----------
    columns
        Column ``x`` with the atomic number first.

    Returns
    -------
    list of str
        Elements by atomic number, each with its smallest whole ratio: ``"Cu1Au3"``.

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
    """Return one word for the features and the length of each edge, [n_edges]."""
    words = np.full(len(senders), _EDGE)
    lengths = _lengths(columns, senders, receivers)
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


def _lengths(
    columns: Mapping[str, Column], senders: NDArray[np.int64], receivers: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the distance between the ends of each edge, [n_edges]; zero without positions."""
    squares = np.zeros(len(senders))
    if "pos" in columns:
        for axis in range(columns["pos"].values.shape[1]):
            position = columns["pos"].values[:, axis].astype(np.float64)
            vector = position[receivers] - position[senders]
            if "edge_shifts" in columns:
                vector += columns["edge_shifts"].values[:, axis]
            squares += vector**2
    return np.sqrt(squares)


def _rounded(values: NDArray[Any]) -> NDArray[np.uint32]:
    """Return the leading 12 binary digits of each value as an integer.

    The boundaries between rounded values are at 13 binary digits, where no number of a few decimal
    digits is: the lengths of ideal crystals stay clear of them.
    """
    bits = (values.astype(np.float32) + np.float32(0)).view(np.uint32)
    half = np.uint32(1 << 11)
    return (bits + half) >> np.uint32(12)  # of the 24 of a float32


def _absorb(words: Words, values: NDArray[np.uint32]) -> None:
    """Mix one more value into each word, in place."""
    words ^= values
    words[:] = _mixed(words)


def _mixed(words: Words) -> Words:
    """Spread each word over all its 64 bits.

    The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, doi:10.1145/2660193.2660195,
    with Stafford's constants), a bijection whose sums are as good as sums of random words.
    """
    words = words ^ (words >> np.uint64(30))
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def _per_graph(rows: NDArray[Any], counts: NDArray[np.int64]) -> Words:
    """Sum the rows of each graph modulo 2**64, [n_graphs, ...]; differences of sums stay exact."""
    sums = np.zeros((len(rows) + 1, *rows.shape[1:]), dtype=np.uint64)
    np.cumsum(rows, axis=0, dtype=np.uint64, out=sums[1:])
    ends = np.cumsum(counts)
    per_graph: Words = sums[ends] - sums[ends - counts]
    return per_graph
