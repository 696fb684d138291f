"""What models derive from the training split."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.columns import Column
from hydragnn_flow.data.store.manifest import Statistics, Target, TargetStatistics

_NO_SPREAD = 1e-12


def training_statistics(columns: Mapping[str, Column], targets: Mapping[str, Target]) -> Statistics:
    """Statistics of the training split.

    Parameters
    ----------
    columns
        The training split, at least one graph.
    targets
        The keys among them that are labels.
    """
    atoms = columns["x"].counts
    degree = _in_degrees(columns)
    values = {name: target_array(columns[name], target) for name, target in targets.items()}
    element_energies: dict[int, float] = {}
    residual_std = 1.0
    numbers = atomic_numbers(columns)
    if "energy" in targets and targets["energy"].level == "graph" and numbers is not None:
        element_energies, per_atom = _composition_fit(numbers, atoms, values["energy"][:, 0])
        residual_std = _std(per_atom[:, None])[0]
    forces_rms = None
    if "forces" in targets:
        forces_rms = float(np.sqrt(np.mean(values["forces"] ** 2)))
    return Statistics(
        degree_histogram=np.bincount(degree).tolist(),
        avg_num_neighbors=float(columns["edge_index"].counts.sum() / atoms.sum()),
        element_energies=element_energies,
        energy_per_atom_std=residual_std,
        forces_rms=forces_rms,
        targets={
            name: TargetStatistics(mean=value.mean(axis=0).tolist(), std=_std(value))
            for name, value in values.items()
        },
    )


def atomic_numbers(columns: Mapping[str, Column]) -> NDArray[np.int64] | None:
    """Atomic number of each atom, [n_atoms]; None where ``x[:, 0]`` is something else."""
    values = np.asarray(columns["x"].values)[:, 0]
    numbers = values.astype(np.int64)
    plausible = (numbers == values) & (numbers >= 1) & (numbers <= 118)
    return numbers if plausible.all() else None


def target_array(column: Column, target: Target) -> NDArray[np.float64]:
    """A target as float64 [n_graphs or n_atoms, dim], to sum without loss."""
    return np.asarray(column.values, dtype=np.float64).reshape(-1, target.dim)


def _in_degrees(columns: Mapping[str, Column]) -> NDArray[np.int64]:
    """Number of edges that arrive at each atom, [n_atoms of the split]."""
    edges, nodes = columns["edge_index"], columns["x"]
    receivers = np.asarray(edges.values[1], dtype=np.int64)
    global_receivers = receivers + np.repeat(nodes.starts(), edges.counts)
    return np.bincount(global_receivers, minlength=int(nodes.counts.sum()))


def _composition_fit(
    numbers: NDArray[np.int64], atoms: NDArray[np.int64], energies: NDArray[np.float64]
) -> tuple[dict[int, float], NDArray[np.float64]]:
    """Energy of each element by least squares, and what is left over per atom.

    Where compositions do not determine the elements' energies (one stoichiometry only), the
    solution of least norm is taken: it shares the energy out instead of inventing differences.
    """
    elements, kind = np.unique(numbers, return_inverse=True)
    composition = np.zeros((len(atoms), len(elements)))
    np.add.at(composition, (np.repeat(np.arange(len(atoms)), atoms), kind), 1.0)
    # Weighted to energies per atom, so that large cells do not decide alone.
    fit, *_ = np.linalg.lstsq(composition / atoms[:, None], energies / atoms, rcond=None)
    left_over = (energies - composition @ fit) / atoms
    return {int(z): float(e) for z, e in zip(elements, fit, strict=True)}, left_over


def _std(values: NDArray[np.float64]) -> list[float]:
    """Standard deviation of each column; 1 where there is none to speak of."""
    std = values.std(axis=0)
    # Relative too: a constant of -9391 eV has a rounding spread far above any absolute floor.
    floor = np.maximum(_NO_SPREAD, np.abs(values).max(axis=0) * _NO_SPREAD)
    return [float(s) for s in np.where(std > floor, std, 1.0)]
