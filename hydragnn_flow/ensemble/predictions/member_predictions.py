"""Predictions of all members for structures, the one iterator behind every way of predicting.

Structures and graphs of stores are predicted some at a time, so that memory does not grow with
their number. All members read each batch, so that graphs are built once. The results are every
member's predictions, with labels and remarks. Tables, evaluation and selection use these results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from ase import Atoms
from numpy.typing import NDArray
from torch_geometric.data import Batch, Data

from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.reading.split import Split, SplitPart
from hydragnn_flow.data.store.statistics import target_array
from hydragnn_flow.ensemble.applicability import are_noted, extrapolation_of, joined_notes
from hydragnn_flow.ensemble.committee import Committee
from hydragnn_flow.ensemble.predictions.inputs import BUDGET, graph_batches
from hydragnn_flow.ensemble.predictions.labels import (
    keys_of_label,
    label_of,
)
from hydragnn_flow.ensemble.predictions.structure_files import (
    Files,
    Graphs,
    Opened,
    Piece,
    Progress,
    Record,
    origins,
)
from hydragnn_flow.ensemble.predictions.table import (
    DATA_SET,
    DISAGREEMENT,
    FLAGGED,
    GRAPH_ID,
    NOTE,
    Chunk,
    Column,
    TargetValues,
    build_tables,
    with_predictions,
)
from hydragnn_flow.ensemble.uncertainty.distribution import Floats, StructureFacts
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import NOISE_SUFFIX
from hydragnn_flow.models.geometry import STRESS, in_components
from hydragnn_flow.models.leverage import LEVERAGE
from hydragnn_flow.training.predict import join_members, predict_together, split_batches

CHUNK = 1024
"""Number of structures that are predicted, laid out in tables and written together. A part of
`predict --site` begins at a multiple of this number in its file or split. So a single file or a
split has the same batches as in one process, and the same predictions to the last digit. Files of a
directory may be grouped differently into batches, and the last digits may differ."""


@dataclass(frozen=True)
class Predicted:
    """Every member's predictions for some structures, not yet combined, with true values."""

    origins: Mapping[str, Column]
    """First columns of the structures' tables, by name: the origin of each structure."""
    facts: StructureFacts
    """Properties of the structures; their data sets are those at whose levels of theory they are
    predicted."""
    members: dict[str, Floats]
    """Predictions of the members ``[n_members, n, d]`` by name of the output; NaN for structures
    that cannot be predicted."""
    labels: dict[str, Floats]
    """True values ``[n, d]`` by name of the target; NaN where unknown. Targets of a store that has
    no such labels are absent."""
    refusals: list[str]
    """Reason why each structure cannot be predicted; empty if it can be."""
    remarks: list[str]
    """Note on how each structure differs from the training data; empty if it does not."""
    disagreement: Floats
    """Members' disagreement about each structure, ``[n]``; see
    :meth:`.Applicability.disagreement`."""
    doubts: list[str]
    """Errors found in the labels of each structure, in words; empty if there are none."""
    structures: list[Atoms] | None = None
    """ASE structures in order; None for graphs of a store."""


def predict_members(
    ensemble: Committee,
    opened: Opened,
    *,
    pieces: Sequence[Piece] | None = None,
    say: Callable[[str], None] = print,
    progress: Progress = lambda done, total: None,
) -> Iterator[Predicted]:
    """Yield the predictions of every member, for at most :data:`CHUNK` structures at a time.

    Parameters
    ----------
    ensemble
        Ensemble whose members predict.
    opened
        Input as :func:`open_structures` returns it. The `graph_id` of structures of files and lists
        begins at 0.
    pieces
        Ranges of files or splits to predict; None for the whole input.
    say, progress
        Functions called with messages and with progress, as in :meth:`.Files.records`. The errors
        of that method are raised here too.
    """
    if isinstance(opened, Graphs):
        yield from _in_store(ensemble, opened, pieces, progress)
        return
    if not isinstance(opened, Files):
        records = iter(opened)
    elif pieces is None:
        records = opened.records(say, progress)
    else:
        records = (record for piece in pieces for record in opened.read(piece))
    first = 0
    while some := list(islice(records, CHUNK)):
        yield predict_records(ensemble, some, first)
        first += len(some)


def predict_all(ensemble: Committee, records: Mapping[str, Record]) -> Predicted:
    """Predict all structures with every member; raise an error if one cannot be predicted.

    Parameters
    ----------
    ensemble
        Ensemble whose members predict.
    records
        Structures by their names in error messages.

    Raises
    ------
    InputError
        If a structure has an element that the ensemble was not trained on, or cannot be a graph, or
        if the ensemble needs more than structures.
    """
    ensemble.check_reads_structures()
    found = predict_records(ensemble, list(records.values()))
    refused = [f"{name}: {why}" for name, why in zip(records, found.refusals, strict=True) if why]
    if refused:
        others = f" (and {len(refused) - 1} more are refused)" if len(refused) > 1 else ""
        raise InputError(f"{refused[0]}{others}")
    return found


