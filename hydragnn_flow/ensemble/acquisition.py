"""Structures worth labelling next: the ensemble is unsure of them, and they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_flow.ensemble.ensemble import Ensemble
from hydragnn_flow.ensemble.frames import extended_xyz
from hydragnn_flow.ensemble.uncertainty import Floats, combine
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import write_text
from hydragnn_flow.models import HydraModel

_POOL = 4
"""Candidates, the most uncertain structures, for each one that is to be chosen."""


@dataclass(frozen=True)
class Selection:
    """Structures chosen from many."""

    indices: list[int]
    """Places of the chosen structures in the input, in the order of choice."""
    uncertainties: Floats
    """Disagreement of the members about every structure of the input; see
    :func:`~hydragnn_flow.ensemble.acquisition.disagreement`."""


def select_structures(
    ensemble: Ensemble,
    structures: Sequence[Atoms],
    n: int,
    *,
    files: Sequence[str] | None = None,
) -> Selection:
    """Choose structures to label: uncertain, and different from each other.

    Candidates are the ``4 n`` structures about which the members disagree most. The most uncertain
    is chosen first, then always the candidate farthest from all chosen before (Gonzalez, Theor.
    Comput. Sci. 38, 293 (1985)), by the mean node features of all members.

    Parameters
    ----------
    ensemble
        Ensemble of potentials or of any other networks.
    structures
        Structures to choose from.
    n
        Number of structures to choose.
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


def write_selection(
    path: Path, selection: Selection, structures: Sequence[Atoms], files: Sequence[str]
) -> None:
    """Write the chosen structures as extended XYZ, in the order of choice and without labels.

    Parameters
    ----------
    path
        File to write, whole or not at all.
    selection
        Choice among ``structures``.
    structures
        Structures that were chosen from.
    files
        File of each structure. Chosen structures are written with it as `file`, their number in it
        as `frame`, and their `uncertainty`.
    """
    chosen = []
    for i in selection.indices:
        atoms = structures[i].copy()  # type: ignore[no-untyped-call]  # without its calculator
        atoms.info["file"] = files[i]
        atoms.info["frame"] = files[:i].count(files[i])
        atoms.info["uncertainty"] = float(selection.uncertainties[i])
        chosen.append(atoms)
    write_text(path, extended_xyz(chosen))


def disagreement(
    ensemble: Ensemble, members: Mapping[str, Floats], n_atoms: Sequence[int]
) -> Floats:
    """Disagreement of the members about each structure, ``[n]``; the mean of all is 1.

    For each target it is the standard deviation between members: per atom for extensive targets,
    of the atom where it is largest for node targets. Components are added in squares. Each target
    is divided by its mean over all structures, and targets are averaged.

    Parameters
    ----------
    ensemble
        Ensemble whose weights and calibrated targets count.
    members
        Predictions of every member, output -> ``[n_members, n, d]``.
    n_atoms
        Number of atoms of each structure.
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
    """Mean node features of all members for each structure, ``[n, sum of their widths]``.

    They depend neither on the frame nor on how often a cell is repeated. Each member's are scaled
    to a mean square distance of one from their centre, so that all members count alike.
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

    Ties go to the first. The largest distance of a point to the nearest chosen one is at most twice
    the smallest possible.
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
