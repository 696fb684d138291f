"""The data sets, what is predicted on each, and which networks are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

CUTOFF = 5.0
_FORCES = {"energy": "eV", "forces": "eV/Å"}


@dataclass(frozen=True)
class Measure:
    """An error on the test split."""

    target: str
    unit: str
    factor: float
    """From the unit of the target to this one."""
    how: Literal["rmse", "mae"]
    per_atom: bool = False
    """Whether the target is divided by the number of atoms."""

    def __str__(self) -> str:
        return f"{self.target} {self.how.upper()}, {self.unit}"


@dataclass(frozen=True)
class Set:
    """A data set."""

    data: dict[str, Any]
    """The section `data` of a run configuration, without the path."""
    folder: str
    """Folder of its files, below the directory of the data sets."""
    measures: tuple[Measure, ...]
    batch_size: int
    neighbours: int | None
    potential: bool
    periodic: bool = True


@dataclass(frozen=True)
class Contest:
    """A network of ours and HydraGNN's of the same settings, on one set."""

    set: str
    mpnn_type: str
    seconds: float
    """CPU time of each training."""
    lengths: bool = False
    """Whether both get edge lengths as `edge_features`; potentials compute their own."""
    one_hot: bool = False
    """Whether HydraGNN gets a column for each element instead of the atomic number, as is better
    for it on a set of many elements."""

    @property
    def name(self) -> str:
        """As ``--only`` takes it."""
        return f"{self.set}:{self.mpnn_type}{'+lengths' if self.lengths else ''}"


def _mlearn(element: str) -> dict[str, Any]:
    source = {
        "format": "json",
        "train": f"{element}_training.json",
        "test": f"{element}_test.json",
        "targets": _FORCES,
    }
    return {"source": source, "split": {"val": 0.1}}


_SOLID = (
    Measure("energy", "meV/atom", 1e3, "mae", per_atom=True),
    Measure("forces", "eV/Å", 1.0, "mae"),
)

SETS = {
    "acac": Set(
        data={
            "source": {
                "format": "ase",
                "train": "train_300K.xyz",
                "test": "test_MD_300K.xyz",
                "targets": _FORCES,
            },
            "split": {"val": 0.1},
        },
        folder="acac",
        measures=(
            Measure("energy", "meV", 1e3, "rmse"),
            Measure("forces", "meV/Å", 1e3, "rmse"),
        ),
        batch_size=8,
        neighbours=None,
        potential=True,
        periodic=False,
    ),
    "Si": Set(
        data=_mlearn("Si"),
        folder="mlearn",
        measures=_SOLID,
        batch_size=4,
        neighbours=None,
        potential=True,
    ),
    "Ge": Set(
        data=_mlearn("Ge"),
        folder="mlearn",
        measures=_SOLID,
        batch_size=4,
        neighbours=None,
        potential=True,
    ),
    "perov_5": Set(
        data={
            "source": {
                "format": "csv",
                "train": "val.csv",
                "test": "test.csv",
                "structure": "cif",
                "targets": {"heat_all": "eV/atom"},
            },
            "split": {"by": "composition", "val": 0.1},
        },
        folder="perov_5",
        measures=(Measure("heat_all", "eV/atom", 1.0, "mae"),),
        batch_size=32,
        neighbours=20,
        potential=False,
    ),
}


# With both sides and three seeds 75 minutes of a core.
CONTESTS = (
    Contest("acac", "PAINN", 200),
    Contest("acac", "MACE", 200),
    Contest("perov_5", "PNA", 60, lengths=True, one_hot=True),
    Contest("Si", "PAINN", 120),
    Contest("acac", "EGNN", 60),
    Contest("perov_5", "PNA", 60, one_hot=True),
    Contest("Ge", "PAINN", 40),
)


def network(contest: Contest) -> dict[str, Any]:
    """The `NeuralNetwork` section of both sides.

    Widths and numbers of functions are those of HydraGNN's own tests; the batch size is the set's.
    """
    chosen = SETS[contest.set]
    head = {"num_headlayers": 2, "dim_headlayers": [64, 64]}
    graph_head = head | {"num_sharedlayers": 1, "dim_sharedlayers": 64}
    architecture: dict[str, Any] = {
        "mpnn_type": contest.mpnn_type,
        "hidden_dim": 64,
        "num_conv_layers": 3,
        "radius": CUTOFF,
        "max_neighbours": chosen.neighbours,
        "activation_function": "silu",
        "num_gaussians": 50,
        "num_filters": 64,
        "envelope_exponent": 5,
        "int_emb_size": 64,
        "basis_emb_size": 8,
        "out_emb_size": 64,
        "num_after_skip": 2,
        "num_before_skip": 1,
        "num_radial": 6,
        "num_spherical": 7,
        "max_ell": 1,
        "node_max_ell": 1,
        "correlation": 2,
        "radial_type": "bessel",
        "task_weights": [1.0],
    }
    if chosen.potential:
        architecture |= {
            "enable_interatomic_potential": True,
            "energy_peratom_weight": 1.0,
            "force_weight": 1.0,
            "output_heads": {"node": head | {"type": "mlp"}},
        }
    else:
        architecture["output_heads"] = {"graph": graph_head}
        if contest.lengths:
            architecture["edge_features"] = ["lengths"]
    return {
        "Architecture": architecture,
        "Variables_of_interest": {
            "input_node_features": [0],
            "output_names": [chosen.measures[0].target],
            "type": ["node" if chosen.potential else "graph"],
        },
        "Training": {
            "num_epoch": 10_000,  # the CPU time ends it
            "batch_size": chosen.batch_size,
            "loss_function_type": "mse",
            "Optimizer": {"type": "AdamW", "learning_rate": 1e-3},
            "Scheduler": {"type": "ReduceLROnPlateau", "factor": 0.5, "patience": 5},
        },
    }
