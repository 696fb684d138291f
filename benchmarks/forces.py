"""How exact the forces of potentials are: in single precision, in a bf16 step, on cut lists.

    python benchmarks/forces.py
    python benchmarks/forces.py --only EGNN --draws 2

Networks are freshly drawn: nothing here depends on training. Structures are rattled fcc cells of
Cu and Au, 32 atoms each, with all neighbours within 5 Å unless the table says otherwise.

The first table compares forces of a training step with those in float64: the root mean square of
the difference over that of the forces. The second moves one atom by 0.2 Å in steps of 2 mÅ, finds
the neighbours anew at each, and compares the energy's change over a step with the change that the
forces at its two ends imply. Energies are scaled to forces with a root mean square of 1 eV/Å.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import ase
import numpy as np
import torch
import typer
from ase.build import bulk
from numpy.typing import NDArray
from results import Number, Run, Table
from torch_geometric.data import Batch

from hydragnn_flow.config.network import MPNN_TYPES
from hydragnn_flow.data import Manifest, atoms_to_graph, batch_graphs
from hydragnn_flow.data.graphs import truncation_of
from hydragnn_flow.data.truncation import Truncation
from hydragnn_flow.models import HydraModel, build_model

CUTOFF = 5.0
KEPT = 20
COPPER, GOLD = 29, 79
TYPES = [name for name, kind in MPNN_TYPES.items() if kind.properties.lengths != "never"]
_PATH = np.linspace(0.0, 0.2, 101)
MEASURES = ["benchmarks/forces.py", "hydragnn_flow/data/neighbours.py", "hydragnn_flow/models"]


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    draws: int
    """Networks of each type, each on structures of its own."""


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"Types to measure, of {', '.join(TYPES)}.")
    ] = None,
    draws: Annotated[int, typer.Option(help="Networks of each type.", min=1)] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="One network of each type.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Measure, and print two tables."""
    if unknown := set(only or []) - set(TYPES):
        raise typer.BadParameter(f"no type {', '.join(unknown)}; there are {', '.join(TYPES)}")
    torch.set_num_threads(1)
    run = Run("forces", MEASURES, ["torch"], quick=quick)
    settings = Settings(1 if quick else draws)
    chosen = only or TYPES
    precision = Table(
        ("type", "float32", "bf16 step"),
        [[name, *_precision(name, settings.draws)] for name in chosen],
        "precision",
        "Error of forces, share of their root mean square",
    )
    cut = Table(
        ("type", "all neighbours", f"nearest {KEPT}", "energy along the path", "by its forces"),
        [[name, *_jumps(name, settings.draws)] for name in chosen],
        "cut",
        f"Largest jump of the energy in a step, and its change along the path with {KEPT}",
    )
    sentence = _truncation().sentence(CUTOFF, KEPT)
    result = run.end([precision, cut], remarks=[sentence], settings=vars(settings))
    print(result.markdown())
    if json is not None:
        result.write(json)


def _precision(mpnn_type: str, draws: int) -> list[Number]:
    """Relative errors of the forces of a step in float32 and in bf16."""
    single, half = [], []
    for draw in range(draws):
        batch = _batch([_alloy(3 * draw + i) for i in range(3)], None)
        model = _model(mpnn_type, draw).train()
        plain = model(batch)["forces"].detach().double()
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model(batch)["forces"].detach().double()
        exact = model.double()(batch)["forces"].detach()
        single.append(float((plain - exact).norm() / exact.norm()))
        half.append(float((mixed - exact).norm() / exact.norm()))
    return [_mean(single), _mean(half)]


