"""Terms of the training loss: their targets, scales and weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.data import GraphStore, Manifest
from hydragnn_flow.data.splits import TRAIN
from hydragnn_flow.data.store.manifest import LabelStatistics
from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.models.stress import STRESS, VOIGT

STRESS_DIM = len(VOIGT)
"""Number of stress components that a potential predicts."""


@dataclass(frozen=True)
class Term:
    """One term of the loss: the errors of one target."""

    target: str
    level: str
    weight: float
    scale: tuple[tuple[float, ...], ...]
    """Scale of each branch by which the residual of each component is divided."""
    per_atom: bool = False
    """True if the residual of a graph is first divided by its number of atoms."""


def terms_of(network: NetworkConfig, manifest: Manifest) -> list[Term]:
    """Return the terms of the loss; their weights add up to one.

    For a potential these are the terms with a weight above zero. Otherwise every task has a term. A
    term of weight zero is not trained on, but its errors are reported.

    Parameters
    ----------
    network
        Configuration with the weights of tasks, or of a potential's energy, forces and stress.
    manifest
        Manifest of the training store; its statistics of the training split scale the residuals.
    """
    potential = network.Architecture.enable_interatomic_potential
    return (_potential_terms if potential else _tasks)(network, manifest)


def branch_weights(network: NetworkConfig, manifest: Manifest) -> list[float] | None:
    """Return the loss weight of each branch's graphs, with mean one; None if all are equal.

    Raises
    ------
    InputError
        If `Training.branch_weights` names no data set of the store.
    """
    given = network.Training.branch_weights
    if not given:
        return None
    names = manifest.branch_names or [str(n) for n in range(len(given))]
    n_branches = network.branches
    if n_branches < 2 or len(names) != n_branches:
        raise InputError(
            f"network: Training.branch_weights needs a network with a branch for each data set, "
            f"and Architecture.output_heads has {n_branches}; remove the weights"
        )
    if unknown := given.keys() - set(names):
        raise InputError(
            f"network: Training.branch_weights names {min(unknown)!r}, but the data sets are "
            f"{', '.join(names)}; correct the name"
        )
    weights = [given.get(name, 1.0) for name in names]
    mean = sum(weights) / n_branches
    return [weight / mean for weight in weights]


def atoms_per_structure(network: NetworkConfig, manifest: Manifest) -> list[float] | None:
    """Return the mean number of atoms per structure of each branch.

    The result is None if there is only one branch or the store has no branches. A branch without
    training structures gets the mean over all structures.
    """
    known = manifest.statistics.by_branch
    if network.branches < 2 or not known:
        return None
    train = manifest.splits[TRAIN]
    sizes = {branch: found.atoms / found.graphs for branch, found in known.items()}
    of_all = train.atoms / train.graphs
    return [sizes.get(branch, of_all) for branch in range(network.branches)]


def check_cells(store: GraphStore) -> None:
    """Raise an error if stresses cannot be learnt from some graphs.

    Such graphs would count in the means over a batch without adding to them.

    Raises
    ------
    StoreError
        If the cell of a training or validation graph has no volume.
    """
    for split in (store["trainset"], store["valset"]):
        volumes = np.linalg.det(split.column("cell").reshape(-1, 3, 3).astype(np.float64))
        if not volumes.all():
            raise StoreError(
                f"{store.path}: {split.name} has {np.count_nonzero(volumes == 0)} graphs whose "
                f"cell has no volume, and so no stress for the network's "
                f"Architecture.stress_weight; set it to 0, or leave these graphs out"
            )


def _tasks(network: NetworkConfig, manifest: Manifest) -> list[Term]:
    asked = network.Variables_of_interest
    names = asked.output_names
    weights = _normalised(list(network.Architecture.task_weights or [1.0] * len(names)))
    branches = _of_branches(network, manifest)
    return [
        Term(name, level, weight, tuple(tuple(found.targets[name].std) for found in branches))
        for name, level, weight in zip(names, asked.type, weights, strict=True)
    ]


def _potential_terms(network: NetworkConfig, manifest: Manifest) -> list[Term]:
    architecture, branches = network.Architecture, _of_branches(network, manifest)
    # Energies [eV] and forces [eV/Å] share a scale, so that their weights mean what they mean in
    # HydraGNN, and the loss begins at about one. With a scale of their own, energies of a molecule
    # near its minimum, which hardly vary, would weigh ten thousand times as much as its forces.
    scales = [
        (found.forces_rms if architecture.force_weight > 0 else None)
        or found.energy_per_atom_std
        or 1.0
        for found in branches
    ]
    energy, forces = (tuple((scale,) * dim for scale in scales) for dim in (1, 3))
    candidates = [
        Term("energy", "graph", architecture.energy_weight, energy),
        Term("energy", "graph", architecture.energy_peratom_weight, energy, per_atom=True),
        Term("forces", "node", architecture.force_weight, forces),
    ]
    if architecture.stress_weight > 0:
        spreads = tuple((_stress_rms(found),) * STRESS_DIM for found in branches)
        candidates.append(Term(STRESS, "graph", architecture.stress_weight, spreads))
    weights = _normalised([term.weight for term in candidates])
    return [
        Term(term.target, term.level, weight, term.scale, term.per_atom)
        for term, weight in zip(candidates, weights, strict=True)
        if weight > 0
    ]


def _of_branches(network: NetworkConfig, manifest: Manifest) -> Sequence[LabelStatistics]:
    return manifest.statistics.of_branches(network.branches)


def _stress_rms(statistics: LabelStatistics) -> float:
    """Return the root mean square of the stress components over training structures."""
    moments = statistics.targets[STRESS]
    squares = [
        mean**2 + std**2
        for mean, std in zip(moments.mean, moments.std, strict=True)
        # The manifest stores a spread of one for a component that does not vary.
        if std != 1.0
    ]
    return math.sqrt(sum(squares) / len(squares)) if squares else 1.0


def _normalised(weights: list[float]) -> list[float]:
    total = sum(abs(weight) for weight in weights)
    return [weight / total for weight in weights]
