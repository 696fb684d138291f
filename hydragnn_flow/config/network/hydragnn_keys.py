"""Keys of HydraGNN that change nothing here, and keys that are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DERIVED = "derived from the store"
_DATA = "the store knows its features and targets by name"
_NODE_BUDGET = "read only with the mode `node_budget`"
_ONE_OUTPUT = "the one output of a potential is the target `energy`, whatever it is called"
_SCALARS = "this attention uses vectors where the type has them, else scalars alone"
_MINMAX = "the store's statistics scale the targets; inputs are not scaled"

ENERGY = "energy"
"""Name of the target that the one output of a potential is compared with."""

_WEIGHTS = ("energy_weight", "energy_peratom_weight", "force_weight")
DEFAULT_WEIGHTS = {"energy_peratom_weight": 40.0, "force_weight": 1.0}
"""Loss weights of a potential whose configuration has none. Residuals of energies per atom and of
forces are divided by the same scale, and the residuals of energies are smaller."""

# Keys of HydraGNN that change nothing here, whatever their value, and the reason.
IGNORED: dict[str, dict[str, str]] = {
    "NeuralNetwork": {
        "Profile": "it changes no result; `hydragnn-flow profile` says where the time goes",
    },
    "Architecture": {
        "input_dim": _DERIVED,
        "output_dim": _DERIVED,
        "output_type": _DERIVED,
        "num_nodes": _DERIVED,
        "edge_dim": _DERIVED,
        "pna_deg": _DERIVED,
        "avg_num_neighbors": _DERIVED,
        "periodic_boundary_conditions": "periodicity comes with each structure",
        "equivariant_attn_allow_scalar_only": _SCALARS,
        "equivariant_attn_require_tensor_coupling": _SCALARS,
        "SyncBatchNorm": "no layer normalises over a batch, so ranks have nothing to synchronise",
    },
    "Variables_of_interest": {
        "denormalize_output": "predictions are always in the data's units",
        "minmax_node_feature": _MINMAX,
        "minmax_graph_feature": _MINMAX,
        "x_minmax": _MINMAX,
        "y_minmax": _MINMAX,
        "graph_feature_names": _DATA,
        "node_feature_names": _DATA,
        "input_node_feature_dims": _DATA,
    },
    "Training": {
        "perc_train": "`data.split` of the run configuration decides",
        "Checkpoint": "every segment ends in a checkpoint",
        "checkpoint_warmup": "every segment ends in a checkpoint",
        "CheckRemainingTime": "every segment ends in time",
        "early_stopping": "HydraGNN does not read it either; both read `EarlyStopping`",
        "startfrom": "`start_from` of the run configuration names weights to begin with",
        "global_attn_redraw_interval": "a performer's random features are drawn once and kept",
    },
    "Batching": {},
}
# Keys that must hold a value that switches their feature off: reason and remedy.
REFUSED: dict[str, dict[str, tuple[str, str]]] = {
    "NeuralNetwork": {
        "ds_config": ("training does not go through DeepSpeed", "remove the key"),
    },
    "Architecture": {
        "model_type": ("HydraGNN renamed it", "write mpnn_type"),
    },
    "Variables_of_interest": {
        "subsample_percentage": (
            "the data are used whole",
            "leave structures out of the source's files, or remove the key",
        ),
    },
    "Training": {
        "continue": (
            "running the same command again continues",
            "name weights to begin with in start_from of the run configuration, or remove the key",
        ),
        "epoch_start": ("running the same command again continues", "remove the key"),
    },
    "Batching": {
        "drop_last": ("every graph is trained on in every epoch", "remove the key"),
        "seed": ("the run's seed decides the order", "remove the key"),
    },
}
# Keys of `Batching` that only its mode `node_budget` reads.
NODE_BUDGET = {"max_nodes", "max_edges", "max_graphs", "oversized_sample"}


# Paths of the sections above in a file.
_PLACES = {
    "NeuralNetwork": "",
    "Architecture": "Architecture",
    "Variables_of_interest": "Variables_of_interest",
    "Training": "Training",
    "Batching": "Training.Batching",
}


def unused_keys(network: Mapping[str, Any]) -> dict[str, str]:
    """Return the reason, by dotted path, for each given key of `NeuralNetwork` without effect.

    Keys that another message-passing type would read are left out.
    """
    found: dict[str, str] = {}
    for section, place in _PLACES.items():
        if section == "Architecture" and "engine" in network:
            continue  # an engine has keys of its own there
        values: Any = network
        for key in filter(None, place.split(".")):
            values = values.get(key) if isinstance(values, Mapping) else None
        if isinstance(values, Mapping):
            prefix = f"{place}." if place else ""
            found |= {f"{prefix}{k}": why for k, why in IGNORED[section].items() if k in values}
            if section == "Batching" and values.get("mode", "fixed") == "fixed":
                found |= {f"{prefix}{k}": _NODE_BUDGET for k in values if k in NODE_BUDGET}
    architecture = network.get("Architecture")
    asked = network.get("Variables_of_interest")
    if isinstance(architecture, Mapping) and isinstance(asked, Mapping):
        names = asked.get("output_names")
        if architecture.get("enable_interatomic_potential") is True and names != [ENERGY]:
            found["Variables_of_interest.output_names"] = _ONE_OUTPUT
    return found


def default_weights(architecture: Mapping[str, Any]) -> dict[str, float]:
    """Return the default loss weights, by key, of a potential without a weight above zero.

    HydraGNN would not train such a potential, but most of its example files describe one. A weight
    that is written as zero gets no default. For any other network the result is empty.

    Parameters
    ----------
    architecture
        Section `Architecture` before validation.
    """
    if architecture.get("enable_interatomic_potential") is not True:
        return {}
    if any(architecture.get(key) for key in _WEIGHTS):
        return {}
    return {key: w for key, w in DEFAULT_WEIGHTS.items() if architecture.get(key) is None}