def predict_graphs(
    ensemble: Committee,
    store: GraphStore,
    splits: Sequence[Split],
    origins: Mapping[str, Column],
    known: dict[str, Floats] | None = None,
) -> Predicted:
    """Predict all graphs of some splits of a store with every member.

    Parameters
    ----------
    ensemble
        Ensemble whose members predict.
    store
        Store that the ensemble can predict.
    splits
        Splits of the store, or parts of splits, in order.
    origins
        Columns that say where each graph comes from, by name.
    known
        Members' predictions ``[n_members, n, d]`` by name of the output, if they were made before;
        None to make them.
    """
    targets, of_atoms = store.manifest.targets, store.manifest.has_atoms
    labels: dict[str, list[Floats]] = {
        name: [] for name in ensemble.calibrations if name in targets
    }
    numbers: list[NDArray[np.int64]] = []

    def read() -> Iterator[Batch]:
        for batch in (batch for one in splits for batch in split_batches(one, BUDGET)):
            if of_atoms:
                numbers.append(batch.x[:, 0].numpy().astype(np.int64))
            for name, found in labels.items():
                found.append(target_array(batch[name].numpy(), targets[name]))
            yield batch

    batches = ensemble.branches.given_to(read(), store)
    members, notes = _outputs(ensemble, batches, known)
    n_atoms = np.concatenate([one.n_atoms for one in splits])
    facts = StructureFacts(
        n_atoms,
        np.concatenate(numbers) if of_atoms else None,
        ensemble.branches.data_sets_of(store, splits),
        extrapolation_of(members, ensemble.weights),
    )
    return Predicted(
        origins,
        facts,
        members,
        {
            name: in_components(np.concatenate(found), name, members[name].shape[2])
            for name, found in labels.items()
        },
        [""] * len(n_atoms),
        *ensemble.remarks(notes, members, facts),
        [""] * len(n_atoms),
    )


def predict_records(ensemble: Committee, records: Sequence[Record], first: int = 0) -> Predicted:
    """Predict structures with every member; ``refusals`` says why some cannot be predicted.

    Parameters
    ----------
    ensemble
        Ensemble that reads structures.
    records
        Structures to predict, in order.
    first
        Value of `graph_id` for the first structure.
    """
    structures = [record.atoms for record in records]
    refusals = [record.fault or "" for record in records]

    def graphs() -> Iterator[Data]:
        for i, atoms in enumerate(structures):
            if not refusals[i]:
                try:
                    yield ensemble.graphs.graph(atoms)
                except InputError as error:
                    refusals[i] = str(error)

    found, notes = _outputs(ensemble, graph_batches(graphs(), BUDGET))
    is_predicted = ~are_noted(refusals)
    if not is_predicted.any():  # any structure shows what the outputs are
        found, _ = _outputs(ensemble, [ensemble.batch_of(ensemble.graphs.example)])
    n_atoms = np.array([len(atoms) for atoms in structures], dtype=np.int64)
    members = {}
    for name, values in found.items():
        target = ensemble.manifest.targets.get(name.removesuffix(NOISE_SUFFIX))
        if target is None and name != LEVERAGE:
            continue  # forces that nobody knows
        rows = is_predicted if target is None else target.rows_of(is_predicted, n_atoms)
        members[name] = np.full((len(values), len(rows), values.shape[2]), np.nan)
        members[name][:, rows] = values[:, : rows.sum()]
    left = iter(notes)
    found_notes = [next(left) if predicted else "" for predicted in is_predicted]
    data_set = ensemble.data_set
    facts = StructureFacts(
        n_atoms,
        np.concatenate([atoms.numbers for atoms in structures]),
        None if data_set is None else np.full(len(records), data_set, dtype=object),
        extrapolation_of(members, ensemble.weights),
    )
    labels, doubts = {}, [""] * len(records)
    for name in ensemble.calibrations:
        target, keys = ensemble.manifest.targets[name], keys_of_label(ensemble.manifest, name)
        told = [label_of(record.found, name, target, keys) for record in records]
        label = np.concatenate([values for values, _ in told])
        labels[name] = in_components(label, name, members[name].shape[2])
        wrong = [f"its {why} and is left out" if why else "" for _, why in told]
        doubts = joined_notes(doubts, wrong)
    return Predicted(
        origins(records, first),
        facts,
        members,
        labels,
        refusals,
        *ensemble.remarks(found_notes, members, facts),
        doubts,
        structures,
    )


