"""Completion of an ensemble after training: weights of members, calibration, one test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from hydragnn_flow.config.network import NetworkConfig
from hydragnn_flow.config.run import EnsembleConfig
from hydragnn_flow.data import GraphSplit, GraphStore
from hydragnn_flow.ensemble.applicability import APPLICABILITY, Applicability, deviations_of
from hydragnn_flow.ensemble.committee import load_member, member_files
from hydragnn_flow.ensemble.ensemble import MANIFEST, Ensemble
from hydragnn_flow.ensemble.evaluation.bootstrap import compare_models
from hydragnn_flow.ensemble.evaluation.measures import measure_targets
from hydragnn_flow.ensemble.predictions.files import PredictionFiles
from hydragnn_flow.ensemble.predictions.labels import data_sets_said
from hydragnn_flow.ensemble.predictions.member_predictions import lay_out, predict_graphs
from hydragnn_flow.ensemble.predictions.table import GRAPH_ID
from hydragnn_flow.ensemble.selection import Judged
from hydragnn_flow.ensemble.summary import (
    ENSEMBLE,
    FOLDER,
    SUMMARY,
    VERSION,
    failed_members,
    write_checksums,
)
from hydragnn_flow.ensemble.uncertainty.calibration import FILE as CALIBRATION
from hydragnn_flow.ensemble.uncertainty.calibration import (
    CalibrationData,
    calibration_split,
    folds,
    plain_calibrations,
)
from hydragnn_flow.ensemble.uncertainty.distribution import Floats
from hydragnn_flow.files import json_text, write_text
from hydragnn_flow.training.measures.criterion import Criterion, criterion_for, trivial_errors
from hydragnn_flow.training.predict import join_members, labels_of, predict_batches, split_batches

# Power of a member's criterion, to which its weight is inversely proportional. In 19 tables of 11
# campaigns, 4, 6 and 8 were equally good within 1 %; equal weights were much worse where members
# differ.
_POWER = 6


def member_weights(judged: Judged) -> Floats:
    """Compute weights ``[n_members]`` of the members by their residuals; they add up to one.

    They are inversely proportional to the sixth power of each member's criterion, and zero where
    that is not finite; equal if it is finite for no member. Weights that minimise the criterion of
    the mean followed chance: of four members with equal errors they silenced three.
    """
    criterion = judged.criterion(judged.residuals)
    best = criterion.min()
    if not np.isfinite(best):
        return np.full(len(criterion), 1 / len(criterion))
    by_criterion = (best / criterion) ** _POWER if best > 0 else (criterion == 0).astype(float)
    return np.asarray(by_criterion / by_criterion.sum())


def weights_by_fold(judged: Judged, folds: NDArray[np.int64], n_folds: int) -> Floats:
    """Compute the members' weights ``[n_folds, n_members]``; each row without its fold.

    ``folds`` is the fold that each residual's structure is in, ``[n]``. Members whose criterion of
    all residuals is not finite have no weight in any row.
    """
    wild = ~np.isfinite(judged.criterion(judged.residuals))
    residuals = np.where(wild[:, None], np.inf, judged.residuals)
    others = [folds != fold for fold in range(n_folds)]
    return np.stack(
        [
            member_weights(Judged(residuals[:, used], judged.shares[used], judged.power))
            for used in (other if other.any() else ~other for other in others)
        ]
    )


@dataclass(frozen=True)
class Member:
    """Record of a trained ensemble member: its trial, the cost of its training and its errors."""

    member: int
    trial: int
    best_val_error: float
    """Criterion of its weights on the validation split."""
    best_val_loss: float
    gcds: list[str]
    seconds: float
    cpu_seconds: float
    reason: str = ""
    """Reason why training ended early, if it did; the best weights until then are used."""
    choice: str = ""
    """Reason why the member's trial was chosen."""
    repeat: int = 0
    """Number of earlier members of the same trial."""
    trial_error: float = math.inf
    """Criterion of the member's trial on the validation split."""
    graphs_per_step: float = 0.0
    """Mean number of graphs in a training step on all GCDs together, in the last epoch."""
    learning_rate: float = 0.0
    """Largest learning rate at the end of training, before a schedule lowers it."""


