"""Structures whose geometry or labels are hardly right: found among all, named, told of.

A task surveys its structures, a few numbers of each; the driver of the preparation judges all of
them together, on scales that a tenth of wrong ones cannot change.
"""

from __future__ import annotations

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
from scipy.sparse import csr_array, diags_array

from hydragnn_flow.config.sources import BRANCH
from hydragnn_flow.config.units import conversion
from hydragnn_flow.data.columns import Column, edge_lengths, global_edges
from hydragnn_flow.data.store.manifest import ENERGY, GRAPH_ATTR, Target
from hydragnn_flow.data.store.origins import where_of
from hydragnn_flow.data.store.statistics import are_isolated, atomic_numbers, target_array
from hydragnn_flow.errors import InputError

TASK_ORIGINS = "origins.parquet"
"""Name of the file in a task's directory with the origin of each of its structures."""


def survey(
    columns: Mapping[str, Column],
    targets: Mapping[str, Target],
    of_atoms: bool,
    hashes: Sequence[str] = (),
) -> dict[str, NDArray[Any]]:
    """Compute what :func:`judge` must know of a block of graphs.

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
        found[f"label {name}"] = largest / atoms if target.is_sum(name) else largest
    if (slope := _slopes(columns, targets, numbers)) is not None:
        found["slope"] = slope
    if hashes:
        same = np.array([int(digits, 16) for digits in hashes], dtype=np.uint64)
        if GRAPH_ATTR in columns:  # at another temperature a structure may have another label
            rows = columns[GRAPH_ATTR].values.reshape(len(atoms), -1)
            same ^= np.array([zlib.crc32(row.tobytes()) for row in rows], dtype=np.uint64)
        found["copy"] = same
    return found


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
    senders, receivers = global_edges(columns)
    lengths = edge_lengths(columns, senders, receivers)
    radii = covalent_radii.astype(np.float32)[numbers]
    ratios = lengths / (radii[senders] + radii[receivers])
    ratios[(lengths == 0) & (senders == receivers)] = np.inf  # loops of other programs
    near = np.full(len(nodes.counts), np.inf)
    joined, starts = np.flatnonzero(edges.counts), edges.starts()
    if len(joined):
        near[joined] = np.minimum.reduceat(ratios, starts[joined])
    pair = np.zeros((len(near), 3))
    for graph in np.flatnonzero(near < 0.5).tolist():
        first, count = starts[graph], edges.counts[graph]
        edge = first + int(ratios[first : first + count].argmin())
        pair[graph] = lengths[edge], numbers[senders[edge]], numbers[receivers[edge]]
    alone = np.ones(len(numbers), dtype=np.int64)
    alone[senders] = alone[receivers] = 0
    lonely = np.add.reduceat(alone, nodes.starts())
    lonely[nodes.counts == 1] = 0
    return {"near": near, "pair": pair, "lonely": lonely}


def _slopes(
    columns: Mapping[str, Column],
    targets: Mapping[str, Target],
    numbers: NDArray[np.int64] | None,
) -> NDArray[np.float64] | None:
    """Return by which multiple of its forces' work the energy changes to the next graph, [n].

    It is 1 along a trajectory: the work is minus the mean force times the way, exactly so in a
    harmonic potential. It is NaN if the next graph is no step of the same atoms in the same cell,
    or the work is lost in the energy's last digits. The result is None without both labels.
    """
    energy, forces = targets.get(ENERGY), targets.get("forces")
    if numbers is None or not (energy and forces and energy.is_sum(ENERGY)):
        return None
    factor = conversion(forces.unit, f"{energy.unit}/Å")
    atoms, force = columns["x"].counts, target_array(columns["forces"].values, forces)
    if factor is None or force.shape != (len(numbers), 3):
        return None
    follows = np.append(atoms[1:] == atoms[:-1], False)
    if "cell" in columns:
        cells = columns["cell"].values.reshape(-1, 3, 3).astype(np.float64)
        follows[:-1] &= (cells[1:] == cells[:-1]).all(axis=(1, 2))
    graph = np.repeat(np.arange(len(atoms)), atoms)
    rows = np.flatnonzero(follows[graph])
    graph, after = graph[rows], rows + atoms[graph[rows]]
    way = columns["pos"].values[after].astype(np.float64) - columns["pos"].values[rows]
    if "cell" in columns:  # atoms may have been put back into it
        turns = np.einsum("ni,nij->nj", way, np.linalg.pinv(cells)[graph]).round()
        way -= np.einsum("ni,nij->nj", turns, cells[graph])
    other = (numbers[after] != numbers[rows]) | (np.abs(way).max(axis=1, initial=0) > 0.5)  # Å
    work = -factor / 2 * ((force[rows] + force[after]) * way).sum(axis=1)
    works = np.bincount(graph, work, len(atoms))
    level = target_array(columns[ENERGY].values, energy)[:, 0]
    least = 50 * np.finfo(np.result_type(columns[ENERGY].values, np.float32)).eps * np.abs(level)
    good = follows & (np.bincount(graph, other, len(atoms)) == 0) & (np.abs(works) > least)
    slopes = np.full(len(atoms), np.nan)
    np.divide(np.append(np.diff(level), 0), works, out=slopes, where=good)
    return slopes


def joined(surveys: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Join the surveys of consecutive blocks of graphs, at least one."""
    return {key: np.concatenate([one[key] for one in surveys]) for key in surveys[0]}


