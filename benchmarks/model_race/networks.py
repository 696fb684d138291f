"""The networks that race: HydraGNN's JSON, one for both sides."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

Mode = Literal["multihead", "potential"]
MODES: tuple[Mode, ...] = get_args(Mode)

CUTOFF = 5.0
NEIGHBOURS = 20
HIDDEN = 64
BATCH = 32

TARGETS = dict.fromkeys(("SchNet", "PAINN", "PNAEq", "MACE", "PNAPlus", "GAT"), 1.5)
TARGETS |= dict.fromkeys(("CGCNN", "GIN", "SAGE", "MFC"), 1.2)
TARGETS |= {"EGNN": 2.0, "PNA": 2.0, "DimeNet": 4.0}
"""Least ratio of training speeds, by message-passing type."""

# The others take no positions into their messages, and HydraGNN then has no forces to give.
POTENTIALS = ("SchNet", "EGNN", "PAINN", "PNAEq", "DimeNet", "MACE", "PNAPlus")


@dataclass(frozen=True)
class Case:
    """One type in one mode."""

    mpnn_type: str
    mode: Mode

    @property
    def name(self) -> str:
        """Type and mode, for people."""
        return f"{self.mpnn_type}, {self.mode}"

    @property
    def columns(self) -> int:
        """Node features that go in.

        HydraGNN makes a CGCNN as wide as its input, whatever `hidden_dim` says. It gets an input
        of that width, so that both sides are; every other type gets the atomic number.
        """
        return HIDDEN if self.mpnn_type == "CGCNN" else 1


def cases(types: Sequence[str], modes: Sequence[Mode]) -> list[Case]:
    """Every type in every mode that HydraGNN can do."""
    able = {"multihead": tuple(TARGETS), "potential": POTENTIALS}
    return [
        Case(mpnn_type, mode) for mode in modes for mpnn_type in types if mpnn_type in able[mode]
    ]


def network_of(mpnn_type: str, outputs: Mapping[str, str], *, potential: bool) -> dict[str, Any]:
    """A `NeuralNetwork` section, its sizes those of HydraGNN's own tests (``network.json``).

    Parameters
    ----------
    mpnn_type
        Message-passing type.
    outputs
        Name → level.
    potential
        Whether it is a potential.
    """
    file = Path(__file__).parent.with_name("network.json")
    section: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    architecture = section["Architecture"]
    architecture |= {"mpnn_type": mpnn_type, "task_weights": [1.0] * len(outputs)}
    heads = architecture["output_heads"]
    architecture["output_heads"] = {level: heads[level] for level in outputs.values()}
    if potential:
        weights = {"energy_peratom_weight": 1.0, "force_weight": 1.0}
        architecture |= {"enable_interatomic_potential": True, **weights}
    section["Variables_of_interest"] = {
        "input_node_features": [0],
        "output_names": list(outputs),
        "type": list(outputs.values()),
    }
    return section


def network(case: Case, batch_size: int = BATCH) -> dict[str, Any]:
    """The `NeuralNetwork` section of a case."""
    potential = case.mode == "potential"
    outputs = {"energy": "node"} if potential else {"energy_per_atom": "graph", "forces": "node"}
    section = network_of(case.mpnn_type, outputs, potential=potential)
    section["Training"]["batch_size"] = batch_size
    section["Variables_of_interest"] |= {
        "input_node_features": list(range(case.columns)),
        "output_index": list(range(len(outputs))),
        "output_dim": [1] if potential else [1, 3],
        "denormalize_output": False,
    }
    architecture = section["Architecture"]
    architecture |= {"max_neighbours": NEIGHBOURS, "periodic_boundary_conditions": True}
    if potential:
        # So that both sides compute the same edges.
        architecture |= {"truncated_neighbours": "allow", "graph_pooling": "add"}
    if case.mpnn_type == "SchNet" and not potential:
        # Without it HydraGNN's SchNet searches for neighbours anew in every layer.
        architecture["edge_features"] = ["lengths"]
    return section