def finish_ensemble(
    run_directory: str | Path,
    config: EnsembleConfig,
    network: NetworkConfig,
    store: GraphStore,
    members: Sequence[Member],
    totals: dict[str, float],
) -> dict[str, Any]:
    """Turn trained members into an ensemble, and write `ensemble.json` and test predictions.

    Parameters
    ----------
    run_directory
        Directory of the campaign, with the members' folders.
    config
        Section `ensemble`: coverage of intervals, and criterion.
    network
        Network of the run, on which the criterion depends.
    store
        Store of the campaign. The calibration split, or else the validation split, is used for
        weights and calibration. Errors on the test split are computed here and nowhere else.
    members
        Members in the order of their folders.
    totals
        Wall time, CPU time and other costs of the campaign by name, for the summary.

    Returns
    -------
    dict
        Content of `ensemble.json`, which is written last.
    """
    run_directory = Path(run_directory)
    folder = run_directory / FOLDER
    coverage = config.coverage
    loaded = [load_member(folder, member.member, store.manifest) for member in members]
    models, kept = tuple(model for model, _ in loaded), [found for _, found in loaded]
    judged_by = criterion_for(config.criterion, network, store.manifest)
    trivial = trivial_errors(store["trainset"], store.manifest, judged_by)
    criterion = Criterion.of(network, store.manifest, trivial, judged_by)
    split = calibration_split(store)
    fold = folds(len(split))
    known = _predictions(models, kept, split)
    labels = {
        name: labels_of(split, name, values.shape[2])
        for name, values in known.items()
        if name in store.manifest.targets  # excludes noise, and forces without labels
    }
    residuals, shares, structure = criterion.residuals(known, labels, split.n_atoms, split.branch)
    judged = Judged(np.asarray(residuals), np.asarray(shares), criterion.power)
    weights = member_weights(judged)
    alone = np.asarray(judged.criterion(judged.residuals), np.float64)
    ensemble = Ensemble(
        models,
        weights,
        {},
        store.manifest,
        coverage,
        applicability=Applicability.of(store["trainset"], store.manifest),
        numbers=tuple(member.member for member in members),
    )
    facts = predict_graphs(ensemble, store, [split], {}, known).facts
    deviations = deviations_of(known, weights, store.manifest, facts)
    applicability = ensemble.applicability.with_deviations(deviations)
    applicability.save(folder / APPLICABILITY)
    calibrated_on = CalibrationData(
        known,
        labels,
        weights_by_fold(judged, fold[structure], int(fold.max()) + 1),
        fold,
        facts,
        store.manifest,
        coverage,
    )
    calibrations = calibrated_on.calibrations()
    ensemble = replace(ensemble, calibrations=calibrations, applicability=applicability)

    test = store["testset"]
    # The first member is of the best trial; if it failed, the best of the others comes first.
    best = min(members, key=lambda member: (member.member > 0, member.trial_error))
    folder_out = run_directory / "predictions"
    folder_out.mkdir(exist_ok=True)
    predictions = _predictions(models, kept, test)
    origins = {GRAPH_ID: test.graph_id, **test.origins_of(np.arange(len(test)))}
    tested = predict_graphs(ensemble, store, [test], origins, predictions)
    chunk = lay_out(ensemble, tested, with_members=True)
    with PredictionFiles([folder_out / "test.parquet", folder_out / "test.csv"]) as files:
        files.fill([chunk])
    distributions = ensemble.distributions(predictions, tested.facts)
    references = tested.labels
    compared = {ENSEMBLE: {name: found.mean for name, found in distributions.items()}}
    for k, member in enumerate(members):
        compared[str(member.member)] = {name: predictions[name][k] for name in references}
    errors = partial(
        compare_models, compared, references, test.n_atoms, store.manifest, distributions
    )
    data_sets = data_sets_said([test], store.manifest)
    of_data_sets = {
        name: found
        for name in (store.manifest.data_sets.values() if data_sets is not None else ())
        if (found := errors(np.asarray(data_sets == name)))
    }
    measures = measure_targets(
        distributions,
        references,
        test.n_atoms,
        chunk.tables.graphs["flagged"].to_numpy(bool),
        store.manifest,
        coverage,
    )
    summary = {
        "version": VERSION,
        "coverage": coverage,
        "members": [
            {**asdict(member), "weight": float(weight), "criterion": float(value)}
            for member, weight, value in zip(members, weights, alone, strict=True)
        ],
        "failed": [asdict(failed) for failed in failed_members(folder)],
        "best_member": best.member,
        "calibrated_on": {"split": split.name, "structures": len(split)},
        **plain_calibrations(calibrations),
        "measures": {name: found.to_dict() for name, found in measures.items()},
        "errors": errors(),
        "data_sets": of_data_sets,
        "suspicious": store.manifest.provenance.get("suspicious") or {},
        "lacking": store.manifest.lacking,
        **totals,
    }
    (folder / CALIBRATION).unlink(missing_ok=True)  # left by an ensemble that this one replaces
    write_text(folder / MANIFEST, store.manifest.model_dump_json(indent=1))
    content = json_text(summary)
    names = [name for member in members for name in member_files(member.member)]
    write_checksums(folder, [MANIFEST, APPLICABILITY, *names], {SUMMARY: content})
    write_text(folder / SUMMARY, content)
    return summary


def _predictions(
    models: Sequence[nn.Module],
    kept: Sequence[Mapping[str, dict[str, Floats]]],
    split: GraphSplit,
) -> dict[str, Floats]:
    """Return every member's predictions for a split, ``[n_members, n, d]`` by name of the output.

    ``kept`` has the predictions of each member that its checkpoint contains, by split; the others
    are computed.
    """
    found = []
    for model, predictions in zip(models, kept, strict=True):
        mine = predictions.get(split.name)
        found.append(predict_batches(model, split_batches(split)) if mine is None else mine)
    return join_members(found)
