"""Measures of doubt about structures, and how well they tell errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch_geometric.data import Batch

from hydragnn_flow import Ensemble, GraphStore
from hydragnn_flow.ensemble.predictions.inputs import BUDGET, graph_batches
from hydragnn_flow.models.heads import pool
from hydragnn_flow.training.predict import split_batches

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Doubt:
    """Errors of energies per atom of some structures, and what was known of them before."""

    kind: NDArray[np.str_]
    """Kind of each structure, ``[n]``."""
    error: Floats
    """Absolute error of the energy [eV/atom], as all arrays below ``[n]``."""
    std: Floats
    """Standard deviation of the energy [eV/atom]."""
    held: NDArray[np.bool_]
    """True where the 90 % interval holds the energy."""
    flagged: NDArray[np.bool_]
    disagreement: Floats
    """Members' disagreement, 1 is the largest that is usual in the calibration data."""
    others: Mapping[str, Floats]
    """Other measures of doubt by name [eV/atom]."""


def doubt(run: str, structures: Sequence[Atoms], kinds: Sequence[str], energies: Floats) -> Doubt:
    """Predict structures with the ensemble of a run, and compare with their energies [eV]."""
    ensemble = Ensemble.load(run)
    n_atoms = np.array([len(atoms) for atoms in structures])
    found = ensemble.predict(structures, members=True).graphs
    members = found.filter(like="energy_member_").to_numpy().T
    return Doubt(
        np.array(kinds),
        np.abs(found["energy_mean"].to_numpy() - energies) / n_atoms,
        found["energy_std"].to_numpy() / n_atoms,
        ((found["energy_lo"] <= energies) & (energies <= found["energy_hi"])).to_numpy(),
        found["flagged"].to_numpy(bool),
        found["disagreement"].to_numpy(),
        {
            "spread": found["energy_spread"].to_numpy() / n_atoms,
            "committee": members.std(axis=0) / n_atoms,
            "LLPR": last_layer(ensemble, GraphStore.open(f"{run}/store.gs"), structures),
        },
    )


def last_layer(ensemble: Ensemble, store: GraphStore, structures: Sequence[Atoms]) -> Floats:
    """Uncertainty by the last layers' features, the root mean square of all members'.

    Bigi, Chong, Ceriotti and Grasselli, Mach. Learn.: Sci. Technol. 5, 045018 (2024): the variance
    is α² fᵀ (FᵀF / n + ς²)⁻¹ f, with the mean features F of n training structures and f of one.
    The validation split gives α, and ς² is a millionth of the features' mean square.
    """
    graphs = map(ensemble.graphs.graph, structures)
    batches = [
        list(split_batches(store["trainset"], BUDGET)),
        list(split_batches(store["valset"], BUDGET)),
        list(graph_batches(graphs, BUDGET)),
    ]
    variances = []
    for model in ensemble.models:
        with torch.no_grad():
            seen, valued, found = (
                torch.cat([_means(model, batch) for batch in some]).double().numpy()
                for some in batches
            )
        precision = seen.T @ seen / len(seen)
        ridge = 1e-6 * np.trace(precision) / len(precision)
        inverse = np.linalg.inv(precision + ridge * np.eye(len(precision)))
        variances.append([np.einsum("ni,ij,nj->n", of, inverse, of) for of in (valued, found)])
    of_valued, of_found = (np.sqrt(np.mean(of, axis=0)) for of in zip(*variances, strict=True))
    table = ensemble.predict(store, split="valset").graphs
    error = table["energy_error"].to_numpy() / store["valset"].n_atoms
    return np.asarray(np.sqrt(np.mean((error / of_valued) ** 2)) * of_found)


def _means(model: Any, batch: Batch) -> torch.Tensor:
    return pool(model.node_features(batch), batch.batch, batch.num_graphs, "mean")


def rejected_area(error: Floats, doubts: Floats) -> float:
    """Mean error of those left while the most doubtful are rejected in turn, over that of all.

    It is one where the doubt says nothing.
    """
    left = error[np.argsort(doubts, kind="stable")]
    means = np.cumsum(left) / np.arange(1, len(left) + 1)
    return float(means.mean() / error.mean())


def rank_correlation(error: Floats, doubts: Floats) -> float:
    """Spearman's rank correlation of errors and doubts."""
    return float(spearmanr(error, doubts).statistic)


def worst_tenth(error: Floats, std: Floats) -> float:
    """Median of standard deviation over error, of the tenth with the largest errors."""
    worst = np.argsort(error)[-max(len(error) // 10, 1) :]
    return float(np.median(std[worst] / error[worst]))