@dataclass(frozen=True)
class Doubts:
    """Suspicious structures of an input."""

    structures: NDArray[np.bool_]
    """True for each suspicious structure, [n_structures]."""
    of_task: list[dict[str, list[int]]]
    """Indices, within each task, of structures whose label is far off, by target."""
    labels: dict[int, dict[str, tuple[float | None, str]]]
    """Labels that are far off: value, None if it is no single number, and reason, by index of the
    structure and target."""
    found: dict[str, Any]
    """Number and worst of the structures, and sentences on the whole input, for the manifest; empty
    if nothing is suspicious."""


@dataclass(frozen=True)
class _Check:
    """Result of one check: how far beyond its limit each structure is, and the reason in words."""

    excess: NDArray[Any]
    """Multiple of the limit, [n]; 0 where nothing is suspicious."""
    why: Callable[[int], str]
    target: str = ""
    """Target of which labels are far off; empty for other checks."""


def judge(folders: Sequence[Path], records: Sequence[Mapping[str, Any]], treatment: str) -> Doubts:
    """Find suspicious structures among all of an input.

    Parameters
    ----------
    folders
        Directory of each task, with the file `TASK_ORIGINS`.
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
    for i in np.argsort(-most, kind="stable")[: min(n, 5)].tolist():
        task = int(np.searchsorted(ends, i, side="right"))
        where = where_of(folders[task] / TASK_ORIGINS, int(i - ends[task]))
        worst.append({"where": where, "why": checks[which[i]].why(i)})
    if treatment == "leave_out" and everywhere:
        raise InputError(f"data.suspicious would leave most structures out: {everywhere[0]}")
    everywhere = [*_without_label(records), *everywhere]
    found = {"structures": n, "of": len(most), "worst": worst, "all": everywhere}
    found = found | {"left_out": treatment == "leave_out"} if n or everywhere else {}
    check_refused(found, treatment)
    of_task: list[dict[str, list[int]]] = [{} for _ in records]
    labels: dict[int, dict[str, tuple[float | None, str]]] = {}
    starts = [0, *ends]
    for check in (check for check in checks if check.target):
        target, label = targets[check.target], seen[f"label {check.target}"]
        for i in np.flatnonzero(check.excess > 0).tolist():
            task = int(np.searchsorted(ends, i, side="right"))
            of_task[task].setdefault(check.target, []).append(i - int(starts[task]))
            value = label[i] * (seen["atoms"][i] if target.is_sum(check.target) else 1)
            known = float(value) if (target.level, target.dim) == ("graph", 1) else None
            labels.setdefault(i, {})[check.target] = known, check.why(i)
    return Doubts(most > 0, of_task, labels, found)


def _without_label(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    lacking = [said for record in records for said in record.get("unlabelled", ())]
    n = len(lacking) + sum(len(record["survey"]["atoms"]) for record in records)
    if lacking:
        what = f"{len(lacking)} of {n} structures without a label, or with weight 0"
        if 2 * len(lacking) > n:
            raise InputError(
                f"{what}, would be left out, which are most, the first: "
                f"{lacking[0].partition(';')[0]}; name its key, add labels, or let data.missing "
                f"mask those of structures that have others"
            )
        yield f"left out: {what}, the first: {lacking[0].partition(';')[0]}"


def check_refused(found: Mapping[str, Any], treatment: str) -> None:
    """Raise InputError if something is suspicious and the value of `data.suspicious` is refuse."""
    if found and treatment == "refuse":
        count = f"suspicious structures: {found['structures']} of {found['of']}, the worst is "
        worst = [f"{count}{one['where']}: {one['why']}" for one in found["worst"]]
        raise InputError(
            f"{[*found['all'], *worst][0]}; correct the data, or set data.suspicious to say or "
            f"leave_out"
        )


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Return what is suspicious in words: of the whole input, how many structures, the worst."""
    said = [f"suspicious data: {sentence}" for sentence in found["all"]]
    if found["structures"]:
        said.append(
            f"suspicious structures, {'left out' if found['left_out'] else 'to be looked at'} "
            f"(data.suspicious): {found['structures']} of {found['of']}, the worst:"
        )
    return said + [f"{one['where']}: {one['why']}" for one in found["worst"]]


