"""Predictions for any number of structures, a thousand at a time."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from ase import Atoms
from numpy.typing import ArrayLike, NDArray
from torch_geometric.data import Batch

from hydragnn_flow.data import GraphSplit, GraphStore, Manifest
from hydragnn_flow.data.store.statistics import target_array
from hydragnn_flow.ensemble.applicability import are_noted, joined_notes
from hydragnn_flow.ensemble.inputs import BUDGET, check_structures, current
from hydragnn_flow.ensemble.labels import (
    atoms_of,
    in_components,
    keys_of_label,
    label_if_known,
)
from hydragnn_flow.ensemble.member_predictions import (
    graph_predictions,
    predictions_where_possible,
    splits_of,
)
from hydragnn_flow.ensemble.predictions_table import (
    DATA_SET,
    GRAPH_ID,
    Predictions,
    build_tables,
)
from hydragnn_flow.ensemble.records import CHUNK, Record, chunks, columns_of, fault_of
from hydragnn_flow.ensemble.structure_files import Files, Piece, Progress, open_path
from hydragnn_flow.ensemble.uncertainty import Distribution, Floats
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.stress import STRESS
from hydragnn_flow.training.device import usable_device
from hydragnn_flow.training.predict import split_batches

if TYPE_CHECKING:
    from hydragnn_flow.ensemble.ensemble import Ensemble

Predictable = Atoms | Sequence[Atoms] | str | Path | GraphStore


class Chunk(NamedTuple):
    """Some structures that were predicted together."""

    tables: Predictions
    structures: list[Atoms] | None
    """The structures, where they do not come from a store."""
    without: int
    """How many of them could not be predicted."""
    unlike: int
    """How many of the others are unlike the data that the ensemble was made with."""


def predict_chunks(
    ensemble: Ensemble,
    data: Predictable,
    *,
    split: str | None = None,
    members: bool = False,
    device: str | torch.device = "cpu",
    say: Callable[[str], None] = print,
    progress: Progress = lambda done, total: None,
    but: Collection[Path] = (),
) -> Iterator[Chunk]:
    """Predict structures in chunks, so that memory does not grow with their number.

    Parameters and errors are those of :meth:`Ensemble.predict`, whose result is all chunks joined.
    ``progress`` is told how far the input is read. Of a directory, the files ``but`` are not read.
    """
    opened: Predictable | Files = data
    if isinstance(data, (str, os.PathLike)):
        opened = open_path(Path(data), ensemble.manifest, split, but)
    ensemble = on_device(ensemble, device)
    if isinstance(opened, GraphStore):
        yield from chunks_of_store(ensemble, opened, split, None, members, progress)
        return
    if split is not None:
        raise InputError("structures have no splits; leave split out")
    ensemble.check_reads_structures()
    if isinstance(opened, Files):
        records = opened.records(say, progress)
    else:
        records = (Record(current(atoms)) for atoms in check_structures(opened))
    yield from chunks_of_records(ensemble, records, members)


def chunks_of_records(
    ensemble: Ensemble, records: Iterable[Record], members: bool
) -> Iterator[Chunk]:
    """Predict structures, which are numbered from 0.

    Parameters
    ----------
    ensemble
        An ensemble that reads structures.
    records
        The structures.
    members
        Whether to give every member's prediction too.
    """
    first = 0
    for some in chunks(records):
        yield _of_structures(ensemble, some, first, members)
        first += len(some)


def chunks_of_store(
    ensemble: Ensemble,
    store: GraphStore,
    split: str | None,
    pieces: Sequence[Piece] | None,
    members: bool,
    progress: Progress = lambda done, total: None,
) -> Iterator[Chunk]:
    """Predict graphs of a store.

    Parameters
    ----------
    ensemble
        An ensemble.
    store, split
        As for :func:`~hydragnn_flow.ensemble.member_predictions.splits_of`.
    pieces
        Which of its graphs; all if None.
    members
        Whether to give every member's prediction too.
    progress
        Told how far the store is read.

    Raises
    ------
    InputError
        As :func:`~hydragnn_flow.ensemble.member_predictions.splits_of`.
    """
    splits = {one.name: one for one in splits_of(ensemble, store, split)}
    ranges = [
        (splits[name], first, len(splits[name]) if stop is None else stop)
        for name, first, stop in ([Piece(name) for name in splits] if pieces is None else pieces)
    ]
    total, done = sum(stop - first for _, first, stop in ranges), 0
    for one, first, last in ranges:
        for start in range(first, last, CHUNK):
            progress(done, total)
            stop = min(start + CHUNK, last)
            named = {"split": [one.name] * (stop - start)} if len(splits) > 1 else {}
            yield _of_graphs(ensemble, store, one, start, stop, named, members)
            done += stop - start


def _of_structures(ensemble: Ensemble, records: list[Record], first: int, members: bool) -> Chunk:
    structures = [record.found.atoms for record in records]
    predictions, refusals, unlike = predictions_where_possible(
        ensemble, structures, [fault_of(record) for record in records]
    )
    n_atoms = np.array([len(atoms) for atoms in structures], dtype=np.int64)
    numbers = np.concatenate([atoms.numbers for atoms in structures])
    predicted = ensemble.distributions(predictions, n_atoms, numbers)
    references, doubts = _labels(ensemble, records, predicted)
    missing, lost = missing_predictions(predicted, n_atoms, ensemble.manifest)
    notes = [
        refusal or "; ".join(filter(None, remarks))
        for refusal, *remarks in zip(refusals, unlike, missing, doubts, strict=True)
    ]
    lost |= np.array([refusal is not None for refusal in refusals], dtype=bool)
    flagged = lost | are_noted(unlike)
    tables = build_tables(
        columns_of(records, first) | _told(ensemble, len(records)),
        n_atoms,
        ensemble.manifest.targets,
        predicted,
        references,
        ensemble.coverage,
        ensemble.by_number(predictions) if members else None,
        notes,
        flagged.tolist(),
    )
    return Chunk(tables, structures, int(lost.sum()), int((flagged & ~lost).sum()))


def _of_graphs(
    ensemble: Ensemble,
    store: GraphStore,
    one: GraphSplit,
    start: int,
    stop: int,
    named: Mapping[str, list[str]],
    members: bool,
) -> Chunk:
    labels: dict[str, list[Floats]] = {
        name: [] for name in ensemble.calibrations if name in store.manifest.targets
    }
    numbers: list[NDArray[np.int64]] = []
    batches = _keeping(labels, numbers, split_batches(one, BUDGET, start, stop), store)
    predictions, said = graph_predictions(ensemble, ensemble.branches.given_to(batches, store))
    n_atoms = one.n_atoms[start:stop]
    data_sets = ensemble.branches.data_sets_of(store, [one])
    data_sets = None if data_sets is None else data_sets[start:stop]
    predicted = ensemble.distributions(
        predictions, n_atoms, np.concatenate(numbers) if numbers else None, data_sets
    )
    unlike = ensemble.remarks(said, predictions, n_atoms)
    missing, lost = missing_predictions(predicted, n_atoms, ensemble.manifest)
    flagged = lost | are_noted(unlike)
    about: dict[str, ArrayLike] = {**named, GRAPH_ID: one.graph_id[start:stop]}
    if data_sets is not None:
        about[DATA_SET] = data_sets
    tables = build_tables(
        about,
        n_atoms,
        ensemble.manifest.targets,
        predicted,
        {
            name: in_components(np.concatenate(found), name, predicted[name].mean.shape[1])
            for name, found in labels.items()
        },
        ensemble.coverage,
        ensemble.by_number(predictions) if members else None,
        joined_notes(unlike, missing),
        flagged.tolist(),
    )
    return Chunk(tables, None, int(lost.sum()), int((flagged & ~lost).sum()))


def _told(ensemble: Ensemble, n: int) -> dict[str, list[str]]:
    return {} if ensemble.data_set is None else {DATA_SET: [ensemble.data_set] * n}


def _keeping(
    labels: Mapping[str, list[Floats]],
    numbers: list[NDArray[np.int64]],
    batches: Iterable[Batch],
    store: GraphStore,
) -> Iterator[Batch]:
    for batch in batches:
        if atoms_of(store.manifest):
            numbers.append(batch.x[:, 0].numpy().astype(np.int64))
        for name, found in labels.items():
            found.append(target_array(batch[name].numpy(), store.manifest.targets[name]))
        yield batch


def _labels(
    ensemble: Ensemble, records: Sequence[Record], predicted: Mapping[str, Distribution]
) -> tuple[dict[str, Floats], list[str]]:
    """True values of each target, NaN where unknown; what is wrong with each structure's labels."""
    references, doubts = {}, [""] * len(records)
    for name, values in predicted.items():
        described, keys = ensemble.manifest.targets[name], keys_of_label(ensemble.manifest, name)
        labels = []
        for i, record in enumerate(records):
            label, wrong = label_if_known(record.found, name, described, keys, values.mean.shape[1])
            labels.append(label)
            doubts[i] = "; ".join(filter(None, (doubts[i], wrong)))
        references[name] = np.concatenate(labels)
    return references, doubts


