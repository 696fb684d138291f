"""Every member's predictions: for structures, and for the graphs of a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from ase import Atoms
from torch_geometric.data import Batch, Data

from hydragnn_flow.data import GraphSplit, GraphStore
from hydragnn_flow.ensemble.inputs import (
    BUDGET,
    check_store,
    check_structures,
    graph_batches,
    structure_names,
)
from hydragnn_flow.ensemble.uncertainty import Floats
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import NOISE_SUFFIX
from hydragnn_flow.training.predict import join_members, predict_together, split_batches

if TYPE_CHECKING:
    from hydragnn_flow.ensemble.ensemble import Ensemble


def structure_predictions(
    ensemble: Ensemble, structures: Sequence[Atoms], names: Sequence[str] | None = None
) -> tuple[dict[str, Floats], list[str]]:
    """Every member's predictions for structures, and what these have that is unlike the data.

    Parameters
    ----------
    ensemble
        Ensemble whose members predict.
    structures
        ASE structures.
    names
        What to call each structure in errors.

    Returns
    -------
    dict
        Output -> ``[n_members, n, d]``.
    list
        Of each structure, as of :meth:`Ensemble.remarks`.

    Raises
    ------
    InputError
        If a structure has an element the ensemble never saw, or cannot be a graph.
    """
    ensemble.check_reads_structures()
    predictions, refusals, remarks = predictions_where_possible(
        ensemble, check_structures(structures)
    )
    names = structure_names(len(structures)) if names is None else names
    refused = [f"{name}: {why}" for name, why in zip(names, refusals, strict=True) if why]
    if refused:
        others = f" (and {len(refused) - 1} more are refused)" if len(refused) > 1 else ""
        raise InputError(f"{refused[0]}{others}")
    return predictions, remarks


def predictions_where_possible(
    ensemble: Ensemble, structures: Sequence[Atoms], refusals: Sequence[str | None] | None = None
) -> tuple[dict[str, Floats], list[str | None], list[str]]:
    """Every member's predictions, NaN for structures that have none; why they have none.

    Parameters
    ----------
    ensemble
        An ensemble that reads structures.
    structures
        ASE structures.
    refusals
        Why structures are not to be predicted, where that is known.

    Returns
    -------
    dict
        Output -> ``[n_members, n, d]``, of the calibrated targets and their noise.
    list
        Reason for each structure; None for those that are predicted.
    list
        What the training data have nothing like, of :meth:`Ensemble.remarks`.
    """
    reasons = list(refusals or [None] * len(structures))

    def graphs() -> Iterator[Data]:
        for i, atoms in enumerate(structures):
            if reasons[i] is None:
                try:
                    yield ensemble.graphs.graph(atoms)
                except InputError as error:
                    reasons[i] = str(error)

    found, said = graph_predictions(ensemble, graph_batches(graphs(), BUDGET))
    predicted = np.array([reason is None for reason in reasons], dtype=bool)
    if not predicted.any():  # any structure shows what the outputs are
        found, _ = graph_predictions(ensemble, [ensemble.batch_of(ensemble.graphs.example)])
    n_atoms = np.array([len(atoms) for atoms in structures], dtype=np.int64)
    whole = {}
    for name, values in found.items():
        target = ensemble.manifest.targets.get(name.removesuffix(NOISE_SUFFIX))
        if target is None:
            continue  # forces that nobody knows
        rows = target.rows_of(predicted, n_atoms)
        whole[name] = np.full((len(values), len(rows), values.shape[2]), np.nan)
        whole[name][:, rows] = values[:, : rows.sum()]
    notes = np.full(len(structures), "", dtype=object)
    notes[predicted] = said
    return whole, reasons, ensemble.remarks(notes.tolist(), whole, n_atoms)


def store_predictions(
    ensemble: Ensemble, store: GraphStore, split: str | None = None
) -> tuple[list[GraphSplit], dict[str, Floats], list[str]]:
    """The splits of a store that hold graphs, and every member's predictions for them in turn.

    As for :func:`splits_of`; the predictions are output -> ``[n_members, n, d]``. With them come
    the :meth:`Ensemble.remarks` on each structure.
    """
    splits, said = splits_of(ensemble, store, split), list[str]()
    found = []
    for one in splits:
        batches = ensemble.branches.given_to(split_batches(one, BUDGET), store)
        predictions, notes = graph_predictions(ensemble, batches)
        found.append(predictions)
        said += notes
    joined = {name: np.concatenate([one[name] for one in found], axis=1) for name in found[0]}
    n_atoms = np.concatenate([one.n_atoms for one in splits])
    return splits, joined, ensemble.remarks(said, joined, n_atoms)


def splits_of(ensemble: Ensemble, store: GraphStore, split: str | None = None) -> list[GraphSplit]:
    """The splits of a store that hold graphs.

    Parameters
    ----------
    ensemble
        Ensemble that is to predict them.
    store
        Made with the ensemble's cutoff and `max_neighbours`.
    split
        Name of the one that is wanted; all in the order of the store if None.

    Raises
    ------
    InputError
        If the store does not fit the ensemble, or has no such split or nothing in it.
    """
    check_store(store, ensemble.manifest)
    ensemble.branches.check_store(store)
    splits = [store[name] for name in (store.splits if split is None else [split])]
    splits = [one for one in splits if len(one) > 0]
    if not splits:
        raise InputError(f"{store.path}: {split or 'the store'} holds no structures to predict")
    return splits


def graph_predictions(
    ensemble: Ensemble, batches: Iterable[Batch]
) -> tuple[dict[str, Floats], list[str]]:
    """Every member's predictions for graphs, and what each has that the training data do not have.

    Parameters
    ----------
    ensemble
        Ensemble whose members predict.
    batches
        Graphs as the members read them, with their branch where there are several.

    Returns
    -------
    dict
        Output -> ``[n_members, n, d]``.
    list
        Of each graph, as of :meth:`Applicability.notes`.
    """
    notes: list[str] = []

    def noted() -> Iterator[Batch]:
        for batch in batches:
            notes.extend(ensemble.applicability.notes(batch))
            yield batch

    return join_members(predict_together(ensemble.models, noted(), ensemble.device)), notes
