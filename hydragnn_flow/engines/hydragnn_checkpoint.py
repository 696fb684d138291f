"""HydraGNN checkpoints: their weights by name, and whether they are of a network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import torch
from torch import Tensor

from hydragnn_flow.config.network import NETWORK, network_section, read_json
from hydragnn_flow.config.start_from import OF_TRAINING
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import open_regular

# Keys of `Architecture` by which nothing is computed, or whose weights have other names or shapes.
_FREE = OF_TRAINING | {
    "SyncBatchNorm",
    "num_nodes",
    "output_dim",
    "output_heads",
    "output_type",
    "periodic_boundary_conditions",
}


def bare(name: str) -> str:
    """Name of a tensor without what DDP and HydraGNN's wrapper of potentials put before it."""
    return re.sub(r"^((_orig_mod|module|model)\.)+", "", name)


def read_state(file: Path) -> dict[str, Tensor]:
    """The weights in a checkpoint by their bare names, read with ``weights_only=True``.

    Raises
    ------
    InputError
        If it is none.
    """
    try:
        with open_regular(file) as opened:
            content = torch.load(opened, map_location="cpu", weights_only=True)
        return {bare(name): value for name, value in content["model_state_dict"].items()}
    except Exception as error:  # damaged bytes make torch raise whatever it stumbles over
        first = next(iter(str(error).splitlines()), "").partition(". ")[0]
        raise InputError(
            f"start_from: {file} is no readable HydraGNN checkpoint "
            f"({type(error).__name__}: {first}); name another"
        ) from None


def check_same(section: Mapping[str, Any], file: Path) -> None:
    """Refuse a checkpoint of a network that computes something else with the same weights.

    Parameters
    ----------
    section
        `NeuralNetwork` section of the network that is to have them, completed by HydraGNN.
    file
        The checkpoint, beside the `config.json` that HydraGNN wrote.

    Raises
    ------
    InputError
        Naming the key.
    """
    beside = file.with_name(NETWORK)
    if not beside.is_file():
        raise InputError(
            f"start_from: {file} has no {NETWORK} that says its network; put the one it was "
            f"trained with there"
        )
    trained = network_section(read_json(beside), beside)
    theirs, asked = trained.get("Architecture"), trained.get("Variables_of_interest")
    if not isinstance(theirs, Mapping) or not isinstance(asked, Mapping):
        raise InputError(f"start_from: {beside} is none that HydraGNN has written; replace it")
    scaled = ("x_minmax", "minmax_node_feature", "y_minmax", "denormalize_output")
    found = [key for key in scaled if asked.get(key)]
    if theirs.get("edge_features"):
        found.append("edge_features")
    if found:
        raise InputError(
            f"start_from: {file} was trained with {found[0]}, which scales by ranges of its own "
            f"data what is not scaled here; name a network without it"
        )
    ours = section["Architecture"]
    for key, value in theirs.items():
        if key not in _FREE and key in ours and ours[key] != value:
            raise InputError(
                f"network: Architecture.{key} is {shortened(ours[key])}, but {file}, which "
                f"start_from names, was trained with {shortened(value)}; write what {NETWORK} "
                f"beside it says"
            )