def _of_geometry(seen: Mapping[str, NDArray[Any]]) -> Iterator[_Check]:
    if "near" not in seen:
        return
    near, lonely = seen["near"], seen["lonely"]
    lengths, *ends = seen["pair"].T
    one, other = (np.array(chemical_symbols)[end.astype(np.int64)] for end in ends)
    words = "{} and {} are {:.3g} Å apart, {:.2g} times the sum of their covalent radii"
    yield _Check(
        np.where(near < 0.5, 0.5 / np.maximum(near, 1e-6), 0.0),
        partial(_words, words, one, other, lengths, near),
    )
    words = "{} of its {} atoms have no neighbour within the radius"
    yield _Check(lonely > 0, partial(_words, words, lonely, seen["atoms"]))


def _of_labels(seen: Mapping[str, NDArray[Any]], targets: Mapping[str, Target]) -> Iterator[_Check]:
    usual_range = {"eV": 0.1, "eV/atom": 0.1, "eV/Å": 10.0}
    # Levels of theory differ between data sets.
    branches = [seen["branch"] == branch for branch in np.unique(seen["branch"])]
    for name, target in targets.items():
        unit = f"{target.unit}/atom" if target.is_sum(name) else target.unit
        for of_branch in branches:
            label = seen[f"label {name}"]
            mine = of_branch & np.isfinite(label)
            if mine.sum() < 10:
                continue
            is_energy = (name, target.level) == (ENERGY, "graph")
            if "kinds" in seen and (is_energy or target.is_sum(name)):
                mine, about = mine & ~seen["isolated"], "what its elements add up to"
                usual = _of_elements(label, mine, seen)
            else:
                about = "the median"
                usual = np.full(len(label), np.median(label[mine]))
            away = np.where(mine, np.abs(label - usual), 0.0)
            reach = _reach(away[mine], label[mine], 0.75 if "elements" in about else 0.9)
            if reach == 0.0:
                continue
            # Ten standard deviations of a normal distribution, but few labels show less of it.
            limit = max(6 * reach * (1 + 10 / mine.sum()), usual_range.get(unit, 0.0))
            words = f"is {{:.3g}} from {about}, and 9 of 10 are within {reach:.2g}"
            yield _Check(
                np.where(_beyond_a_gap(away, limit), away / limit, 0.0),
                partial(_words, f"{name} {{:.7g}} {unit} {words}", label, away),
                target=name,
            )
            if "copy" in seen and "lonely" in seen:
                apart = _differences(label, mine & (seen["lonely"] == 0), seen)
                yield _Check(
                    np.where(apart > 0.1 * reach, apart / reach, 0.0),
                    partial(_words, f"copies of it differ by {{:.3g}} {unit} in {name}", apart),
                )


