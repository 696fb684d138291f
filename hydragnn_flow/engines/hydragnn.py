"""Engine ``hydragnn``: networks and checkpoints of the HydraGNN that the user has installed.

HydraGNN's own functions complete its configuration and create its model. Its keys of `Architecture`
are passed on unchecked, in any version. Its loss and training loop are not used.
"""

from __future__ import annotations

import copy
import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from reprlib import repr as shortened
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from pydantic import ConfigDict, model_validator
from torch import Tensor, nn
from torch_geometric.data import Data

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.network import NETWORK, network_section, read_json
from hydragnn_flow.config.network.architecture import LENGTHS, branched_heads
from hydragnn_flow.config.origins import OF_TRAINING
from hydragnn_flow.data import Manifest
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import open_regular
from hydragnn_flow.models.geometry import sum_by

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
    """Return a tensor's name in a state dict without the prefixes that wrappers of the model add.

    Such wrappers are torch.compile, DDP, and HydraGNN's wrapper of potentials.
    """
    return re.sub(r"^((_orig_mod|module|model)\.)+", "", name)


def read_state(file: Path) -> dict[str, Tensor]:
    """Return the weights in a HydraGNN checkpoint, by tensor name after :func:`bare`.

    Torch reads them with ``weights_only=True``, so that the file cannot run code.

    Raises
    ------
    InputError
        If the file is no readable checkpoint.
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
    """Check that a HydraGNN checkpoint was trained with the network that is to get its weights.

    Parameters
    ----------
    section
        `NeuralNetwork` section, completed by HydraGNN, of the network that is to get the weights.
    file
        Path of the checkpoint, beside the `config.json` that HydraGNN wrote.

    Raises
    ------
    InputError
        If `config.json` is missing or unusable, its network scales data in a way that this package
        does not, or a key differs; the message names the key.
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


_CONFIGURATION = "hydragnn.utils.input_config_parsing.config_utils"
# Modules of HydraGNN's models that are heads.
_HEADS = {
    "graph_shared",
    "heads_NN",
    "multihead_decoders",  # of its MACE
    "convs_node_hidden",
    "batch_norms_node_hidden",
    "convs_node_output",
    "batch_norms_node_output",
}
_NEEDED = ("hydragnn", "mpi4py", "torch_scatter")