def lay_out(
    ensemble: Committee, some: Predicted, with_members: bool, with_structures: bool = False
) -> Chunk:
    """Combine members' predictions of some structures, and return them as tables.

    Parameters
    ----------
    ensemble
        Ensemble whose members predicted.
    some
        Members' predictions for some structures.
    with_members
        True to add every member's prediction to the tables.
    with_structures
        True to add structures that carry their predictions, beside the tables.
    """
    n_atoms, data_sets = some.facts.n_atoms, some.facts.data_sets
    distributions = ensemble.distributions(some.members, some.facts)
    numbers = ensemble.numbers or range(len(ensemble.models))
    targets = {
        name: TargetValues(
            ensemble.manifest.targets[name],
            found,
            some.labels.get(name),
            dict(zip(numbers, some.members[name], strict=True)) if with_members else {},
        )
        for name, found in distributions.items()
    }
    missing, is_lost = _missing(targets, n_atoms)
    is_lost |= are_noted(some.refusals)
    flagged = is_lost | are_noted(some.remarks)
    notes = joined_notes(some.remarks, missing, some.doubts)
    notes = [why or note for why, note in zip(some.refusals, notes, strict=True)]
    columns = dict(some.origins)
    if data_sets is not None:
        columns[DATA_SET] = data_sets
    judgement: dict[str, Column] = {
        NOTE: notes,
        FLAGGED: flagged,
        DISAGREEMENT: some.disagreement,
    }
    structures: list[Atoms] = []
    if with_structures and some.structures is not None:
        said = columns | judgement
        del said[GRAPH_ID]  # which a part of a prediction does not know
        structures = with_predictions(some.structures, said, targets)
    tables = build_tables(columns, n_atoms, targets, ensemble.coverage, judgement)
    return Chunk(tables, structures, int(is_lost.sum()), int((flagged & ~is_lost).sum()))


def _in_store(
    ensemble: Committee, opened: Graphs, pieces: Sequence[Piece] | None, progress: Progress
) -> Iterator[Predicted]:
    splits = {one.name: one for one in opened.splits}
    pieces = [Piece(name) for name in splits] if pieces is None else pieces
    ranges = [
        range(start, len(splits[name]) if stop is None else stop) for name, start, stop in pieces
    ]
    total, done = sum(map(len, ranges)), 0
    for (name, *_), places in zip(pieces, ranges, strict=True):
        for start in places[::CHUNK]:
            progress(done, total)
            some = np.arange(start, min(start + CHUNK, places.stop))
            where: dict[str, Column] = {"split": [name] * len(some)} if len(splits) > 1 else {}
            where[GRAPH_ID] = splits[name].graph_id[some]
            where |= splits[name].origins_of(some)
            found = predict_graphs(ensemble, opened.store, [SplitPart(splits[name], some)], where)
            for row, graph in enumerate(some.tolist()):
                masked = splits[name].masked.get(graph, {})
                for target, (value, _) in masked.items():
                    if value is not None and target in found.labels:
                        found.labels[target][row] = value  # so that it has an error to be ranked by
                if told := "; ".join(why for _, why in masked.values()):
                    found.doubts[row] = f"its label is far off, and masked in training: {told}"
            yield found
            done += len(some)


def _outputs(
    ensemble: Committee, batches: Iterable[Batch], known: dict[str, Floats] | None = None
) -> tuple[dict[str, Floats], list[str]]:
    """Return members' outputs ``[n_members, n, d]`` by name, and notes on graphs.

    The outputs are ``known`` if given.
    """
    notes: list[str] = []

    def compared() -> Iterator[Batch]:
        for batch in batches:
            notes.extend(ensemble.applicability.compare(batch))
            yield batch

    if known is None:
        known = join_members(predict_together(ensemble.models, compared(), ensemble.device))
    else:
        for _ in compared():
            pass
    return known, notes


def _missing(
    targets: Mapping[str, TargetValues], n_atoms: NDArray[np.int64]
) -> tuple[list[str], NDArray[np.bool_]]:
    """Return notes on targets without a finite prediction, and a mask of structures that lack one.

    There is a note on each structure, empty if it lacks nothing. A structure that is not periodic
    in three directions has no stress; this is noted, but the mask is False.
    """
    of_atom = np.repeat(np.arange(len(n_atoms)), n_atoms)
    notes, is_lost = [""] * len(n_atoms), np.zeros(len(n_atoms), dtype=bool)
    for name, values in targets.items():
        lacks = np.asarray(~np.isfinite(values.predicted.mean).all(axis=1))
        if values.described.level == "node":
            lacks = np.bincount(of_atom[lacks], minlength=len(n_atoms)) > 0
        word = f"its {name} is not finite"
        if name == STRESS:
            word = "no stress, as it is not periodic in three directions"
        else:
            is_lost |= lacks
        notes = joined_notes(notes, [word if lack else "" for lack in lacks])
    return notes, is_lost
