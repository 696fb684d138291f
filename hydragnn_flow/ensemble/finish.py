"""Completion of an ensemble after training: weights, calibration, one test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from hydragnn_flow.config.network import NetworkConfig
from hydragnn_flow.config.run import EnsembleConfig
from hydragnn_flow.data import GraphSplit, GraphStore, Manifest
from hydragnn_flow.ensemble.calibration_file import FILE as CALIBRATION
from hydragnn_flow.ensemble.calibration_file import plain_calibrations
from hydragnn_flow.ensemble.checksums import write_checksums
from hydragnn_flow.ensemble.domain.applicability import APPLICABILITY, Applicability, deviations_of
from hydragnn_flow.ensemble.ensemble import MANIFEST, Ensemble
from hydragnn_flow.ensemble.evaluation.bootstrap import compare_models
from hydragnn_flow.ensemble.evaluation.measures import measure_targets
from hydragnn_flow.ensemble.members import load_member, member_files
from hydragnn_flow.ensemble.predictions.branches import data_sets_said
from hydragnn_flow.ensemble.predictions.labels import labels_of, numbers_of
from hydragnn_flow.ensemble.predictions.member_predictions import lay_out, predict_graphs
from hydragnn_flow.ensemble.predictions.table import GRAPH_ID, joined
from hydragnn_flow.ensemble.summary import ENSEMBLE, FOLDER, SUMMARY, VERSION, failed_members
from hydragnn_flow.ensemble.uncertainty.calibration import CalibrationData, calibration_split, folds
from hydragnn_flow.ensemble.uncertainty.distribution import Distribution, Floats, measured_coverage
from hydragnn_flow.ensemble.weights import weigh_members
from hydragnn_flow.files import json_text, write_text
from hydragnn_flow.training.measures.criterion import Criterion
from hydragnn_flow.training.measures.trivial import trivial_errors
from hydragnn_flow.training.predict import join_members, predict_batches, split_batches


@dataclass(frozen=True)
class Member:
    """Origin, cost and result of a trained member."""

    member: int
    trial: int
    best_val_error: float
    """Best criterion on the validation split."""
    best_val_loss: float
    gcds: list[str]
    seconds: float
    cpu_seconds: float
    reason: str = ""
    """Reason why training ended early, if it did; the best weights until then are used."""
    choice: str = ""
    """Reason why its trial was chosen."""
    repeat: int = 0
    """Number of earlier members of the same trial."""
    trial_error: float = math.inf
    """Criterion of its trial on the validation split."""
    graphs_per_step: float = 0.0
    """Mean number of graphs in a step over all its GCDs, in its last epoch."""
    learning_rate: float = 0.0
    """Largest learning rate at the end, before a schedule lowers it."""


def finish_ensemble(
    run_directory: str | Path,
    config: EnsembleConfig,
    network: NetworkConfig,
    store: GraphStore,
    members: Sequence[Member],
    totals: dict[str, float],
) -> dict[str, Any]:
    """Turn trained members into an ensemble: `ensemble.json` and the test predictions.

    Parameters
    ----------
    run_directory
        Directory of the campaign, with the members' folders.
    config
        Section `ensemble`: coverage of intervals, criterion, and combination of members.
    network
        Network of the run, for its criterion.
    store
        Store of the campaign. Its calibration split, or else its validation split, is used for
        weights and calibration. Errors on its test split are computed here and nowhere else.
    members
        Members in the order of their folders.
    totals
        Wall and CPU seconds of the campaign, for the summary.

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
    trivial = trivial_errors(store["trainset"], store.manifest, config.criterion)
    criterion = Criterion.of(network, store.manifest, trivial, config.criterion)
    split = calibration_split(store)
    fold = folds(len(split))
    known = _predictions(models, kept, split)
    labels = {
        name: labels_of(split, name, values.shape[2])
        for name, values in known.items()
        if name in store.manifest.targets  # excludes noise, and forces without labels
    }
    combined = weigh_members(
        criterion,
        known,
        {name: labels[name] for name in criterion.targets},
        split.n_atoms,
        split.branch,
        fold,
        config.aggregation,
        median=not network.Architecture.enable_interatomic_potential,
    )
    weights = combined.weights
    calibrated_on = CalibrationData(
        known,
        labels,
        combined.fold_weights,
        fold,
        split.n_atoms,
        store.manifest,
        coverage,
        combined.aggregation == "median",
        numbers_of([split], store.manifest),
        data_sets_said([split], store.manifest),
    )
    calibrations = calibrated_on.calibrations()
    deviations = deviations_of(known, weights, store.manifest, split.n_atoms)
    applicability = Applicability.of(store["trainset"], store.manifest, deviations)
    applicability.save(folder / APPLICABILITY)
    ensemble = Ensemble(
        models,
        weights,
        calibrations,
        store.manifest,
        coverage,
        aggregation=combined.aggregation,
        applicability=applicability,
        numbers=tuple(member.member for member in members),
    )

    test = store["testset"]
    best = _best_single(members, combined.members)
    folder_out = run_directory / "predictions"
    folder_out.mkdir(exist_ok=True)
    predictions = _predictions(models, kept, test)
    tested = predict_graphs(ensemble, store, [test], {GRAPH_ID: test.graph_id}, predictions)
    tables = joined([lay_out(ensemble, tested, with_members=True).tables])
    tables.save(folder_out / "test")
    distributions = ensemble.distributions(
        predictions, test.n_atoms, tested.numbers, tested.data_sets
    )
    references = tested.labels
    compared = {ENSEMBLE: {name: found.mean for name, found in distributions.items()}}
    for k, member in enumerate(members):
        compared[str(member.member)] = {name: predictions[name][k] for name in references}
    single = compared[str(members[best].member)]
    tested_models = {"best_member": single, ENSEMBLE: compared[ENSEMBLE]}
    measures = measure_targets(
        distributions,
        references,
        test.n_atoms,
        tables.graphs["flagged"].to_numpy(bool),
        store.manifest,
        coverage,
    )
    summary = {
        "version": VERSION,
        "coverage": coverage,
        "aggregation": combined.aggregation,
        "aggregation_scores": combined.scores,
        "members": [
            {**asdict(member), "weight": float(weight), "criterion": float(value)}
            for member, weight, value in zip(members, weights, combined.members, strict=True)
        ],
        "failed": [asdict(failed) for failed in failed_members(folder)],
        "best_member": members[best].member,
        "calibrated_on": {"split": split.name, "structures": len(split)},
        **plain_calibrations(calibrations),
        "test": _test(store.manifest, tested_models, references, distributions, test.n_atoms),
        "measures": {name: found.to_dict() for name, found in measures.items()},
        "errors": compare_models(compared, references, test.n_atoms, store.manifest),
        "data_sets": _of_data_sets(compared, references, distributions, test, store.manifest),
        **totals,
    }
    (folder / CALIBRATION).unlink(missing_ok=True)  # left by an ensemble that this one replaces
    write_text(folder / MANIFEST, store.manifest.model_dump_json(indent=1))
    content = json_text(summary)
    files = [name for member in members for name in member_files(member.member)]
    write_checksums(folder, [MANIFEST, APPLICABILITY, *files], {SUMMARY: content})
    write_text(folder / SUMMARY, content)
    return summary


