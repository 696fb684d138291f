"""Tables of predictions that are made already, for splits of a store."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike

from hydragnn_flow.data import GraphSplit
from hydragnn_flow.ensemble.applicability import are_noted, joined_notes
from hydragnn_flow.ensemble.branches import data_sets_said
from hydragnn_flow.ensemble.ensemble import Ensemble
from hydragnn_flow.ensemble.inputs import BUDGET
from hydragnn_flow.ensemble.labels import labels_of_splits, numbers_of
from hydragnn_flow.ensemble.predicting import missing_predictions
from hydragnn_flow.ensemble.predictions_table import DATA_SET, GRAPH_ID, Predictions, build_tables
from hydragnn_flow.ensemble.uncertainty import Floats
from hydragnn_flow.training.predict import split_batches


def split_tables(
    ensemble: Ensemble,
    splits: Sequence[GraphSplit],
    predictions: dict[str, Floats],
    labels: Collection[str],
    *,
    members: bool = False,
) -> Predictions:
    """Lay out predictions for splits of the store that the ensemble was trained on.

    Parameters
    ----------
    ensemble
        That made the predictions.
    splits
        One behind the other.
    predictions
        Every member's: target -> ``[n_members, n, d]``.
    labels
        Targets that the splits know the true values of.
    members
        Whether to give every member's prediction too.
    """
    n_atoms = np.concatenate([split.n_atoms for split in splits])
    names = np.repeat([split.name for split in splits], [len(split) for split in splits])
    about: dict[str, ArrayLike] = {"split": names} if len(splits) > 1 else {}
    about[GRAPH_ID] = np.concatenate([split.graph_id for split in splits])
    data_sets = data_sets_said(splits, ensemble.manifest)
    if data_sets is not None:
        about[DATA_SET] = data_sets
    said = [
        note
        for split in splits
        for batch in split_batches(split, BUDGET)
        for note in ensemble.applicability.notes(batch)
    ]
    unlike = ensemble.remarks(said, predictions, n_atoms)
    predicted = ensemble.distributions(
        predictions, n_atoms, numbers_of(splits, ensemble.manifest), data_sets
    )
    missing, lost = missing_predictions(predicted, n_atoms, ensemble.manifest)
    return build_tables(
        about,
        n_atoms,
        ensemble.manifest.targets,
        predicted,
        labels_of_splits(splits, predictions, labels),
        ensemble.coverage,
        ensemble.by_number(predictions) if members else None,
        joined_notes(unlike, missing),
        (lost | are_noted(unlike)).tolist(),
    )