def _words(words: str, *arrays: Any) -> str:
    """Fill in the value of each array at the last argument, the index of a structure."""
    *values, i = arrays
    return words.format(*(value[i] for value in values))


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
        normal = (rows.T @ diags_array(weights) @ rows).toarray()
        rest = rows.T @ (weights * (known - rows @ energies))
        energies += np.linalg.lstsq(np.atleast_2d(normal), rest, rcond=None)[0]
        left = np.abs(known - rows @ energies)
        weights = 1 / np.maximum(left, max(1e-3 * float(np.median(left)), 1e-12))
        weights /= weights.max()
    fitted: NDArray[np.float64] = parts @ energies
    return fitted


def _reach(away: NDArray[np.float64], label: NDArray[np.float64], sure: float) -> float:
    """Return the deviation that nine of ten labels stay within; 0 if it cannot be told.

    Labels without any deviation do not count: most gaps of metals are zero. The fraction ``sure``
    of the labels is of one origin: what is fifty times further away than these is not.
    """
    if len(away) < 10:
        return 0.0
    some = away[away > 1e-7 * np.abs(np.median(label))]
    if not len(some):
        return 0.0
    least, most = np.quantile(some, (sure, 0.9), method="lower").tolist()
    return float(most if most < 50 * least else least)


def _beyond_a_gap(away: NDArray[np.float64], limit: float) -> NDArray[np.bool_]:
    """Return True for the deviations beyond the first gap above ``limit``, [n].

    The tail of a wide distribution has no gaps: each deviation is less than twice the one before.
    """
    ordered = np.sort(away)
    starts = np.flatnonzero((ordered[1:] > limit) & (ordered[1:] > 2 * ordered[:-1]))
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
    """Yield a sentence for each thing that is suspicious of a data set as a whole."""
    for branch in np.unique(seen["branch"]).tolist():
        mine = seen["branch"] == branch
        which = f"structure of data set {branch}" if not mine.all() else "structure"
        if "near" in seen:
            graph = np.repeat(np.arange(len(mine)), seen["kinds"])
            others = ~np.isin(seen["element"], (2, 10, 18, 36, 54, 86))  # than noble gases
            bonded = mine & np.isfinite(seen["near"]) & (np.bincount(graph, others) > 0)
            some = seen["near"][bonded] if bonded.any() else np.ones(1)
            # It is 1.6 to 2.2 for positions in Bohr. Where molecules dissociate, few are wide.
            if (median := float(np.median(some))) < 0.5 or np.quantile(some, 0.1) > 1.35:
                yield (
                    f"nearest atoms are {median:.2g} times the sum of their covalent radii apart "
                    f"in the median {which}, where 1 is usual; give positions and cells in Å"
                )
            if (seen["lonely"][mine] > 0).mean() > 0.5:
                yield (
                    f"the median {which} has atoms without neighbours; give positions and cells in "
                    f"Å, or a larger Architecture.radius"
                )
        slope = seen.get("slope", np.full(len(mine), np.nan))[mine]
        slope = slope[np.isfinite(slope)]
        # Wide steps scatter about 1; only wrong labels put nearly all of them on another line.
        if len(slope) >= 10:
            usual = float(np.median(slope))
            is_line = (np.abs(slope - usual) < 0.3 * np.abs(usual)).mean() > 0.75
            if is_line and not 0.7 < usual < 1.4:
                yield (
                    f"energy changes by {usual:.3g} times what forces say between {len(slope)} "
                    f"pairs of consecutive structures, where 1 is right; correct the sign or the "
                    f"unit of forces, or name labels of one calculation"
                )
        stress = targets.get("stress")
        if stress and re.fullmatch(r"eV ?/ ?(Å|A|Ang|Angstrom)\^?[3³]", stress.unit):
            label = seen["label stress"][mine & np.isfinite(seen["label stress"])]
            median = float(np.median(np.abs(label))) if len(label) else 0.0
            if median > 1:  # 160 GPa
                yield (
                    f"stress is {median:.3g} {stress.unit} in the median {which}, which is "
                    f"{median * 160:.0f} GPa; give it in {stress.unit}, not as virial, in GPa or "
                    f"kbar"
                )
