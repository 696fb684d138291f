"""Active learning: structures to label next, doubtful ones that differ from each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms

from hydragnn_flow.ensemble.ensemble import Ensemble
from hydragnn_flow.ensemble.predictions.inputs import (
    BUDGET,
    check_structures,
    current,
    graph_batches,
)
from hydragnn_flow.ensemble.predictions.member_predictions import predict_all
from hydragnn_flow.ensemble.predictions.structure_files import Record, by_name
from hydragnn_flow.ensemble.predictions.table import extended_xyz
from hydragnn_flow.ensemble.uncertainty.distribution import Floats
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import write_text
from hydragnn_flow.models import Model
from hydragnn_flow.models.heads import pool
from hydragnn_flow.training.loading import moved


@dataclass(frozen=True)
class Selection:
    """Structures selected for labelling, as indices into the list that they were chosen from."""

    indices: list[int]
    """Indices of the selected structures in the list, in the order of selection."""
    disagreement: Floats
    """Disagreement of the members about each structure of the list, ``[n]``; see
    :meth:`.Applicability.disagreement`."""


def select_structures(
    ensemble: Ensemble,
    structures: Sequence[Atoms],
    n: int,
    *,
    names: Sequence[str] | None = None,
) -> Selection:
    """Select structures to label: members disagree about them, and they differ from each other.

    The structure with the largest disagreement is selected first. Each next structure has the
    largest product of its disagreement and its distance from the nearest selected structure.
    Distances are between the mean node features of all members. Therefore only one of several
    neighbouring frames of a trajectory is selected early, and copies of selected structures come
    last.

    Parameters
    ----------
    ensemble
        Ensemble of potentials or of any other networks.
    structures
        Structures from which to choose.
    n
        Number of structures to select.
    names
        Name of each structure in error messages.

    Raises
    ------
    InputError
        If there are fewer than ``n`` structures, or any structure cannot be predicted.
    """
    structures = check_structures(structures)
    if not 0 < n <= len(structures):
        raise InputError(
            f"{n} of {len(structures)} structures cannot be selected; choose between 1 and "
            f"{len(structures)}"
        )
    records = [Record(current(atoms)) for atoms in structures]
    named = by_name(records) if names is None else dict(zip(names, records, strict=True))
    found = predict_all(ensemble, named)
    known = np.nan_to_num(found.disagreement, nan=1.0)
    chosen = farthest_points(descriptors(ensemble, structures), known, n)
    return Selection(chosen, found.disagreement)


def write_selection(
    path: Path,
    selection: Selection,
    structures: Sequence[Atoms],
    origins: Sequence[Mapping[str, Any]],
    labels: Collection[str],
) -> None:
    """Write selected structures to an extended XYZ file, in the order of selection, unlabelled.

    Parameters
    ----------
    path
        File to write, whole or not at all.
    selection
        Indices and disagreement that :func:`select_structures` returned.
    structures
        Structures that the selection was made from.
    origins
        Values that say where each structure comes from, by name, such as `file`, and `frame`, its
        index in the file. They and `disagreement` are written with each selected structure, but
        for values that are None.
    labels
        Names of the labels to leave out; results of calculators are left out anyway.
    """
    chosen = []
    for i in selection.indices:
        atoms = structures[i].copy()  # type: ignore[no-untyped-call]  # without its calculator
        for name in labels:
            atoms.info.pop(name, None)
            atoms.arrays.pop(name, None)
        atoms.info |= {name: value for name, value in origins[i].items() if value is not None}
        atoms.info["disagreement"] = float(selection.disagreement[i])
        chosen.append(atoms)
    write_text(path, extended_xyz(chosen))


def descriptors(ensemble: Ensemble, structures: Sequence[Atoms]) -> Floats:
    """Compute a vector for each structure, the mean node features of all members, ``[n, d]``.

    The members' mean node features are joined, so d is the sum of their widths. The means change
    neither when a structure is rotated or moved, nor when its cell is repeated. The means of each
    member are shifted to a mean of zero over all structures and scaled to a mean square norm of
    one, so that members have equal weight.
    """
    means: list[list[Floats]] = [[] for _ in ensemble.models]
    for batch in graph_batches(map(ensemble.graphs.graph, structures), BUDGET):
        batch = moved(batch, ensemble.device)
        for model, of_model in zip(ensemble.models, means, strict=True):
            assert isinstance(model, Model)
            with torch.no_grad():
                nodes = model.node_features(batch)
            mean = pool(nodes, batch.batch, batch.num_graphs, "mean")
            of_model.append(mean.cpu().numpy().astype(np.float64))
    return np.concatenate([_scaled(np.concatenate(of_model)) for of_model in means], axis=1)


def farthest_points(points: Floats, weights: Floats, n: int) -> list[int]:
    """Choose ``n`` points of large weight that lie far apart, and return their indices.

    The point with the largest weight comes first. Each next point has the largest product of its
    weight ``[n_points]`` and its distance from the nearest chosen point; among equals, the first
    point is chosen (Dyer and Frieze, Oper. Res. Lett. 3, 285 (1985)). With equal weights, the
    largest distance of a point from its nearest chosen point is at most twice the smallest possible
    for n chosen points. ``points`` is ``[n_points, d]``.
    """
    chosen: list[int] = []
    gain = np.array(weights)
    nearest = np.full(len(points), np.inf)
    while len(chosen) < n:
        gain[chosen] = -1.0
        chosen.append(int(gain.argmax()))
        nearest = np.minimum(nearest, np.linalg.norm(points - points[chosen[-1]], axis=1))
        gain = weights * nearest
    return chosen


def _scaled(features: Floats) -> Floats:
    centred = features - features.mean(axis=0)
    size = np.sqrt(np.square(centred).sum(axis=1).mean())
    return np.asarray(centred / size if size > 0 else centred)
