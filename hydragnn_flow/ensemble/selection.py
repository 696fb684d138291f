"""Selection of the trials that become members, by their predictions of the validation split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.run import EnsembleConfig, Strategy
from hydragnn_flow.data.reading.split import Split
from hydragnn_flow.errors import InputError
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import SegmentResult
from hydragnn_flow.training.checkpoints.checkpoint import (
    checkpoints,
    load_checkpoint,
    named_or_furthest,
)
from hydragnn_flow.training.measures.criterion import Criterion
from hydragnn_flow.training.predict import labels_of, predictions_in

Floats = NDArray[np.floating[Any]]

# Number of trials of which further seeds are considered, and seeds of each.
_REPEATED = 4
_SEEDS = 6
# Correlation of two seeds of a network in the part of errors that other trials do not predict.
_LIKENESS = 0.5
# Relative tolerance between criteria: tens of structures do not resolve less.
_TOLERANCE = 5e-3
# A member of another type has at most this many times the criterion of the best trial.
_FAR = 2.0
_NEXT = "next in line"
_Predicted = dict[str, NDArray[np.float64]]
# The best trials of a search are equally good long before this number. With as many residuals of
# each they take 64 MiB.
_MOST_TRIALS = 64
_MOST_RESIDUALS = 2**18
# Reserve trials per member, which may replace a failed one.
_RESERVE = 2


@dataclass(frozen=True)
class Candidate:
    """Finished trial of the search that may become a member of the ensemble."""

    trial: int
    value: float
    """Criterion on the validation split; smaller is better."""
    mpnn_type: str = ""
    width: int = 0
    feasible: bool = True
    """True if the trial kept the limits of `search.constraints`."""


@dataclass(frozen=True)
class Choice:
    """Trial chosen as a member of the ensemble, or as a reserve, and the reason."""

    trial: int
    repeat: int
    """Number of earlier members of the same trial; each member is trained with another seed."""
    reason: str
    """Reason for the choice, in words."""


@dataclass(frozen=True)
class Selection:
    """Trials selected as members of the ensemble, and reserve trials that replace failed ones."""

    chosen: list[Choice]
    """Members in order; the first is a network of the best single trial."""
    reserve: list[Choice]
    """Trials that are not members, in the order in which they replace failed members."""


@dataclass(frozen=True)
class Judged:
    """Residuals of candidate networks on labelled data, and each residual's weight in a criterion.

    The criterion of a mean of the candidates with weights w is ``(Σₙ sₙ |Σₖ wₖ rₖₙ|ᵖ)^(1/p)``.
    """

    residuals: Floats
    """Residuals r of k candidates, ``[k, n]``."""
    shares: Floats
    """Weight s of each residual in the criterion, ``[n]``."""
    power: int = 1
    """Power p of the residuals in the criterion."""

    def criterion(self, means: Floats) -> Floats:
        """Compute the criterion (weighted error, smaller is better) of residuals ``[..., n]``.

        The result is ``[...]``, infinite where a residual is NaN.
        """
        sums = np.abs(means) ** self.power @ self.shares
        return np.where(np.isnan(sums), np.inf, sums) ** (1 / self.power)


def select_members(
    strategy: Strategy,
    size: int,
    candidates: Sequence[Candidate],
    residuals: Mapping[int, Floats],
    shares: Floats,
    power: int = 1,
) -> Selection:
    """Select the trials that become members; the order of ``candidates`` does not matter.

    Parameters
    ----------
    strategy
        ``top``: the best trials. ``greedy``: first the best trial, then one by one the trial, or
        further seed of a trial, that lowers the criterion of the members' mean most; among equally
        good ones a new message-passing type comes first, then a new width, then a trial. The last
        of three or more members is of another type if all others are of one and that is at most
        twice as bad.
    size
        Number of members to select; at most the number of candidates.
    candidates
        Finished trials. Trials that broke a limit are only chosen if there are too few others.
    residuals
        Residuals ``[n]`` on validation data by trial. Only ``greedy`` reads them; it takes trials
        without residuals only if there are too few others.
    shares, power
        Fields of :class:`Judged` of the same names.

    Returns
    -------
    Selection
        Members, the best candidate first, and reserve.
    """
    ranked = best_first(candidates)
    chosen = [Choice(ranked[0].trial, 0, _reason(ranked[0], True))]
    pool = [c for c in ranked if not any(_rank(c)[:2]) and _known(residuals.get(c.trial))]
    if strategy == "greedy" and len(pool) > 1:
        judged = Judged(np.stack([residuals[c.trial] for c in pool]), shares, power)
        chosen += _greedy(ranked[0], pool, judged, size - 1)
    taken = {choice.trial for choice in chosen}
    rest = [candidate for candidate in ranked if candidate.trial not in taken]
    missing = size - len(chosen)
    chosen += [Choice(c.trial, 0, _reason(c, False)) for c in rest[:missing]]
    return Selection(chosen, [Choice(c.trial, 0, _NEXT) for c in rest[missing:]])


def best_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates sorted by their criterion, the best first.

    Candidates that broke a limit come after all that broke none. Candidates whose criterion is not
    finite come last.
    """
    return sorted(candidates, key=_rank)