def _jumps(mpnn_type: str, draws: int) -> list[Number]:
    """Largest jumps with whole and with cut lists, and the energy's change along the path."""
    whole: list[float] = []
    cut: list[float] = []
    changes: list[float] = []
    works: list[float] = []
    for draw in range(draws):
        model = _model(mpnn_type, draw).double().eval()
        jump, _, _ = _walked(model, _alloy(draw), None)
        whole.append(jump)
        jump, change, work = _walked(model, _alloy(draw), KEPT)
        cut.append(jump)
        changes.append(change)
        works.append(work)
    middle = int(np.argsort(np.abs(np.subtract(changes, works)))[draws // 2])
    return [
        Number(max(whole), "meV"),
        Number(max(cut), "meV"),
        Number(changes[middle], "meV"),
        Number(works[middle], "meV"),
    ]


def _walked(model: HydraModel, atoms: ase.Atoms, kept: int | None) -> tuple[float, float, float]:
    """Largest jump in a step, the energy's change along the path, and what forces give for it."""
    energies, forces = _along(model, atoms, kept)
    work = -np.diff(_PATH) * (forces[1:] + forces[:-1]) / 2
    jump = np.abs(np.diff(energies) - work).max()
    return 1000 * float(jump), 1000 * float(energies[-1] - energies[0]), 1000 * float(work.sum())


def _along(
    model: HydraModel, atoms: ase.Atoms, kept: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Energies and the moved atom's forces along the path, scaled."""
    scale = 1.0 / float(model(_exact(atoms, kept))["forces"].square().mean().sqrt())
    energies, forces = [], []
    for step in _PATH:
        moved: ase.Atoms = atoms.copy()  # type: ignore[no-untyped-call]
        moved.positions[5, 0] += step
        outputs = model(_exact(moved, kept))
        energies.append(float(outputs["energy"]) * scale)
        forces.append(float(outputs["forces"][5, 0]) * scale)
    return np.array(energies), np.array(forces)


def _exact(atoms: ase.Atoms, kept: int | None) -> Batch:
    """A structure whose positions are not rounded; what single precision costs is another table."""
    batch = _batch([atoms], kept)
    assert np.allclose(batch.pos, atoms.positions, atol=1e-5)
    batch.pos = torch.from_numpy(atoms.positions)
    return batch


def _batch(structures: list[ase.Atoms], kept: int | None) -> Batch:
    return batch_graphs([atoms_to_graph(atoms, CUTOFF, kept) for atoms in structures])


def _alloy(seed: int) -> ase.Atoms:
    """A rattled cell of 7.5 Å, which single precision holds exactly, with its atoms inside."""
    rng = np.random.default_rng(seed)
    atoms: ase.Atoms = bulk("Cu", "fcc", a=3.75, cubic=True) * (2, 2, 2)
    atoms.numbers = rng.choice([COPPER, GOLD], len(atoms))
    atoms.positions += 0.5 + rng.normal(0, 0.1, (len(atoms), 3)).clip(-0.4, 0.4)
    return atoms


def _truncation() -> Truncation:
    """Neighbours that the cut lists leave out at the beginnings of the paths."""
    counts = []
    for draw in range(5):
        atoms = _alloy(draw)
        graph = atoms_to_graph(atoms, CUTOFF, KEPT)
        counts.append(truncation_of(atoms, graph, CUTOFF, KEPT))
    return sum(counts, Truncation())


def _model(mpnn_type: str, seed: int) -> HydraModel:
    """A potential with three layers of 32 features."""
    torch.manual_seed(seed)
    head = {"num_headlayers": 1, "dim_headlayers": [32]}
    network = {
        "Architecture": {
            "mpnn_type": mpnn_type,
            "hidden_dim": 32,
            "num_conv_layers": 3,
            "radius": CUTOFF,
            "activation_function": "silu",
            "enable_interatomic_potential": True,
            "truncated_neighbours": "allow",
            "force_weight": 1.0,
            "output_heads": {"node": head},
        },
        "Variables_of_interest": {"output_names": ["energy"], "type": ["node"]},
        "Training": {"num_epoch": 1, "batch_size": 1, "Optimizer": {"learning_rate": 1e-3}},
    }
    model = build_model(network, _manifest())
    assert isinstance(model, HydraModel)
    return model


def _manifest() -> Manifest:
    """Manifest of a store that these structures could come from."""
    energy = {"level": "graph", "dim": 1, "unit": "eV"}
    forces = {"level": "node", "dim": 3, "unit": "eV/Å"}
    described: dict[str, Any] = {"dtype": "float32", "dim": 0, "shape": [1], "rows": None}
    return Manifest.model_validate(
        {
            "targets": {"energy": energy, "forces": forces},
            "units": {},
            "cutoff": CUTOFF,
            "max_neighbours": None,
            "elements": [COPPER, GOLD],
            "node_features": ["atomic_number"],
            "keys": {
                key: described | {"node": key != "edge_index", "edge": False}
                for key in ("x", "pos", "edge_index")
            },
            "splits": {},
            "statistics": {
                "degree_histogram": [0] * 42 + [32],
                "avg_num_neighbors": 42.0,
                "element_energies": {COPPER: 0.0, GOLD: 0.0},
                "energy_per_atom_std": 0.1,
                "forces_rms": 1.0,
                "targets": {
                    "energy": {"mean": [0.0], "std": [1.0]},
                    "forces": {"mean": [0.0] * 3, "std": [1.0] * 3},
                },
            },
            "provenance": {},
            "shards": [{"path": "shard-00000.bp", "files": {}, "splits": {}}],
        }
    )


def _mean(values: list[float]) -> Number:
    return Number(float(np.mean(values)), "", min(values), max(values))


if __name__ == "__main__":
    typer.run(main)
