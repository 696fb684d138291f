"""Structures whose geometry or labels are hardly right: found among all, named, told of.

A task surveys its structures, a few numbers of each; the driver of the preparation judges all of
them together, on scales that a tenth of wrong ones cannot change.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols, covalent_radii
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hydragnn_flow.config.sources import BRANCH
from hydragnn_flow.data.columns import Column
from hydragnn_flow.data.store.manifest import ENERGY, GRAPH_ATTR, Target
from hydragnn_flow.data.store.statistics import are_isolated, atomic_numbers, target_array
from hydragnn_flow.errors import InputError

ORIGINS = "origins.json"
"""Name of the file in a task's directory with the file and number of each of its structures."""

_NEAREST, _FARTHEST = 0.5, 1.5
"""Range of the distance between nearest atoms [sum of their covalent radii]: of any structure, and
of the median one. In Bohr it is 1.6 to 2.2."""
_NOBLE_GASES = (2, 10, 18, 36, 54, 86)
_FEWEST = 10
"""Smallest number of labels that are judged by one another."""
_FAR = 6.0
"""Deviation of a suspicious label, as a multiple of the one that 90 % of all stay within. Of a
normal distribution it is ten standard deviations."""
_GAP = 2.0
"""Ratio of the smallest suspicious deviation to the next smaller one: a long tail has no gaps."""
_UNHARMED = {"eV": 0.1, "eV/atom": 0.1, "eV/Å": 5.0}
"""Deviation of a label that is never suspicious, by its unit."""
_SAME = 0.1
"""Difference of labels of copies, as a multiple of the same deviation, that is still the same."""
_NAMED = 5
_PRESSURE = re.compile(r"eV\s*/\s*(Å|A|Ang|Angstrom)\s*(\^|\*\*)?\s*[3³]")


def survey(
    columns: Mapping[str, Column],
    targets: Mapping[str, Target],
    of_atoms: bool,
    hashes: Sequence[str] = (),
) -> dict[str, NDArray[Any]]:
    """Compute what :func:`doubts` must know of a block of graphs.

    Parameters
    ----------
    columns
        Columns of the graphs by key.
    targets
        Targets by name.
    of_atoms
        True if nodes are atoms.
    hashes
        Hash of each graph, equal for copies; none if copies are not known.

    Returns
    -------
    dict
        Arrays by name, with a row for each graph, except ``element`` and ``fraction``: these have
        ``kinds`` rows for each. Blocks are joined by concatenation.
    """
    atoms, starts = columns["x"].counts, columns["x"].starts()
    found: dict[str, NDArray[Any]] = {"atoms": atoms, "branch": np.zeros(len(atoms), np.int64)}
    if BRANCH in columns:
        found["branch"] = columns[BRANCH].values.reshape(-1).astype(np.int64)
    numbers = atomic_numbers(columns) if of_atoms else None
    if numbers is not None:
        found |= _composition(numbers, atoms) | _distances(columns, numbers)
        found["isolated"] = are_isolated(columns)
    for name, target in targets.items():
        values = target_array(columns[name].values, target)
        if target.level == "node":
            largest = np.maximum.reduceat(np.abs(values).max(axis=1), starts)
        else:
            largest = values[:, 0] if target.dim == 1 else np.abs(values).max(axis=1)
        found[f"label {name}"] = largest / atoms if _is_sum(name, target) else largest
    if hashes:
        same = np.array([int(digits, 16) for digits in hashes], dtype=np.uint64)
        if GRAPH_ATTR in columns:  # at another temperature a structure may have another label
            rows = columns[GRAPH_ATTR].values.reshape(len(atoms), -1)
            same ^= np.array([zlib.crc32(row.tobytes()) for row in rows], dtype=np.uint64)
        found["copy"] = same
    return found


def _is_sum(name: str, target: Target) -> bool:
    if target.level == "node":
        return False
    by_name = name == ENERGY and "atom" not in target.unit.lower()
    return by_name if target.extensive is None else target.extensive


