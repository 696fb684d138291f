"""Structures worth labelling next: the ensemble is unsure of them, and they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_flow.ensemble.ensemble import Ensemble
from hydragnn_flow.ensemble.uncertainty import Floats, combine
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import HydraModel

_POOL = 4
"""Structures among which one is chosen, the most uncertain: diversity costs little uncertainty."""


@dataclass(frozen=True)
class Selection:
    """Structures chosen from many, in the order of choice."""

    indices: list[int]
    """Their places in the input."""
    uncertainties: Floats
    """Of every structure of the input: the members' disagreement, averaged over the targets, each
    relative to its mean over the input; 1 is average."""


def select_structures(
    ensemble: Ensemble,
    structures: Sequence[Atoms],
    n: int,
    *,
    files: Sequence[str] | None = None,
) -> Selection:
    """Choose structures to label: uncertain, and different from each other.

    The uncertain ones are the ``4 n`` about which the members disagree most. Of these the most
    uncertain is chosen first, then always the one that is farthest from all chosen before (farthest
    points, Gonzalez, Theor. Comput. Sci. 38, 293 (1985)). The distance is that of the mean node
    features of all members.

    Parameters
    ----------
    ensemble
        Any, of potentials or properties.
    structures
        To choose from.
    n
        How many.
    files
        File of each structure, for errors.

    Raises
    ------
    InputError
        If there are fewer than ``n`` structures, or if one cannot be predicted.
    """
    if not 0 < n <= len(structures):
        raise InputError(
            f"{n} of {len(structures)} structures cannot be selected; choose between 1 and "
            f"{len(structures)}"
        )
    members = ensemble.structure_predictions(structures, files)
    uncertainties = disagreement(ensemble, members, [len(atoms) for atoms in structures])
    pool = np.argsort(-uncertainties, kind="stable")[: _POOL * n]
    chosen = farthest_points(descriptors(ensemble, [structures[i] for i in pool]), n)
    return Selection(pool[chosen].tolist(), uncertainties)


def disagreement(
    ensemble: Ensemble, members: Mapping[str, Floats], n_atoms: Sequence[int]
) -> Floats:
    """How much the members disagree about each structure [n], relative to the mean of all.

    The standard deviation between members of what there is one of for each structure, by its number
    of atoms for a sum over them; of what there is one of for each atom the largest. Components are
    added in squares, and targets averaged.

    Parameters
    ----------
    ensemble
        Weights of the members, and the targets that count.
    members
        Predictions of every member, output -> ``[n_members, n, d]``.
    n_atoms
        Of each structure.
    """
    sizes = np.array(n_atoms)
    of_targets = []
    for name in ensemble.calibrations:
        _, spread = combine(members[name], ensemble.weights)
        deviation = np.sqrt(np.square(spread).sum(axis=1))
        if ensemble.manifest.targets[name].level == "node":
            deviation = np.maximum.reduceat(deviation, np.cumsum(sizes) - sizes)
        elif ensemble.manifest.is_extensive(name):
            deviation = deviation / sizes
        known = np.isfinite(deviation)  # there is no stress where a cell is not periodic
        mean = deviation[known].mean() if known.any() else 0.0
        if mean > 0:
            of_targets.append(np.where(known, deviation / mean, 1.0))
    return np.mean(of_targets, axis=0) if of_targets else np.ones(len(sizes))


def descriptors(ensemble: Ensemble, structures: Sequence[Atoms]) -> Floats:
    """What the members see in each structure, ``[n, sum of their widths]``.

    The mean of the node features: it does not depend on the frame, nor on how often a cell is
    repeated. Each member's are scaled to a mean square distance of one from their centre, so that
    all count alike.
    """
    means: list[list[Floats]] = [[] for _ in ensemble.models]
    for atoms in structures:
        batch = ensemble.batch_of(atoms)
        for model, of_model in zip(ensemble.models, means, strict=True):
            assert isinstance(model, HydraModel)
            with torch.no_grad():
                nodes, _ = model.encoder(batch, batch.pos.to(model.dtype))
            of_model.append(nodes.mean(dim=0).numpy().astype(np.float64))
    return np.concatenate([_scaled(np.array(of_model)) for of_model in means], axis=1)


def farthest_points(points: Floats, n: int) -> NDArray[np.int64]:
    """Rows of ``points [n_points, d]``: the first, then always the farthest from all before.

    Of equally far ones the first. Of the distances from the points to the nearest chosen one, the
    largest is at most twice as large as it could be.
    """
    chosen = [0]
    nearest = np.full(len(points), np.inf)
    while len(chosen) < n:
        nearest = np.minimum(nearest, np.linalg.norm(points - points[chosen[-1]], axis=1))
        nearest[chosen] = -1.0
        chosen.append(int(nearest.argmax()))
    return np.array(chosen)


def _scaled(features: Floats) -> Floats:
    centred = features - features.mean(axis=0)
    size = np.sqrt(np.square(centred).sum(axis=1).mean())
    return np.asarray(centred / size if size > 0 else centred)