def _with_seeds(judged: Judged) -> tuple[Judged, NDArray[np.int64]]:
    """Return the residuals of candidates and of further seeds, and the candidate of each row.

    Further seeds are those of the best `_REPEATED` candidates, `_SEEDS` of each with the known one.
    Their errors are not known before they are trained. They are modelled as equally large as those
    of the known seed, and as equal in the part that other candidates predict, by least squares:
    seeds were found as alike as trials of one type. Any two seeds have a correlation of `_LIKENESS`
    in the rest: a weighted sum of the known rest, of a permutation of it that all further seeds
    share, and of a permutation that each further seed has for itself.
    """
    random = np.random.default_rng(1)
    k, n = judged.residuals.shape
    targets = [np.flatnonzero(judged.shares == share) for share in np.unique(judged.shares)]

    def another_order() -> NDArray[np.int64]:
        order = np.arange(n)
        for places in targets:
            order[places] = random.permutation(places)
        return order

    known, errors = judged.residuals[:_REPEATED], judged.criterion(judged.residuals)
    shared = np.zeros_like(known)
    for places in targets:
        for i, of in enumerate(known[:, places]):
            others = np.delete(judged.residuals[:, places], i, axis=0)[: 1 + len(places) // 10]
            shared[i, places] = np.linalg.lstsq(others.T, of, rcond=None)[0] @ others
    own = known - shared
    in_common = shared + _LIKENESS * own
    in_common += (_LIKENESS - _LIKENESS**2) ** 0.5 * own[:, another_order()]
    rows, owner = [judged.residuals], [np.arange(k)]
    for _ in range(_SEEDS - 1):
        seeds = in_common + (1 - _LIKENESS) ** 0.5 * own[:, another_order()]
        found = judged.criterion(seeds)
        seeds *= (errors[: len(known)] / np.where(found > 0, found, 1))[:, None].astype(seeds.dtype)
        rows.append(seeds)
        owner.append(np.arange(len(known)))
    return Judged(np.concatenate(rows), judged.shares, judged.power), np.concatenate(owner)


def _greedy(best: Candidate, pool: Sequence[Candidate], judged: Judged, more: int) -> list[Choice]:
    """Return up to ``more`` members beside ``best``, by ensemble selection with replacement.

    Caruana et al., ICML 2004, doi:10.1145/1015330.1015432. A network that is selected twice is
    trained twice, with two seeds; in that paper it gets twice the weight instead. ``pool`` is
    sorted, the best first, and ``judged`` has its residuals.
    """
    seeds, owners = _with_seeds(judged)
    of = [pool[owner] for owner in owners.tolist()]
    near = np.array([candidate.value <= _FAR * best.value for candidate in of])
    rows = [0] if pool[0] is best else []
    chosen: list[Choice] = []
    while len(chosen) < more and len(rows) < len(of):
        sums = seeds.residuals + seeds.residuals[rows].sum(axis=0)
        criteria = seeds.criterion(sums / (len(rows) + 1))
        criteria[rows] = np.inf
        # Errors of further seeds are imagined: the known ones of their trial come before.
        criteria[len(pool) :][~np.isin(owners[len(pool) :], rows)] = np.inf
        types = {best.mpnn_type, *(of[row].mpnn_type for row in rows)}
        widths = {best.width, *(of[row].width for row in rows)}
        is_old = [(c.mpnn_type in types, c.width in widths) for c in of]
        others = near & [not old for old, _ in is_old]
        lead = ""
        if len(chosen) == more - 1 > 0 and len(types) == 1 and others.any():
            # Far from the data, networks of one type are wrong alike, and their spread is small.
            criteria[~others], lead = np.inf, "all others are of one type; "
        (alike,) = np.nonzero(criteria <= criteria.min() * (1 + _TOLERANCE))
        row = min(alike.tolist(), key=lambda r: (*is_old[r], r >= len(pool), criteria[r]))
        candidate, repeat = of[row], sum(of[r] is of[row] for r in rows)
        lead = f"seed {repeat + 1} of this trial; " if repeat else lead
        why = f"{lead}criterion {candidate.value:.4g}, of the members' mean {criteria[row]:.4g}"
        chosen.append(Choice(candidate.trial, repeat, why))
        rows.append(row)
    return chosen


def _rank(candidate: Candidate) -> tuple[bool, bool, float, int]:
    known = bool(np.isfinite(candidate.value))
    return not known, not candidate.feasible, candidate.value if known else 0.0, candidate.trial


def _known(residuals: Floats | None) -> bool:
    return residuals is not None and bool(np.isfinite(residuals).all())


def _reason(candidate: Candidate, is_best: bool) -> str:
    what = f"criterion {candidate.value:.4g}"
    if not candidate.feasible:
        return f"too few trials kept the limits of search.constraints; {what}"
    return f"{'the best trial' if is_best else 'next by the criterion'}; {what}"


def most_of_a_type(size: int) -> int:
    """Return how many trials of each message-passing type the selection of members may need.

    They are the best trials of the type, and ``size`` is the number of members of the ensemble.
    """
    return max(_MOST_TRIALS, (1 + _RESERVE) * size)


def choose_trials(
    config: EnsembleConfig,
    architecture: Mapping[str, Any],
    only_kept: bool,
    records: Sequence[TrialRecord],
    results: Mapping[int, Sequence[SegmentResult]],
    folder: Callable[[int], Path],
    split: Split,
    criterion: Criterion,
) -> tuple[Selection, list[int]]:
    """Choose the trials of a search that become members, by `ensemble.strategy`.

    Trials that ended early at a rung count as finished: they may be better than trials that were
    continued earlier in the search, and members are trained further anyway.

    Parameters
    ----------
    config
        Section `ensemble` of the configuration.
    architecture
        Section `Architecture` of the network; a trial's own value of a key comes before it.
    only_kept
        True if only trials that still have a checkpoint may become members, since the checkpoints
        of other trials were deleted.
    records
        Records of the search's trials.
    results
        Results of each trial's segments (jobs of its training); the last successful one provides
        its criterion.
    folder
        Function that returns the folder of the trial with a number.
    split
        Graphs of the validation subset on which trials are compared.
    criterion
        Criterion by which trials are compared.

    Returns
    -------
    selection, missing
        Members and reserve; and the numbers of trials, among the best, whose predictions are lost,
        so that the strategy ``greedy`` could not compare them.

    Raises
    ------
    InputError
        If fewer trials than members finished, or still have a checkpoint where they need one.
    """
    size = config.size
    last = {
        number: result
        for number, of_trial in results.items()
        for result in of_trial
        if result.best_val_error is not None
    }
    finished = [r for r in records if r.state in ("complete", "pruned") and r.number in last]
    if len(finished) < size:
        failed = [record for record in records if record.state == "failed"]
        why = f" ({len(failed)} failed, the first because {failed[0].reason})" if failed else ""
        raise InputError(
            f"ensemble.size = {size} is more than the {len(finished)} trials that finished{why}; "
            f"lower ensemble.size or raise search.trials"
        )
    candidates = [candidate_of(architecture, record, last[record.number]) for record in finished]
    if only_kept:
        candidates = _with_checkpoints(candidates, most_of_a_type(size), folder)
        if len(candidates) < size:
            raise InputError(
                f"ensemble.size = {size} is more than the {len(candidates)} trials whose "
                f"checkpoints search.keep_checkpoints has kept; lower ensemble.size"
            )
    residuals: Mapping[int, Floats] = {}
    shares: Floats = np.ones(0)
    missing: list[int] = []
    if config.strategy == "greedy":
        ranked = best_first(candidates)
        rest = [c for c in ranked[_MOST_TRIALS:] if c.mpnn_type != ranked[0].mpnn_type]
        read = [c.trial for c in (*ranked[:_MOST_TRIALS], *rest[:_REPEATED])]
        # A generator, as all predictions together may be large.
        predicted = ((trial, _predicted(folder(trial), last[trial], split)) for trial in read)
        residuals, shares, missing = _residuals(predicted, split, criterion)
    selection = select_members(
        config.strategy, size, candidates, residuals, shares, criterion.power
    )
    return Selection(selection.chosen, selection.reserve[: _RESERVE * size]), missing


def _with_checkpoints(
    candidates: Sequence[Candidate], most: int, folder: Callable[[int], Path]
) -> list[Candidate]:
    seen, kept = Counter[str](), []
    for candidate in best_first(candidates):
        seen[candidate.mpnn_type] += 1
        if seen[candidate.mpnn_type] <= most and checkpoints(folder(candidate.trial)):
            kept.append(candidate)
    return kept


def candidate_of(
    architecture: Mapping[str, Any], record: TrialRecord, last: SegmentResult
) -> Candidate:
    """Convert the record of a trial to a candidate for membership in the ensemble.

    ``last`` is the result of the trial's last segment (job of its training) that has a criterion,
    by which candidates are compared.
    ``architecture`` has the values of keys that the trial does not set.
    """

    def value(key: str) -> object:
        return record.parameters.get(f"Architecture.{key}", architecture.get(key))

    error, width = last.best_val_error, value("hidden_dim")
    assert error is not None  # it finished
    mpnn_type = str(value("mpnn_type") or "")
    return Candidate(
        record.number, error, mpnn_type, width if isinstance(width, int) else 0, record.feasible
    )


def _predicted(folder: Path, last: SegmentResult, split: Split) -> _Predicted | None:
    """Return the predictions ``[n, d]`` of a trial's best weights for a split, by target.

    They are read from the checkpoint of the segment ``last`` in the trial's ``folder``. The result
    is None if the checkpoint cannot be read or has no such predictions.
    """
    read = partial(load_checkpoint, known={last.checkpoint: last.checksum})
    try:
        _, state = named_or_furthest(folder / last.checkpoint, read)
    except InputError:
        return None
    is_of_best = state["progress"]["best_val_error"] == last.best_val_error
    return predictions_in(state, split.name) if is_of_best else None


def _residuals(
    predicted: Iterable[tuple[int, _Predicted | None]], split: Split, criterion: Criterion
) -> tuple[dict[int, Floats], Floats, list[int]]:
    """Return residuals ``[n]`` by trial, their shares ``[n]``, and the trials without predictions.

    A share is the weight of a residual in the criterion, the same for all trials.
    """
    residuals: dict[int, Floats] = {}
    shares: Floats = np.ones(0)
    missing: list[int] = []
    labels: dict[str, Floats] = {}
    kept = None
    for trial, found in predicted:
        if found is None or not found.keys() >= set(criterion.targets):
            missing.append(trial)
            continue
        for name in criterion.targets:
            if name not in labels:
                labels[name] = labels_of(split, name, found[name].shape[1])
        rows = {name: found[name][None] for name in criterion.targets}
        (row,), all_shares, _ = criterion.residuals(rows, labels, split.n_atoms, split.branch)
        if kept is None:
            kept, shares = _some(np.asarray(all_shares))
        residuals[trial] = np.asarray(row[kept], np.float32)
    return residuals, shares, missing


def _some(shares: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Select residuals, at most `_MOST_RESIDUALS`; return their indices and their new ``shares``.

    A share is the weight of a residual in the criterion. Residuals of equal share are taken as
    those of one target: some are selected evenly, and the target's total share stays the same.
    """
    targets = np.unique(shares)
    places, sizes = [], []
    for share in targets:
        (all_of_it,) = np.nonzero(shares == share)
        n = min(len(all_of_it), _MOST_RESIDUALS // len(targets))
        places.append(all_of_it[np.linspace(0, len(all_of_it) - 1, n).round().astype(np.int64)])
        sizes.append(np.full(n, share * len(all_of_it) / n))
    return np.concatenate(places), np.concatenate(sizes)