def _composition(numbers: NDArray[np.int64], atoms: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    graph = np.repeat(np.arange(len(atoms)), atoms)
    keys, amounts = np.unique(graph * 128 + numbers, return_counts=True)
    graphs, element = np.divmod(keys, 128)
    kinds = np.bincount(graphs, minlength=len(atoms))
    return {"kinds": kinds, "element": element, "fraction": amounts / atoms[graphs]}


def _distances(
    columns: Mapping[str, Column], numbers: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """Return distances between the nearest atoms of each graph, and atoms without neighbours.

    ``near`` is the shortest edge in sums of covalent radii, infinite without edges; ``pair`` has
    its length [Å] and the elements at its ends, if it is suspicious; ``lonely`` is the number of
    atoms without an edge, 0 for a single atom.
    """
    nodes, edges = columns["x"], columns["edge_index"]
    senders, receivers = edges.values + np.repeat(nodes.starts(), edges.counts)
    pos = columns["pos"].values
    vectors = pos[receivers] - pos[senders]
    if "edge_shifts" in columns:
        vectors = vectors + columns["edge_shifts"].values
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    radii = covalent_radii.astype(np.float32)[numbers]
    ratios = lengths / (radii[senders] + radii[receivers])
    ratios[(lengths == 0) & (senders == receivers)] = np.inf  # loops of other programs
    near = np.full(len(nodes.counts), np.inf)
    joined, starts = np.flatnonzero(edges.counts), edges.starts()
    if len(joined):
        near[joined] = np.minimum.reduceat(ratios, starts[joined])
    pair = np.zeros((len(near), 3))
    for graph in np.flatnonzero(near < _NEAREST).tolist():
        first, count = starts[graph], edges.counts[graph]
        edge = first + int(ratios[first : first + count].argmin())
        pair[graph] = lengths[edge], numbers[senders[edge]], numbers[receivers[edge]]
    alone = np.ones(len(numbers), dtype=np.int64)
    alone[senders] = alone[receivers] = 0
    lonely = np.add.reduceat(alone, nodes.starts())
    lonely[nodes.counts == 1] = 0
    return {"near": near, "pair": pair, "lonely": lonely}


def joined(surveys: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Join the surveys of consecutive blocks of graphs, at least one."""
    return {key: np.concatenate([one[key] for one in surveys]) for key in surveys[0]}


@dataclass(frozen=True)
class Doubts:
    """Suspicious structures of an input."""

    structures: NDArray[np.bool_]
    """True for each suspicious structure, [n_structures]."""
    of_task: list[list[int]]
    """Indices, within each task, of structures with a label that scales must not know."""
    found: dict[str, Any]
    """Number and worst of the structures, and sentences on the whole input, for the manifest; empty
    if nothing is suspicious."""


@dataclass(frozen=True)
class _Check:
    """Result of one check: how far beyond its limit each structure is, and the reason in words."""

    excess: NDArray[np.float64]
    """Multiple of the limit, [n]; 0 where nothing is suspicious."""
    why: Callable[[int], str]
    of_label: bool = False


def judge(folders: Sequence[Path], records: Sequence[Mapping[str, Any]], treatment: str) -> Doubts:
    """Find suspicious structures among all of an input.

    Parameters
    ----------
    folders
        Directory of each task, with the file `ORIGINS`.
    records
        Record of each task, with its ``survey`` and ``targets``.
    treatment
        Value of `data.suspicious`.

    Raises
    ------
    InputError
        If the treatment is ``refuse``, or ``leave_out`` would leave out most structures.
    """
    seen = joined([record["survey"] for record in records])
    targets: Mapping[str, Target] = records[0]["targets"]
    checks = [*_of_geometry(seen), *_of_labels(seen, targets)]
    # A last column of zeros, as there may be no checks.
    excess = np.stack([*(check.excess for check in checks), np.zeros(len(seen["atoms"]))], axis=1)
    most, which = excess.max(axis=1), excess.argmax(axis=1)
    n, everywhere = int((most > 0).sum()), list(_of_all(seen, targets))
    ends = np.cumsum([len(record["survey"]["atoms"]) for record in records])
    worst = []
    for i in np.argsort(-most, kind="stable")[: min(n, _NAMED)].tolist():
        task = int(np.searchsorted(ends, i, side="right"))
        origins = json.loads((folders[task] / ORIGINS).read_text(encoding="utf-8"))
        worst.append({"where": origins[i - ends[task]], "why": checks[which[i]].why(i)})
    found = {"structures": n, "of": len(most), "worst": worst, "all": everywhere}
    found = found | {"left_out": treatment == "leave_out"} if n or everywhere else {}
    if treatment == "leave_out" and everywhere:
        raise InputError(f"data.suspicious would leave most structures out: {everywhere[0]}")
    check_refused(found, treatment)
    labels = np.logical_or.reduce(
        [excess[:, k] > 0 for k, one in enumerate(checks) if one.of_label] or [most < 0]
    )
    return Doubts(
        most > 0, [np.flatnonzero(some).tolist() for some in np.split(labels, ends[:-1])], found
    )


def check_refused(found: Mapping[str, Any], treatment: str) -> None:
    """Raise InputError if something is suspicious and the value of `data.suspicious` is refuse."""
    if found and treatment == "refuse":
        raise InputError(
            f"{'; '.join(sentences(found))}; correct or remove them, or set data.suspicious to say "
            f"or leave_out"
        )


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Return what is suspicious in words: of the whole input, how many structures, the worst."""
    said = [f"the data are suspicious: {sentence}" for sentence in found["all"]]
    if found["structures"]:
        what = "left out" if found["left_out"] else "among the structures"
        said.append(
            f"suspicious structures, {what} (data.suspicious): {found['structures']} of "
            f"{found['of']}, the worst of them:"
        )
    return said + [f"{one['where']}: {one['why']}" for one in found["worst"]]


def _of_geometry(seen: Mapping[str, NDArray[Any]]) -> Iterator[_Check]:
    if "near" not in seen:
        return
    near, pair, lonely = seen["near"], seen["pair"], seen["lonely"]

    def too_near(i: int) -> str:
        one, other = (chemical_symbols[int(z)] for z in pair[i, 1:])
        return (
            f"{one} and {other} are {pair[i, 0]:.3g} Å apart, {near[i]:.2g} times the sum of their "
            f"covalent radii"
        )

    yield _Check(np.where(near < _NEAREST, _NEAREST / np.maximum(near, 1e-6), 0.0), too_near)
    yield _Check(
        (lonely > 0).astype(np.float64),
        lambda i: (
            f"{lonely[i]} of its {seen['atoms'][i]} atoms have no neighbour within the radius"
        ),
    )


def _of_labels(seen: Mapping[str, NDArray[Any]], targets: Mapping[str, Target]) -> Iterator[_Check]:
    # Levels of theory differ between data sets.
    branches = [seen["branch"] == branch for branch in np.unique(seen["branch"])]
    for name, target in targets.items():
        unit = f"{target.unit}/atom" if _is_sum(name, target) else target.unit
        for mine in branches:
            label = seen[f"label {name}"]
            if "kinds" in seen and (name == ENERGY or _is_sum(name, target)):
                mine, about = mine & ~seen["isolated"], "the fit of element energies"
                usual = _of_elements(label, mine, seen)
            else:
                about = "the median"
                usual = np.full(len(label), np.median(label[mine]))
            away = np.where(mine, np.abs(label - usual), 0.0)
            reach = _reach(away[mine], label[mine])
            if reach == 0.0:
                continue
            far = _beyond_a_gap(away, max(_FAR * reach, _UNHARMED.get(unit, 0.0)))
            within = f"{unit} from {about}, where 9 of 10 are within {reach:.2g}"
            yield _Check(
                np.where(far, away / (_FAR * reach), 0.0),
                partial(_far_label, f"{name} of {{:.7g}} {{:.3g}} {within}", label, away),
                of_label=True,
            )
            if "copy" in seen:
                apart = _differences(label, mine & (seen["lonely"] == 0), seen)
                yield _Check(
                    np.where(apart > max(_SAME * reach, 0.0), apart / reach, 0.0),
                    partial(_copies, f"copies of it differ by {{:.3g}} {unit} in {name}", apart),
                )


def _far_label(words: str, label: NDArray[Any], away: NDArray[Any], i: int) -> str:
    return words.format(label[i], away[i])


def _copies(words: str, apart: NDArray[Any], i: int) -> str:
    return words.format(apart[i])


def _of_elements(
    label: NDArray[np.float64], mine: NDArray[np.bool_], seen: Mapping[str, NDArray[Any]]
) -> NDArray[np.float64]:
    """Return the energy that the elements of each structure add up to, per atom, [n].

    The energies of the elements are those of least absolute residuals of the structures ``mine``,
    found by weighted least squares: one wrong energy does not change them. Structures of few
    numbers for many elements get their own label, as nothing can be said of them.
    """
    elements, column = np.unique(seen["element"], return_inverse=True)
    ends = np.concatenate([[0], np.cumsum(seen["kinds"])])
    parts = csr_array((seen["fraction"], column, ends), shape=(len(label), len(elements)))
    rows, known = parts[mine], label[mine]
    if len(known) < 3 * len(elements):
        return label
    energies, weights = np.zeros(len(elements)), np.ones(len(known))
    for _ in range(25):
        left = known - rows @ energies
        heavy = rows.multiply(weights[:, None])
        energies += np.linalg.lstsq((rows.T @ heavy).toarray(), heavy.T @ left, rcond=None)[0]
        left = np.abs(known - rows @ energies)
        weights = 1 / np.maximum(left, max(1e-3 * float(np.median(left)), 1e-12))
        weights /= weights.max()
    fitted: NDArray[np.float64] = parts @ energies
    return fitted


def _reach(away: NDArray[np.float64], label: NDArray[np.float64]) -> float:
    """Return the deviation that nine of ten labels stay within; 0 if it cannot be told.

    Labels without any deviation do not count: most gaps of metals are zero.
    """
    if len(away) < _FEWEST:
        return 0.0
    some = away[away > 1e-7 * np.abs(np.median(label))]
    return float(np.quantile(some, 0.9, method="lower")) if len(some) else 0.0


def _beyond_a_gap(away: NDArray[np.float64], limit: float) -> NDArray[np.bool_]:
    """Return True for the deviations beyond the first gap above ``limit``, [n]."""
    ordered = np.sort(away)
    starts = np.flatnonzero((ordered[1:] > limit) & (ordered[1:] > _GAP * ordered[:-1]))
    return away > ordered[starts[0]] if len(starts) else np.zeros(len(away), dtype=np.bool_)


def _differences(
    label: NDArray[np.float64], mine: NDArray[np.bool_], seen: Mapping[str, NDArray[Any]]
) -> NDArray[np.float64]:
    """Return the range of the labels among each structure's copies, [n]; 0 without copies."""
    _, group = np.unique(seen["copy"], return_inverse=True)
    least, most = np.full(group.max() + 1, np.inf), np.full(group.max() + 1, -np.inf)
    np.minimum.at(least, group[mine], label[mine])
    np.maximum.at(most, group[mine], label[mine])
    return np.where(mine, (most - least)[group], 0.0)


def _of_all(seen: Mapping[str, NDArray[Any]], targets: Mapping[str, Target]) -> Iterator[str]:
    """Yield a sentence for each thing that is suspicious of the input as a whole."""
    if "near" in seen:
        near = seen["near"][np.isfinite(seen["near"])]
        median = float(np.median(near)) if len(near) else 1.0
        noble = np.isin(seen["element"], _NOBLE_GASES).all()
        if median < _NEAREST or (median > _FARTHEST and not noble):
            yield (
                f"nearest atoms are {median:.2g} times the sum of their covalent radii apart in "
                f"the median structure, where 1 is usual; give positions and cells in Å"
            )
        if np.median(seen["lonely"] > 0) > 0:
            yield (
                "most structures have atoms without neighbours; give positions in Å, or a larger "
                "Architecture.radius"
            )
    stress = targets.get("stress")
    if stress is not None and _PRESSURE.fullmatch(stress.unit):
        median = float(np.median(np.abs(seen["label stress"])))
        if median > 1:
            yield (
                f"stress is {median:.3g} {stress.unit} in the median structure, and 1 is 160 GPa; "
                f"give the stress in {stress.unit}, not the virial, GPa or kbar"
            )
