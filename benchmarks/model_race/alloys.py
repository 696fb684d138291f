"""The graphs that both sides train on: rattled Cu-Au crystals of 32 atoms, or such clusters."""

from __future__ import annotations

from itertools import count, islice
from pathlib import Path
from typing import Any

import ase
import numpy as np
from ase.build import bulk
from ase.calculators.emt import EMT
from torch_geometric.data import Data

from hydragnn_flow import write_store
from hydragnn_flow.data import Target, atoms_to_graph
from model_race.networks import CUTOFF, NEIGHBOURS, Case

_ATOMS = 32
_LATTICE_CONSTANT = 3.8  # Å, small enough for 20 neighbours within the cutoff


def write_alloys(folder: Path, graphs: int, case: Case) -> Path:
    """A store with a split to train on, for a case; written once for all cases that are alike."""
    path = folder / f"crystals-{case.columns}.gs"
    if path.exists():
        return path
    rng = np.random.default_rng(0)
    names = ["atomic_number", *(f"random_{column}" for column in range(1, case.columns))]
    drawn = (_graph(rng, case.columns) for _ in count())
    # Neighbours equally near are all kept; such a crystal is drawn anew, so that 20 means 20.
    even = (graph for graph in drawn if graph.num_edges == NEIGHBOURS * _ATOMS)
    made = list(islice(even, graphs))
    targets = {"energy": ("graph", 1, "eV"), "energy_per_atom": ("graph", 1, "eV/atom")}
    targets["forces"] = ("node", 3, "eV/Å")
    write_store(
        path,
        {"trainset": made, "valset": made[:1]},
        targets={
            name: Target.model_validate({"level": level, "dim": dim, "unit": unit})
            for name, (level, dim, unit) in targets.items()
        },
        cutoff=CUTOFF,
        max_neighbours=NEIGHBOURS,
        node_features=names,
    )
    return path


def _graph(rng: np.random.Generator, columns: int) -> Data:
    atoms: ase.Atoms = bulk("Cu", "fcc", a=_LATTICE_CONSTANT, cubic=True) * (2, 2, 2)
    atoms.symbols = rng.choice(np.array(["Cu", "Au"]), size=_ATOMS)
    atoms.positions += rng.normal(0, 0.1, (_ATOMS, 3))
    make_calculator: Any = EMT  # ASE has no types for it
    calculator = make_calculator()
    calculator.calculate(atoms, ["energy", "forces"])
    energy = calculator.results["energy"]
    x = rng.random((_ATOMS, columns))
    x[:, 0] = atoms.numbers
    # HydraGNN finds what its two heads learn in `y`, in this order, and a potential's under names.
    labels = {
        "energy_per_atom": np.array([energy / _ATOMS]),
        "forces": np.array(calculator.results["forces"]),
    }
    graph = atoms_to_graph(atoms, CUTOFF, NEIGHBOURS, targets=labels, x=x)
    graph.energy = graph.energy_per_atom * _ATOMS
    return graph
