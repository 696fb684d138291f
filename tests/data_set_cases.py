"""Two data sets of alloys, the second at another level of theory: 1,000 eV per atom away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import GraphStore, prepare_store
from hydragnn_flow.data.sources.opening import open_source
from hydragnn_flow.data.store.manifest import LabelStatistics

CUTOFF = 4.0
HEADS = {"num_headlayers": 1, "dim_headlayers": [12]}
FAR, PLAIN = "far", "plain"


def alloys(n: int, **keys: Any) -> dict[str, Any]:
    return {"format": "emt_alloys", "structures": n, "atoms": [8, 16], **keys}


def shifted(folder: Path, n: int = 30, seed: int = 5) -> dict[str, Any]:
    """A file of alloys whose energies have references of about 1,000 eV more; its section."""
    section = {"source": alloys(n), "split": {"test": 0.2}}
    source = open_source(DataConfig.model_validate(section), seed)
    frames = []
    for chunk in source.chunks():
        for record in source.read(chunk):
            atoms = record.atoms
            energy = record.targets["energy"].item() - (1000 + atoms.numbers).sum()
            forces = record.targets["forces"]
            atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
            frames.append(atoms)
    ase.io.write(folder / "far.extxyz", frames)
    return {
        "format": "ase",
        "train": "far.extxyz",
        "targets": {"energy": "eV", "forces": "eV/Å"},
    }


def two_levels(folder: Path, n: int = 40, **changes: Any) -> DataConfig:
    """Both data sets: ``plain`` of ``n`` alloys, ``far`` of 30."""
    sources = [{"name": PLAIN, **alloys(n)}, {"name": FAR, **shifted(folder)}]
    values = {"sources": sources, "path": folder, "split": {"val": 0.2, "test": 0.2}}
    return DataConfig.model_validate(values | changes)


def two_level_store(folder: Path, **changes: Any) -> GraphStore:
    return prepare_store(two_levels(folder, **changes), CUTOFF, None, 0, folder / "two.gs")


def same_statistics(left: LabelStatistics, right: LabelStatistics) -> None:
    """The same, but for the order in which blocks are added up."""
    assert left.element_energies == pytest.approx(right.element_energies, rel=1e-9, abs=1e-6)
    assert left.energy_per_atom_std == pytest.approx(right.energy_per_atom_std, rel=1e-6)
    assert left.forces_rms == pytest.approx(right.forces_rms, rel=1e-9)
    for name, found in left.targets.items():
        assert found.mean == pytest.approx(right.targets[name].mean, rel=1e-9, abs=1e-9)
        assert found.std == pytest.approx(right.targets[name].std, rel=1e-6)


def branches(n: int = 2) -> list[dict[str, Any]]:
    """Node heads of ``n`` branches."""
    return [{"type": f"branch-{k}", "architecture": HEADS} for k in range(n)]


def one_of(store: GraphStore, split: str, branch: int) -> np.ndarray:
    """Places in a split of the graphs of a branch."""
    found = store[split].branch
    assert found is not None
    return np.flatnonzero(found == branch)
