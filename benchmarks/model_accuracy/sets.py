"""The data sets, what is predicted on each, and what HydraGNN reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hydragnn_flow.models import PROPERTIES

TYPES = tuple(PROPERTIES)
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
    """Of the target divided by the number of atoms."""

    def __str__(self) -> str:
        return f"{self.target} {self.how.upper()}, {self.unit}"


@dataclass(frozen=True)
class Published:
    """What HydraGNN reached with the settings of :func:`network`."""

    seconds: float
    """CPU time of training, on one thread."""
    errors: tuple[float, ...] | None
    """One for each measure of the set; None where training ended in NaN."""


@dataclass(frozen=True)
class Set:
    """A data set."""

    data: dict[str, Any]
    """The section `data` of a run configuration, without the path."""
    folder: str
    """Where its files are, below the directory of the data sets."""
    measures: tuple[Measure, ...]
    seconds: float
    """CPU time for types of which nothing is published."""
    batch_size: int
    neighbours: int | None
    potential: bool
    published: Mapping[str, Published] = field(default_factory=dict)
    """By message-passing type."""


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

# The published figures are measurements of HydraGNN's main branch of August 2026 (commit
# d251f816) on these files, with the settings of :func:`network`: one thread, seed 0, the weights
# best on the validation split tested.
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
        seconds=300,
        batch_size=8,
        neighbours=None,
        potential=True,
        published={
            "PAINN": Published(300, (15.2, 64.8)),
            "SchNet": Published(300, (27.5, 110.3)),
            "EGNN": Published(300, (118.7, 690.9)),
        },
    ),
    "Si": Set(
        data=_mlearn("Si"),
        folder="mlearn",
        measures=_SOLID,
        seconds=300,
        batch_size=4,
        neighbours=None,
        potential=True,
        published={
            "PAINN": Published(300, (7.37, 0.180)),
            "SchNet": Published(300, (30.8, 0.372)),
            "EGNN": Published(150, (90.0, 0.566)),
        },
    ),
    "Ge": Set(
        data=_mlearn("Ge"),
        folder="mlearn",
        measures=_SOLID,
        seconds=150,
        batch_size=4,
        neighbours=None,
        potential=True,
        published={
            # It reached 12.3 and 0.162 in 120 s with its training positions displaced by 1e-3 Å.
            "PAINN": Published(150, None),
            "SchNet": Published(150, (13.0, 0.282)),
            "EGNN": Published(60, (26.2, 0.424)),
        },
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
        seconds=180,
        batch_size=32,
        neighbours=20,
        potential=False,
        published={
            "PNA": Published(180, (0.0840,)),
            "SchNet": Published(180, (0.1059,)),
            "EGNN": Published(180, (0.1067,)),
            "CGCNN": Published(180, (0.1230,)),
        },
    ),
}


def network(chosen: Set, mpnn_type: str) -> dict[str, Any]:
    """The `NeuralNetwork` section: HydraGNN's settings of the published figures.

    What those do not say is as in HydraGNN's own tests; the batch size is the set's.
    """
    head = {"num_headlayers": 2, "dim_headlayers": [64, 64]}
    graph_head = head | {"num_sharedlayers": 1, "dim_sharedlayers": 64}
    architecture: dict[str, Any] = {
        "mpnn_type": mpnn_type,
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
        if PROPERTIES[mpnn_type].lengths == "request":
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
