"""Selection of the trials that become members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.run import Strategy

Floats = NDArray[np.floating[Any]]

_BAGS = 20
_SMALLEST_BAG = 6
# Sums that differ by less are alike: a criterion measured on tens of structures knows no better.
_TOLERANCE = 1e-3
_NEXT = "next in line"


@dataclass(frozen=True)
class Candidate:
    """A finished trial that may become a member."""

    trial: int
    value: float
    """Its criterion on the validation split; smaller is better."""
    mpnn_type: str = ""
    width: int = 0
    feasible: bool = True
    """Whether it kept the limits of `search.constraints`."""


@dataclass(frozen=True)
class Choice:
    """A member to be trained, and why."""

    trial: int
    repeat: int
    """How many members of this trial come before it: it is trained with a seed of its own."""
    reason: str


@dataclass(frozen=True)
class Selection:
    """The members to be trained, and who takes the place of one that fails."""

    chosen: list[Choice]
    """The first is of the best single trial."""
    reserve: list[Choice]
    """Other trials, the next in line first."""


@dataclass(frozen=True)
class Judged:
    """Errors of candidates on data, in one form for every strategy.

    The criterion of a weighted mean of the candidates is ``(Σₙ sₙ |Σₖ wₖ rₖₙ|ᵖ)^(1/p)``.
    """

    residuals: Floats
    """``[k, n]``."""
    shares: Floats
    """``[n]``."""
    power: int = 1

    def criterion(self, means: Floats) -> Floats:
        """The criterion ``[...]`` of residuals ``[..., n]``; infinite where one is not a number."""
        sums = np.abs(means) ** self.power @ self.shares
        return np.where(np.isnan(sums), np.inf, sums) ** (1 / self.power)

    def rows(self, places: Sequence[int]) -> Judged:
        """Some of the candidates."""
        return Judged(self.residuals[list(places)], self.shares, self.power)


def select_members(
    strategy: Strategy,
    size: int,
    candidates: Sequence[Candidate],
    residuals: Mapping[int, Floats],
    shares: Floats,
    power: int = 1,
) -> Selection:
    """Select trials, in an order and with seeds that do not depend on the candidates' order.

    Parameters
    ----------
    strategy
        ``top``: the best. ``best_of_each_type``: the best of each message-passing type, the best
        type first, then the second of each. ``greedy``: :func:`greedy_weights` shares out the
        members. A trial that it wants for more than one of them gets several seeds, for at most
        half of the members; trials that are wanted alike go by their type, then their width, where
        no member has it yet.
    size
        Members; at most the number of candidates.
    candidates
        Those that broke a limit are only chosen where there are too few others.
    residuals
        Trial -> ``[n]``, on validation data. ``greedy`` alone reads them, and takes trials without
        any only where the others are too few.
    shares, power
        As of :class:`Judged`.

    Returns
    -------
    Selection
        The best candidate is always the first member.
    """
    ranked = best_first(candidates)
    line = _round_robin(ranked) if strategy == "best_of_each_type" else ranked
    chosen = [Choice(line[0].trial, 0, _reason(line[0], True, strategy))]
    pool = [c for c in ranked if not any(_rank(c)[:2]) and _known(residuals.get(c.trial))]
    if strategy == "greedy" and len(pool) > 1:
        judged = Judged(np.stack([residuals[c.trial] for c in pool]), shares, power)
        if pool[0] is line[0]:
            chosen = _greedy(pool, judged, size, has_best=True)
        else:
            chosen += _greedy(pool, judged, size - 1, has_best=False)
    taken = {choice.trial for choice in chosen}
    rest = [candidate for candidate in line if candidate.trial not in taken]
    missing = size - len(chosen)
    chosen += [Choice(c.trial, 0, _reason(c, False, strategy)) for c in rest[:missing]]
    return Selection(chosen, [Choice(c.trial, 0, _NEXT) for c in rest[missing:]])


def best_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates by their criterion; last those that broke a limit, then those without one."""
    return sorted(candidates, key=_rank)