def _of_data_sets(
    compared: Mapping[str, Mapping[str, Floats]],
    references: Mapping[str, Floats],
    distributions: Mapping[str, Distribution],
    test: GraphSplit,
    manifest: Manifest,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Compute errors and interval coverage on the structures of each data set."""
    names, found = data_sets_said([test], manifest), {}
    if names is None:
        return {}
    for name in manifest.data_sets.values():
        of_graphs = np.asarray(names == name)
        errors = compare_models(compared, references, test.n_atoms, manifest, of_graphs)
        for error in errors.values():
            target = error["target"]
            rows = manifest.targets[target].rows_of(of_graphs, test.n_atoms)
            predicted = distributions[target]
            inside = (references[target] >= predicted.lo) & (references[target] <= predicted.hi)
            error["coverage"] = float(inside[rows & np.isfinite(predicted.mean).all(axis=1)].mean())
        if errors:
            found[name] = errors
    return found


def _best_single(members: Sequence[Member], criterion: Floats) -> int:
    """Return the index of the member that would be used without an ensemble.

    It belongs to the trial with the smallest criterion on validation data, trained as members are;
    of the seeds of that trial it is the first.
    """
    ranks = [(member.trial_error, member.repeat) for member in members]
    return min(range(len(members)), key=lambda k: (*ranks[k], criterion[k]))


def _predictions(
    models: Sequence[nn.Module],
    kept: Sequence[Mapping[str, dict[str, Floats]]],
    split: GraphSplit,
) -> dict[str, Floats]:
    """Return every member's predictions, computing those that were not kept with its weights."""
    found = []
    for model, predictions in zip(models, kept, strict=True):
        mine = predictions.get(split.name)
        found.append(predict_batches(model, split_batches(split)) if mine is None else mine)
    return join_members(found)


def _test(
    manifest: Manifest,
    compared: Mapping[str, Mapping[str, Floats]],
    references: Mapping[str, Floats],
    distributions: Mapping[str, Distribution],
    n_atoms: NDArray[np.int64],
) -> dict[str, dict[str, Any]]:
    """Compute errors of the best single member and of the ensemble, and the interval coverage."""
    results = {}
    for name, predicted in distributions.items():
        known = np.isfinite(predicted.mean)
        if not known.any():
            continue
        row: dict[str, Any] = {
            "unit": manifest.targets[name].unit,
            "coverage": measured_coverage(references[name], predicted),
        }
        for who, values in compared.items():
            error = np.abs(values[name] - references[name])
            row[f"mae_{who}"] = float(error[known].mean())
            if manifest.is_extensive(name):
                row[f"mae_per_atom_{who}"] = float((error / n_atoms[:, None]).mean())
        if predicted.aleatoric_std is not None:
            row["aleatoric_std"] = float(predicted.aleatoric_std.mean())
        results[name] = row
    return results
