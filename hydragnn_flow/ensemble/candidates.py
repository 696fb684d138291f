"""Trials as candidates for the ensemble: what each predicts for the validation split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config import RunConfig
from hydragnn_flow.data import GraphSplit
from hydragnn_flow.ensemble.labels import labels_of
from hydragnn_flow.ensemble.selection import Candidate, Selection, best_first, select_members
from hydragnn_flow.errors import InputError
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import SegmentResult
from hydragnn_flow.training.criterion import Criterion, Floats
from hydragnn_flow.training.predictions import load_predictions, made_by

# Enough to choose from: the best of a search are alike long before. With as many residuals of each
# they take 64 MiB.
_MOST_TRIALS = 64
_MOST_RESIDUALS = 2**18
# Of the trials that are no members, those that may take the place of one.
_RESERVE = 2


def choose_trials(
    config: RunConfig,
    records: Sequence[TrialRecord],
    results: Sequence[SegmentResult],
    folder: Callable[[int], Path],
    split: GraphSplit,
    criterion: Criterion,
) -> tuple[Selection, list[int]]:
    """Choose the trials that become members, by `ensemble.strategy`.

    A trial that a rung ended has finished too: it may be better than one that was continued earlier
    in the search, and a member is trained further anyway.

    Parameters
    ----------
    config
        Of the run.
    records
        Of the search.
    results
        Its segments; the last one of a trial that went well knows its criterion.
    folder
        Folder of a trial, with what it predicted.
    split
        The validation split.
    criterion
        By which trials are judged.

    Returns
    -------
    selection, missing
        Members and reserve, and the best trials whose predictions are lost.

    Raises
    ------
    InputError
        If fewer trials than members finished.
    """
    size = config.ensemble.size
    last = {r.number: r for r in results if r.kind == "trial" and r.best_val_error is not None}
    finished = [r for r in records if r.state in ("complete", "pruned") and r.number in last]
    if len(finished) < size:
        failed = [record for record in records if record.state == "failed"]
        why = f" ({len(failed)} failed, the first because {failed[0].reason})" if failed else ""
        raise InputError(
            f"ensemble.size = {size} is more than the {len(finished)} trials that finished{why}; "
            f"lower ensemble.size or raise search.trials"
        )
    candidates = [_candidate(config, record, last[record.number]) for record in finished]
    residuals: Mapping[int, Floats] = {}
    shares: Floats = np.ones(0)
    missing: list[int] = []
    if config.ensemble.strategy == "greedy":
        best = [candidate.trial for candidate in best_first(candidates)[:_MOST_TRIALS]]
        made = {trial: made_by(vars(last[trial])) for trial in best}
        residuals, shares, missing = _residuals(made, folder, split, criterion)
    selection = select_members(
        config.ensemble.strategy, size, candidates, residuals, shares, criterion.power
    )
    return Selection(selection.chosen, selection.reserve[: _RESERVE * size]), missing


def _candidate(config: RunConfig, record: TrialRecord, last: SegmentResult) -> Candidate:
    architecture = config.network.get("Architecture", {})

    def value(key: str) -> object:
        return record.parameters.get(f"Architecture.{key}", architecture.get(key))

    error, width = last.best_val_error, value("hidden_dim")
    assert error is not None  # it finished
    mpnn_type = str(value("mpnn_type") or "")
    return Candidate(
        record.number, error, mpnn_type, width if isinstance(width, int) else 0, record.feasible
    )


def _residuals(
    made: Mapping[int, str], folder: Callable[[int], Path], split: GraphSplit, criterion: Criterion
) -> tuple[dict[int, Floats], Floats, list[int]]:
    """Residuals of trials ``[n]``, their shares ``[n]``, and the trials whose are lost.

    Parameters
    ----------
    made
        Trial -> the weights that count; see :func:`made_by`.
    """
    residuals: dict[int, Floats] = {}
    shares: Floats = np.ones(0)
    missing: list[int] = []
    labels: dict[str, Floats] = {}
    n_atoms, kept = split.n_atoms.astype(np.float64), None
    for trial, by in made.items():
        predicted = load_predictions(folder(trial), split.name, by)
        if predicted is None or not criterion.trivial_errors.keys() <= predicted.keys():
            missing.append(trial)
            continue
        for name in criterion.trivial_errors:
            if name not in labels:
                labels[name] = labels_of(split, name, predicted[name].shape[1])
        rows = {name: predicted[name][None] for name in criterion.trivial_errors}
        (row,), all_shares = criterion.residuals(rows, labels, n_atoms)
        if kept is None:
            kept, shares = _some(np.asarray(all_shares))
        residuals[trial] = np.asarray(row[kept], np.float32)
    return residuals, shares, missing


def _some(shares: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Places of residuals spread evenly over each target, and the shares of these."""
    targets = np.unique(shares)
    places, sizes = [], []
    for share in targets:
        (all_of_it,) = np.nonzero(shares == share)
        n = min(len(all_of_it), _MOST_RESIDUALS // len(targets))
        places.append(all_of_it[np.linspace(0, len(all_of_it) - 1, n).round().astype(np.int64)])
        sizes.append(np.full(n, share * len(all_of_it) / n))
    return np.concatenate(places), np.concatenate(sizes)
