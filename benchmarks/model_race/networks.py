"""The networks that race: HydraGNN's JSON, one for both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Mode = Literal["multihead", "potential", "attention"]
MODES: tuple[Mode, ...] = get_args(Mode)

CUTOFF = 5.0
NEIGHBOURS = 20
HIDDEN = 64
BATCH = 32

TARGETS = {
    "SchNet": 1.5,
    "EGNN": 2.0,
    "PAINN": 1.5,
    "PNAEq": 1.5,
    "DimeNet": 4.0,
    "MACE": 1.5,
    "PNA": 2.0,
    "PNAPlus": 1.5,
    "CGCNN": 1.2,
    "GIN": 1.2,
    "GAT": 1.5,
    "SAGE": 1.2,
    "MFC": 1.2,
}
"""Least ratio of training speeds, by message-passing type."""

# The others take no positions into their messages, and HydraGNN then has no forces to give.
POTENTIALS = ("SchNet", "EGNN", "PAINN", "PNAEq", "DimeNet", "MACE", "PNAPlus")

# With HydraGNN's EquivariantTransformer.
ATTENDING = ("SchNet", "PAINN", "PNAEq", "DimeNet", "MACE")


@dataclass(frozen=True)
class Case:
    """One type in one mode."""

    mpnn_type: str
    mode: Mode

    @property
    def target(self) -> float:
        """Least ratio of training speeds."""
        return TARGETS[self.mpnn_type]

    @property
    def batch_size(self) -> int:
        """Graphs in a step. HydraGNN's attention needs gigabytes for each."""
        return 4 if self.mode == "attention" else BATCH

    @property
    def periodic(self) -> bool:
        """Whether the graphs are; HydraGNN's EquivariantTransformer refuses them."""
        return self.mode != "attention"

    @property
    def columns(self) -> int:
        """Node features that go in.

        HydraGNN makes a CGCNN as wide as its input, whatever `hidden_dim` says. It gets an input
        of that width, so that both sides are; every other type gets the atomic number.
        """
        return HIDDEN if self.mpnn_type == "CGCNN" else 1


def cases(types: Sequence[str], modes: Sequence[Mode]) -> list[Case]:
    """Every type in every mode that HydraGNN can do."""
    able = {"multihead": tuple(TARGETS), "potential": POTENTIALS, "attention": ATTENDING}
    return [
        Case(mpnn_type, mode) for mode in modes for mpnn_type in types if mpnn_type in able[mode]
    ]


def network(case: Case, batch_size: int = BATCH) -> dict[str, Any]:
    """The `NeuralNetwork` section of a case.

    Where HydraGNN has no default the values are those of its own tests (``tests/inputs/ci.json``),
    and the width wherever they are widths.
    """
    potential = case.mode != "multihead"
    graph_head = {
        "num_sharedlayers": 1,
        "dim_sharedlayers": HIDDEN,
        "num_headlayers": 2,
        "dim_headlayers": [HIDDEN, HIDDEN],
    }
    node_head = {"num_headlayers": 2, "dim_headlayers": [HIDDEN, HIDDEN], "type": "mlp"}
    architecture: dict[str, Any] = {
        "mpnn_type": case.mpnn_type,
        "hidden_dim": HIDDEN,
        "num_conv_layers": 3,
        "radius": CUTOFF,
        "max_neighbours": NEIGHBOURS,
        "periodic_boundary_conditions": True,
        "activation_function": "silu",
        "num_gaussians": 50,
        "num_filters": HIDDEN,
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
        "output_heads": {"graph": graph_head, "node": node_head},
        "task_weights": [1.0, 1.0],
    }
    if potential:
        architecture |= {
            "output_heads": {"node": node_head},
            "task_weights": [1.0],
            "enable_interatomic_potential": True,
            "truncated_neighbours": "allow",  # so that both sides compute the same edges
            "energy_peratom_weight": 1.0,
            "force_weight": 1.0,
            "graph_pooling": "add",
        }
    if case.mode == "attention":
        scalars = case.mpnn_type in ("SchNet", "DimeNet")
        architecture |= {
            "periodic_boundary_conditions": False,
            "global_attn_engine": "EquivariantTransformer",
            "global_attn_heads": 1,
            "equivariant_attn_allow_scalar_only": scalars,
            "equivariant_attn_require_tensor_coupling": not scalars,
        }
    if case.mpnn_type == "SchNet" and case.mode != "potential":
        # Without it HydraGNN's SchNet searches for neighbours anew in every layer.
        architecture["edge_features"] = ["lengths"]
    outputs = {"energy": "node"} if potential else {"energy_per_atom": "graph", "forces": "node"}
    return {
        "Architecture": architecture,
        "Variables_of_interest": {
            "input_node_features": list(range(case.columns)),
            "output_names": list(outputs),
            "output_index": list(range(len(outputs))),
            "output_dim": [1] if potential else [1, 3],
            "type": list(outputs.values()),
            "denormalize_output": False,
        },
        "Training": {
            "num_epoch": 1,
            "batch_size": batch_size,
            "loss_function_type": "mse",
            "Optimizer": {"type": "AdamW", "learning_rate": 1e-3},
        },
    }