def greedy_weights(judged: Judged, steps: int) -> Floats:
    """Weights ``[k]`` of candidates in a mean that grows greedily, adding up to one.

    Ensemble selection (Caruana et al., ICML 2004, doi:10.1145/1015330.1015432): the candidate that
    lowers the criterion of the mean most is added, also one that is in it already. As proposed
    there, the mean begins with the best few candidates, as many as do best together, and the
    result is averaged over bags, each of a random half of the candidates. Of the means on the way,
    the first counts that is as good as the best, within a thousandth.

    Parameters
    ----------
    judged
        Errors of the candidates, the best first; that one is in every bag.
    steps
        Members of the mean, at most.
    """
    k = len(judged.residuals)
    random = np.random.default_rng(0)
    half = max(min(k, _SMALLEST_BAG), (k + 1) // 2)
    bags = 1 if half == k else _BAGS
    total = np.zeros(k)
    for _ in range(bags):
        others = 1 + random.choice(k - 1, half - 1, replace=False)
        bag = np.concatenate([[0], np.sort(others)])
        counts = _grow(judged.rows(bag.tolist()), steps)
        total[bag] += counts / counts.sum()
    return total / bags


def _grow(judged: Judged, steps: int) -> Floats:
    """How often each candidate is in the best mean found on the way, ``[k]``."""
    residuals = judged.residuals
    k = len(residuals)
    sums = np.cumsum(residuals[:steps], axis=0)
    found = judged.criterion(sums / np.arange(1, len(sums) + 1)[:, None])
    start = int(np.argmin(found)) + 1
    path, values, total = list(range(start)), [float(found[start - 1])], sums[start - 1].copy()
    while len(path) < steps:
        tried = judged.criterion((total + residuals) / (len(path) + 1))
        best = int(np.argmin(tried))
        path.append(best)
        values.append(float(tried[best]))
        total += residuals[best]
    enough = min(values) * (1 + _TOLERANCE)
    first = next((i for i, value in enumerate(values) if value <= enough), 0)
    return np.bincount(path[: start + first], minlength=k).astype(float)


def _greedy(
    pool: Sequence[Candidate], judged: Judged, size: int, *, has_best: bool
) -> list[Choice]:
    """Members in proportion to greedy weights, by the method of d'Hondt.

    Parameters
    ----------
    has_best
        Whether the first of the pool is the best trial, which is to be the first member.
    """
    weights = greedy_weights(judged, steps=max(4 * size, 16))
    most = max(1, size // 2)
    members = Counter[int]()
    chosen: list[Choice] = []
    while len(chosen) < size:
        wanted = {
            i: weight / (1 + members[i])
            for i, weight in enumerate(weights)
            if weight > 0 and members[i] < most
        }
        if has_best and not chosen:
            wanted = {0: 1.0}
        if not wanted:
            return chosen
        enough = max(wanted.values()) * (1 - 50 * _TOLERANCE)
        alike = [i for i, value in wanted.items() if value >= enough]
        new = _is_new([pool[i] for i in members])
        place = min(alike, key=lambda i: (*new(pool[i]), -wanted[i], i))
        candidate, repeat = pool[place], members[place]
        why = f"{weights[place]:.0%} of the greedy ensemble, criterion {candidate.value:.4g}"
        if has_best and not chosen:
            why = f"the best trial; {why}"
        elif repeat:
            why = f"seed {repeat + 1} of this trial; {why}"
        chosen.append(Choice(candidate.trial, repeat, why))
        members[place] += 1
    return chosen


def _is_new(members: Sequence[Candidate]) -> Callable[[Candidate], tuple[bool, bool]]:
    types, widths = {m.mpnn_type for m in members}, {m.width for m in members}
    return lambda candidate: (candidate.mpnn_type in types, candidate.width in widths)


def _rank(candidate: Candidate) -> tuple[bool, bool, float, int]:
    known = bool(np.isfinite(candidate.value))
    return not known, not candidate.feasible, candidate.value if known else 0.0, candidate.trial


def _known(residuals: Floats | None) -> bool:
    return residuals is not None and bool(np.isfinite(residuals).all())


def _round_robin(ranked: Sequence[Candidate]) -> list[Candidate]:
    """The best of each type, then the second of each, and so on."""
    seen = Counter[str]()
    rounds = []
    for candidate in ranked:
        rounds.append((*_rank(candidate)[:2], seen[candidate.mpnn_type]))
        seen[candidate.mpnn_type] += 1
    order = sorted(range(len(ranked)), key=lambda i: rounds[i])
    return [ranked[i] for i in order]


def _reason(candidate: Candidate, is_best: bool, strategy: Strategy) -> str:
    what = f"criterion {candidate.value:.4g}"
    if not candidate.feasible:
        return f"too few trials kept the limits of search.constraints; {what}"
    if is_best:
        return f"the best trial; {what}"
    if strategy == "best_of_each_type":
        return f"among the best of type {candidate.mpnn_type or 'unknown'}; {what}"
    return f"next by the criterion; {what}"
