"""HydraGNN's own networks: which of them are built here layer by layer, and why others are not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydragnn_flow.errors import InputError

_OF_TRAINING = ("num_epoch", "batch_size", "Optimizer", "loss_function_type")
MODULE = "hydragnn_flow.models.hydragnn"
EQUAL = (
    *("SAGE", "GIN", "GAT", "MFC", "CGCNN"),
    *("PNA", "PNAPlus", "PNAEq", "SchNet", "EGNN", "PAINN"),
)
"""Types whose layers are built here as HydraGNN has them; `mpnn_type` is then ``MODULE:NAME``."""
DIFFERENT = {
    "DimeNet": "it lists pairs of edges, which are summed here without lists",
    "MACE": "its radial weights also read the atoms' features, which grow without bound",
}
"""Types whose weights mean something else in our layers, and why."""


def as_hydragnn_has_it(
    network: Mapping[str, Any], file: Path, *, heads: str = "keep"
) -> dict[str, Any]:
    """A HydraGNN network with the layers that are HydraGNN's own.

    Parameters
    ----------
    network
        `NeuralNetwork` section of the `config.json` that HydraGNN has written.
    file
        The checkpoint beside it, for messages.
    heads
        Whether its heads are wanted, ``keep`` or ``new``.

    Raises
    ------
    InputError
        If the network is none of those, naming the key.
    """
    architecture, asked = network.get("Architecture"), network.get("Variables_of_interest")
    if not isinstance(architecture, Mapping) or not isinstance(asked, Mapping):
        raise InputError(f"{file}: its config.json is none that HydraGNN has written")
    name = architecture.get("mpnn_type")
    if name not in EQUAL:
        why = DIFFERENT.get(str(name), "HydraGNN has no such type")
        raise InputError(
            f"start_from: {file} is a {name} of HydraGNN's, whose weights cannot be read: {why}; "
            f"types that can are {', '.join(EQUAL)}"
        )
    for key, why in _refused(architecture, network, heads).items():
        raise InputError(f"start_from: {file} was trained with {key}, {why}; it cannot be read")
    inputs = len(asked.get("input_node_features") or (0,))
    training = network.get("Training")
    trained = training if isinstance(training, Mapping) else {}
    return {
        "Variables_of_interest": asked,
        # How it was trained is of no interest, but for whether its heads predict a noise.
        "Training": {key: trained[key] for key in _OF_TRAINING if key in trained},
        "Architecture": {
            **architecture,
            "mpnn_type": f"{MODULE}:{name}",
            "mpnn_options": {"inputs": inputs},
        },
    }


def _refused(
    architecture: Mapping[str, Any], network: Mapping[str, Any], heads: str
) -> dict[str, str]:
    """Keys with which HydraGNN computes what our layers do not, and what."""
    found = {}
    training, asked = network.get("Training") or {}, network["Variables_of_interest"]
    levels = list(asked.get("type") or ())
    if architecture.get("global_attn_engine"):
        found["global_attn_engine"] = "which attends to all graphs of a batch there"
    if architecture.get("use_graph_attr_conditioning"):
        found["use_graph_attr_conditioning"] = "which acts in other places here"
    if architecture.get("edge_features"):
        found["edge_features"] = "which are scaled by the largest of all its data there"
    if architecture.get("equivariance") and architecture.get("mpnn_type") == "SchNet":
        found["equivariance"] = "whose edges are found anew once atoms have moved"
    if any(asked.get(key) for key in ("x_minmax", "minmax_node_feature")):
        found["x_minmax"] = "so it reads fractions of a range"
    if heads == "new":
        return found
    if architecture.get("enable_interatomic_potential") and levels != ["node"]:
        found["a graph head of a potential"] = "which acts on sums over atoms there"
    of_atoms = (architecture.get("output_heads") or {}).get("node")
    if "node" in levels and "conv" in str(of_atoms):
        found["output_heads.node.type: conv"] = "which ends in another layer there"
    if training.get("loss_function_type") == "GaussianNLLLoss":
        found["loss_function_type: GaussianNLLLoss"] = "whose noise is the square of an output"
    if asked.get("denormalize_output") or asked.get("y_minmax"):
        found["denormalize_output"] = "so its outputs are fractions of a range"
    return found