def missing_predictions(
    predicted: Mapping[str, Distribution], n_atoms: NDArray[np.int64], manifest: Manifest
) -> tuple[list[str], NDArray[np.bool_]]:
    """Which targets of each structure have no finite prediction.

    Returns
    -------
    list of str
        In words; empty where all have one.
    array of bool
        Whether one has none that should: a structure that is not periodic has no stress.
    """
    lost = np.zeros(len(n_atoms), dtype=bool)
    of_atom = np.repeat(np.arange(len(n_atoms)), n_atoms)
    notes: list[list[str]] = [[] for _ in n_atoms]
    for name, values in predicted.items():
        rows = np.flatnonzero(~np.isfinite(values.mean).all(axis=1))
        if manifest.targets[name].level == "node":
            rows = np.unique(of_atom[rows])
        if name != STRESS:
            lost[rows] = True
        word = (
            "no stress, as it is not periodic in three directions"
            if name == STRESS
            else f"its {name} is not finite"
        )
        for row in rows.tolist():
            notes[row].append(word)
    return ["; ".join(words) for words in notes], lost


def on_device(ensemble: Ensemble, device: str | torch.device) -> Ensemble:
    """The ensemble, or a copy whose networks are on another device."""
    there = usable_device(device)
    if there == ensemble.device:
        return ensemble
    return replace(
        ensemble, models=tuple(copy.deepcopy(model).to(there) for model in ensemble.models)
    )