class HydragnnKeys(Section):
    """Section `Architecture` of a HydraGNN network, with any keys; HydraGNN checks them itself."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        for name in _NEEDED:
            if name not in sys.modules and find_spec(name) is None:
                raise ValueError(
                    f"the engine hydragnn needs the package {name}, which is not installed; "
                    f"install HydraGNN and what it needs, or add its folder to PYTHONPATH"
                )
        return values


class HydragnnNetwork(nn.Module):
    """Adapter that runs HydraGNN's model on this package's batches and names its outputs.

    Parameters
    ----------
    model
        Model that HydraGNN has created.
    section
        `NeuralNetwork` section of the model, completed by HydraGNN.
    """

    def __init__(self, model: nn.Module, section: Mapping[str, Any]) -> None:
        super().__init__()
        asked, architecture = section["Variables_of_interest"], section["Architecture"]
        self.model = model
        self.section = section
        self.columns = list(asked["input_node_features"])
        self.edge_features = tuple(architecture.get("edge_features") or ())
        self.names = tuple(asked["output_names"])
        potential = architecture["enable_interatomic_potential"]
        self.atomic_energy = potential and asked["type"] == ["node"]
        names = (name for name, _ in self.named_modules() if bare(name) in _HEADS)
        self.head_names = tuple(names)

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """Compute HydraGNN's outputs for a batch, by name: [n_graphs, d] or [n_atoms, d] each.

        ``x`` and ``edge_attr`` of the batch are replaced in place.
        """
        batch.edge_attr = self._edge_features(batch)
        batch.x = torch.stack([batch.x[:, column] for column in self.columns], dim=1)
        found = self.model(batch)
        if self.atomic_energy:
            return {"energy": sum_by(found[0], batch.batch, batch.num_graphs)}
        return dict(zip(self.names, found, strict=True))

    def read_weights(self, file: Path) -> dict[str, Tensor]:
        """Return the weights in a HydraGNN checkpoint, by tensor name in this module's state dict.

        Raises
        ------
        InputError
            If the checkpoint cannot be read, or belongs to another network.
        """
        check_same(self.section, file)
        mine = {bare(name): name for name in self.state_dict()}
        return {mine.get(name, name): value for name, value in read_state(file).items()}

    def _edge_features(self, batch: Any) -> Tensor | None:
        if not self.edge_features:
            return None
        sender, receiver = batch.edge_index
        vectors = batch.pos[receiver] - batch.pos[sender] + batch.edge_shifts
        lengths = torch.linalg.vector_norm(vectors, dim=1)
        columns = [
            lengths if name in LENGTHS else batch.edge_attr[:, place]
            for place, name in enumerate(self.edge_features)
        ]
        return torch.stack(columns, dim=1)


def build(network: Mapping[str, Any], manifest: Manifest) -> nn.Module:
    """Build HydraGNN's network from a `NeuralNetwork` section and a store's manifest.

    Raises
    ------
    InputError
        If HydraGNN cannot be imported, or its models do not support the loss.
    """
    try:
        create = import_module("hydragnn.models").create_model_config
        complete = import_module(_CONFIGURATION).update_config
    except ImportError as error:
        raise InputError(
            f"network: engine hydragnn: HydraGNN cannot be imported ({error}); install what it "
            f"needs"
        ) from error
    if network["Training"].get("loss_function_type") == "GaussianNLLLoss":
        raise InputError(
            "network: Training.loss_function_type = 'GaussianNLLLoss' is not for the engine "
            "hydragnn; write 'mse', 'mae' or 'smooth_l1'"
        )
    section = _section(network, manifest)
    data = SimpleNamespace(dataset=_Described(section, manifest))
    rows = manifest.keys["x"].rows
    with patch.dict(os.environ, {"HYDRAGNN_USE_VARIABLE_GRAPH_SIZE": str(int(rows is None))}):
        section = complete({"NeuralNetwork": section}, data, data, data)["NeuralNetwork"]
    # HydraGNN sets the seed to 0, which would give all members of an ensemble the same weights.
    with patch.object(torch, "manual_seed", lambda seed: torch.default_generator):
        model: nn.Module = create(section, use_gpu=False)
    return HydragnnNetwork(model, section)


build.options = HydragnnKeys  # type: ignore[attr-defined]  # as the protocol says


def _section(network: Mapping[str, Any], manifest: Manifest) -> dict[str, Any]:
    """Return a copy of the `NeuralNetwork` section ``network`` in the form that HydraGNN reads.

    Keys that HydraGNN itself completes are not added.
    """
    section: dict[str, Any] = copy.deepcopy(dict(network))
    asked, architecture = section["Variables_of_interest"], section["Architecture"]
    asked.setdefault("input_node_features", [0])
    asked["output_dim"] = [manifest.targets[name].dim for name in asked["output_names"]]
    asked["denormalize_output"] = False
    architecture.setdefault("task_weights", [1.0] * len(asked["output_names"]))
    architecture.setdefault("max_neighbours", None)
    branches, heads = architecture.pop("branches", 1), architecture["output_heads"]
    if branches > 1:
        architecture["output_heads"] = heads = branched_heads(heads, branches)
    for level, described in heads.items():
        if isinstance(described, list) and len(described) != branches:
            raise InputError(
                f"network: Architecture.output_heads.{level} has {len(described)} branches; write "
                f"Architecture.branches: {len(described)}, or describe the heads once"
            )
    # HydraGNN gets neutral settings, since loss and precision are applied around its model.
    checkpointing = section["Training"].get("conv_checkpointing", False)
    section["Training"] = {
        "Optimizer": {},
        "loss_function_type": "mse",
        "conv_checkpointing": checkpointing,
    }
    return section


class _Described:
    """Stand-in for a data set, with the graph sizes and statistics that HydraGNN reads from one."""

    def __init__(self, section: Mapping[str, Any], manifest: Manifest) -> None:
        self._nodes = manifest.keys["x"].rows or 1
        asked = section["Variables_of_interest"]
        levels = zip(asked["output_dim"], asked["type"], strict=True)
        sizes = [dim * (1 if level == "graph" else self._nodes) for dim, level in levels]
        self._places = torch.tensor([[0, *sizes]]).cumsum(dim=1)
        # Those that HydraGNN has written are of the data that its weights were trained on.
        given, found = section["Architecture"], manifest.statistics
        self.pna_deg = given.get("pna_deg") or found.degree_histogram
        self.avg_num_neighbors = given.get("avg_num_neighbors") or found.avg_num_neighbors

    def __getitem__(self, index: int) -> Data:
        return Data(x=torch.zeros(self._nodes, 1), y_loc=self._places)
