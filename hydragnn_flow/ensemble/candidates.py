"""Trials as candidates for the ensemble, with their predictions of the validation split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config import RunConfig
from hydragnn_flow.data.reading.split_part import Split
from hydragnn_flow.ensemble.labels import labels_of
from hydragnn_flow.ensemble.selection import Candidate, Selection, best_first, select_members
from hydragnn_flow.errors import InputError
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import SegmentResult
from hydragnn_flow.training.checkpoints.checkpoint import (
    checkpoints,
    load_checkpoint,
    named_or_furthest,
)
from hydragnn_flow.training.measures.criterion import Criterion, Floats
from hydragnn_flow.training.predictions import predictions_in

# The best trials of a search are equally good long before this number. With as many residuals of
# each they take 64 MiB.
_MOST_TRIALS = 64
_MOST_RESIDUALS = 2**18
Predicted = dict[str, NDArray[np.float64]]
# Reserve trials per member, which may replace a failed one.
_RESERVE = 2


def most_of_a_type(size: int) -> int:
    """Return how many best trials of each message-passing type an ensemble may need."""
    return max(_MOST_TRIALS, (1 + _RESERVE) * size)


def choose_trials(
    config: RunConfig,
    records: Sequence[TrialRecord],
    results: Mapping[int, Sequence[SegmentResult]],
    folder: Callable[[int], Path],
    split: Split,
    criterion: Criterion,
) -> tuple[Selection, list[int]]:
    """Choose the trials that become members, by `ensemble.strategy`.

    Trials that a rung ended count as finished: they may be better than trials that were continued
    earlier in the search, and a member is trained further anyway.

    Parameters
    ----------
    config
        Configuration of the run.
    records
        Records of the search's trials.
    results
        Segments of each trial; the last successful one provides its criterion.
    folder
        Folder of a trial, with its checkpoint.
    split
        Graphs of the validation subset on which trials are compared.
    criterion
        Criterion by which trials are compared.

    Returns
    -------
    selection, missing
        Members and reserve, and the best trials whose predictions are lost.

    Raises
    ------
    InputError
        If fewer trials than members finished.
    """
    size = config.members.size
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
    candidates = [candidate_of(config, record, last[record.number]) for record in finished]
    if config.search.keep_checkpoints == "best":
        candidates = _with_checkpoints(candidates, most_of_a_type(size), folder)
        if len(candidates) < size:
            raise InputError(
                f"ensemble.size = {size} is more than the {len(candidates)} trials whose "
                f"checkpoints search.keep_checkpoints has kept; lower ensemble.size"
            )
    residuals: Mapping[int, Floats] = {}
    shares: Floats = np.ones(0)
    missing: list[int] = []
    if config.members.strategy == "greedy":
        best = [candidate.trial for candidate in best_first(candidates)[:_MOST_TRIALS]]
        # A generator, as all predictions together may be large.
        predicted = ((trial, _predicted(folder(trial), last[trial], split)) for trial in best)
        residuals, shares, missing = _residuals(predicted, split, criterion)
    selection = select_members(
        config.members.strategy, size, candidates, residuals, shares, criterion.power
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


def candidate_of(config: RunConfig, record: TrialRecord, last: SegmentResult) -> Candidate:
    """Return a trial as a candidate, by its last segment with a criterion."""
    architecture = config.network.get("Architecture", {})

    def value(key: str) -> object:
        return record.parameters.get(f"Architecture.{key}", architecture.get(key))

    error, width = last.best_val_error, value("hidden_dim")
    assert error is not None  # it finished
    mpnn_type = str(value("mpnn_type") or "")
    return Candidate(
        record.number, error, mpnn_type, width if isinstance(width, int) else 0, record.feasible
    )


def _predicted(folder: Path, last: SegmentResult, split: Split) -> Predicted | None:
    """Return the predictions of a trial's best weights; None if its checkpoint has none."""
    read = partial(load_checkpoint, known={last.checkpoint: last.checksum})
    try:
        _, state = named_or_furthest(folder / last.checkpoint, read)
    except InputError:
        return None
    is_of_best = state["progress"]["best_val_error"] == last.best_val_error
    return predictions_in(state, split.name) if is_of_best else None


def _residuals(
    predicted: Iterable[tuple[int, Predicted | None]], split: Split, criterion: Criterion
) -> tuple[dict[int, Floats], Floats, list[int]]:
    """Compute residuals of trials ``[n]`` and their shares ``[n]``; list trials without any."""
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
        (row,), all_shares = criterion.residuals(rows, labels, split.n_atoms, split.branch)
        if kept is None:
            kept, shares = _some(np.asarray(all_shares))
        residuals[trial] = np.asarray(row[kept], np.float32)
    return residuals, shares, missing


def _some(shares: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Return indices of residuals spread evenly over each target, and their shares."""
    targets = np.unique(shares)
    places, sizes = [], []
    for share in targets:
        (all_of_it,) = np.nonzero(shares == share)
        n = min(len(all_of_it), _MOST_RESIDUALS // len(targets))
        places.append(all_of_it[np.linspace(0, len(all_of_it) - 1, n).round().astype(np.int64)])
        sizes.append(np.full(n, share * len(all_of_it) / n))
    return np.concatenate(places), np.concatenate(sizes)
