"""After the members are trained: weigh, calibrate on validation data, test once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from hydragnn_flow.config import NetworkConfig, RunConfig
from hydragnn_flow.data import GraphSplit, GraphStore, Manifest
from hydragnn_flow.ensemble.checksums import write_checksums
from hydragnn_flow.ensemble.comparison import compare_models
from hydragnn_flow.ensemble.ensemble import MANIFEST, Ensemble, join_members
from hydragnn_flow.ensemble.labels import labels_of
from hydragnn_flow.ensemble.members import load_member, member_files, member_folder
from hydragnn_flow.ensemble.summary import ENSEMBLE, FOLDER, SUMMARY, VERSION
from hydragnn_flow.ensemble.target_measures import measure_targets
from hydragnn_flow.ensemble.uncertainty import (
    Calibration,
    Floats,
    calibrate,
    combine,
    combine_noise,
    measured_coverage,
)
from hydragnn_flow.ensemble.weights import residual_products, stacking_weights
from hydragnn_flow.files import json_text, write_text
from hydragnn_flow.models import NOISE_SUFFIX
from hydragnn_flow.training.losses import Loss
from hydragnn_flow.training.predict import predict_batches, split_batches
from hydragnn_flow.training.predictions import load_predictions


@dataclass(frozen=True)
class Member:
    """How a member came to be."""

    member: int
    trial: int
    best_val_loss: float
    gcds: list[str]
    seconds: float
    cpu_seconds: float
    reason: str = ""
    """Why it was not trained to the end, where it was not; its best weights until then count."""


def finish_ensemble(
    run_directory: Path,
    config: RunConfig,
    store: GraphStore,
    members: Sequence[Member],
    totals: dict[str, float],
) -> dict[str, Any]:
    """Turn trained members into an ensemble: `ensemble.json` and the test predictions.

    Parameters
    ----------
    run_directory
        Of the campaign; the members' folders are in it.
    config
        Coverage of the intervals, and the network whose loss weighs the members.
    store
        Its validation split calibrates. Errors on its test split are computed here and nowhere
        else.
    members
        In the order of their folders.
    totals
        Wall and CPU seconds of the campaign, for the summary.

    Returns
    -------
    dict
        The content of `ensemble.json`, which is written last.
    """
    folder = run_directory / FOLDER
    coverage = config.ensemble.coverage
    loaded = [load_member(folder, member.member, store.manifest) for member in members]
    models, by = tuple(model for model, _ in loaded), [weights for _, weights in loaded]
    network = config.network_with({})
    val = store["valset"]
    validation = _predictions(folder, members, models, by, val)
    products = _products(validation, val, network, store.manifest)
    weights = stacking_weights(products)
    calibrations = _calibrations(validation, weights, val, store.manifest, coverage)
    ensemble = Ensemble(models, weights, calibrations, store.manifest, coverage)

    test = store["testset"]
    # Not by best_val_loss: members may have been trained with different losses.
    best = int(np.argmin(np.diag(products)))
    folder_out = run_directory / "predictions"
    folder_out.mkdir(exist_ok=True)
    predictions = _predictions(folder, members, models, by, test)
    tables = ensemble.tables([test], predictions, calibrations, members=True)
    tables.save(folder_out / "test")
    distributions = ensemble.distributions(predictions, test.n_atoms)
    references = ensemble.references([test], predictions, calibrations)
    compared = {ENSEMBLE: {name: found.mean for name, found in distributions.items()}}
    for k, member in enumerate(members):
        compared[str(member.member)] = {name: predictions[name][k] for name in references}
    summary = {
        "version": VERSION,
        "coverage": coverage,
        "members": [
            {**asdict(member), "weight": float(weight)}
            for member, weight in zip(members, weights, strict=True)
        ],
        "best_member": members[best].member,
        "calibration": {name: asdict(value) for name, value in calibrations.items()},
        "test": _test(ensemble, test, predictions, best),
        "measures": {
            name: found.to_dict()
            for name, found in measure_targets(
                distributions, references, test.n_atoms, store.manifest, coverage
            ).items()
        },
        "errors": compare_models(compared, references, test.n_atoms, store.manifest),
        **totals,
    }
    write_text(folder / MANIFEST, store.manifest.model_dump_json(indent=1))
    content = json_text(summary)
    files = [name for member in members for name in member_files(member.member)]
    write_checksums(folder, [MANIFEST, *files], {SUMMARY: content})
    write_text(folder / SUMMARY, content)
    return summary


def _predictions(
    folder: Path,
    members: Sequence[Member],
    models: Sequence[nn.Module],
    by: Sequence[str],
    split: GraphSplit,
) -> dict[str, Floats]:
    """Every member's predictions; made here of those alone that were not trained to the end."""
    found = []
    for member, model, weights in zip(members, models, by, strict=True):
        kept = load_predictions(member_folder(folder, member.member), split.name, weights)
        found.append(predict_batches(model, split_batches(split)) if kept is None else kept)
    return join_members(found)


def _products(
    predictions: dict[str, Floats], val: GraphSplit, network: NetworkConfig, manifest: Manifest
) -> Floats:
    terms = Loss(network, manifest).terms
    residuals = {
        name: members - labels_of(val, name, members.shape[2])
        for name, members in predictions.items()
        if any(term.target == name for term in terms)
    }
    return residual_products(residuals, terms, val.n_atoms.astype(float)[:, None])


def _calibrations(
    predictions: dict[str, Floats],
    weights: Floats,
    val: GraphSplit,
    manifest: Manifest,
    coverage: float,
) -> dict[str, Calibration]:
    atoms = val.n_atoms.astype(float)[:, None]
    calibrations = {}
    for name, members in predictions.items():
        if name not in manifest.targets:  # a noise, or forces that nobody knows
            continue
        mean, spread = combine(members, weights)
        # A structure that is not periodic has no stress.
        known = np.isfinite(mean).all(axis=1)
        if not known.any():
            continue
        per_graph = manifest.targets[name].level == "graph"
        noise = predictions.get(name + NOISE_SUFFIX)
        calibrations[name] = calibrate(
            (labels_of(val, name, mean.shape[1]) - mean)[known],
            spread[known],
            coverage,
            per_atom=manifest.is_extensive(name),
            atoms=atoms[known] if per_graph else None,
            noise=None if noise is None else combine_noise(noise, weights)[known],
        )
    return calibrations


def _test(
    ensemble: Ensemble, test: GraphSplit, members: dict[str, Floats], best: int
) -> dict[str, dict[str, Any]]:
    """Errors of the best single member and of the ensemble, and how many intervals hold."""
    results: dict[str, dict[str, Any]] = {}
    atoms = test.n_atoms.astype(float)[:, None]
    for name, predicted in ensemble.distributions(members, test.n_atoms).items():
        target = ensemble.manifest.targets[name]
        reference = labels_of(test, name, predicted.mean.shape[1])
        errors = {
            "best_member": np.abs(members[name][best] - reference),
            "ensemble": np.abs(predicted.mean - reference),
        }
        known = np.isfinite(predicted.mean)
        if not known.any():
            continue
        row: dict[str, Any] = {
            "unit": target.unit,
            "coverage": measured_coverage(reference, predicted),
        }
        for who, error in errors.items():
            row[f"mae_{who}"] = float(error[known].mean())
            if ensemble.manifest.is_extensive(name):
                row[f"mae_per_atom_{who}"] = float((error / atoms).mean())
        if predicted.aleatoric_std is not None:
            row["aleatoric_std"] = float(predicted.aleatoric_std.mean())
        results[name] = row
    return results
