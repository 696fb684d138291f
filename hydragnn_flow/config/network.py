"""HydraGNN's network configuration: its JSON, its key names, checked.

A HydraGNN file is accepted as users have it. Keys this package does not honour are refused by
name, unless they change nothing here or hold the value that switches the feature off.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from hydragnn_flow.config.base import Section, validate
from hydragnn_flow.errors import InputError

MpnnType = Literal["SchNet", "EGNN", "PNA"]
Activation = Literal[
    "relu",
    "silu",
    "selu",
    "gelu",
    "tanh",
    "prelu",
    "elu",
    "lrelu_01",
    "lrelu_025",
    "lrelu_05",
    "sigmoid",
]

# Keys of HydraGNN's that change nothing here, whatever their value.
_IGNORED = {
    "Architecture": {
        # derived from the store; HydraGNN writes them into the configurations it saves
        "input_dim",
        "output_dim",
        "output_type",
        "num_nodes",
        "edge_dim",
        "pna_deg",
        "avg_num_neighbors",
        # shape only message-passing types that are not chosen, in HydraGNN as here
        "radial_type",
        "distance_transform",
        "envelope_exponent",
        "num_after_skip",
        "num_before_skip",
        "basis_emb_size",
        "int_emb_size",
        "out_emb_size",
        "num_radial",
        "num_spherical",
        "max_ell",
        "node_max_ell",
        "correlation",
        # details of features that other keys, refused below, switch on
        "global_attn_type",
        "global_attn_heads",
        "pe_dim",
        "graph_attr_conditioning_mode",
        # periodicity comes with each structure
        "periodic_boundary_conditions",
    },
    "Training": {
        "perc_train",  # the run configuration's data.split decides
        "patience",
        "Checkpoint",  # every segment ends in one, and ends in time
        "checkpoint_warmup",
        "CheckRemainingTime",
        "startfrom",  # only with `continue`
        "global_attn_redraw_interval",
    },
    "Batching": set[str](),
    "Optimizer": set[str](),
    "Variables_of_interest": {
        # targets are found by name, statistics come from the store, and predictions are always
        # in the data's units
        "output_index",
        "denormalize_output",
        "minmax_node_feature",
        "minmax_graph_feature",
        "graph_feature_names",
        "graph_feature_dims",
        "node_feature_names",
        "node_feature_dims",
    },
}
# Keys that may only hold the value that switches their feature off.
_NOT_HONOURED = {
    "Architecture": {
        "model_type": "HydraGNN renamed it; write mpnn_type",
        "equivariance": "equivariant coordinate updates are not built yet",
        "global_attn_engine": "global attention is not built yet",
        "freeze_conv_layers": "frozen layers are not built yet",
        "initial_bias": "the initial bias is the training mean",
        "SyncBatchNorm": "no layer here normalises over a batch",
        "use_graph_attr_conditioning": "graph-attribute conditioning is not built yet",
    },
    "Training": {
        "EarlyStopping": "rungs end poor trials; early stopping is not built yet",
        "continue": "running the same command again continues",
        "epoch_start": "running the same command again continues",
        "conv_checkpointing": "activation checkpointing is not built yet",
    },
    "Batching": {
        "drop_last": "every graph is trained on in every epoch",
        "seed": "the run's seed decides the order",
    },
    "Optimizer": {"use_zero_redundancy": "optimiser sharding is not built yet"},
    "Variables_of_interest": dict[str, str](),
}
# Keys of `Batching` that only its mode `node_budget` reads.
_NODE_BUDGET = {"max_nodes", "max_edges", "max_graphs", "oversized_sample"}


def _drop_unused(section: str, values: Any) -> Any:
    """Remove known keys that change nothing; refuse known keys that would."""
    if not isinstance(values, dict):
        return values
    kept = {}
    for key, value in values.items():
        reason = _NOT_HONOURED[section].get(key)
        if key in _IGNORED[section]:
            continue
        if reason is None:
            kept[key] = value
        elif value not in (None, False, 0, "", []):
            raise ValueError(f"{key!r} cannot be honoured: {reason}; remove the key")
    return kept


class GraphHead(Section):
    """Layers of a graph-level output: shared by all graph heads, then the head's own."""

    num_sharedlayers: int = Field(default=2, ge=0)
    dim_sharedlayers: int = Field(default=32, ge=1)
    num_headlayers: int = Field(default=2, ge=1)
    dim_headlayers: tuple[int, ...] = (32, 32)

    @model_validator(mode="after")
    def _one_width_per_layer(self) -> GraphHead:
        if len(self.dim_headlayers) < self.num_headlayers:
            raise ValueError("dim_headlayers needs a width for each of num_headlayers")
        return self


class NodeHead(Section):
    """Layers of a node-level output."""

    num_headlayers: int = Field(default=2, ge=1)
    dim_headlayers: tuple[int, ...] = (32, 32)
    type: Literal["mlp"] = "mlp"

    @model_validator(mode="after")
    def _one_width_per_layer(self) -> NodeHead:
        if len(self.dim_headlayers) < self.num_headlayers:
            raise ValueError("dim_headlayers needs a width for each of num_headlayers")
        return self


class OutputHeads(Section):
    """Heads by kind; each output is of one of these kinds."""

    graph: GraphHead | None = None
    node: NodeHead | None = None


class Architecture(Section):
    """`NeuralNetwork.Architecture`."""

    mpnn_type: MpnnType
    """Message-passing type."""
    hidden_dim: int = Field(ge=1)
    """Width of node features."""
    num_conv_layers: int = Field(ge=1)
    """Number of message-passing layers."""
    radius: float | None = Field(default=None, gt=0)
    """Cutoff of the neighbour list [Å]."""
    max_neighbours: int | None = Field(default=None, ge=1)
    """Nearest neighbours kept per atom; all within the radius where not given."""
    num_gaussians: int = Field(default=50, ge=2)
    """Radial basis functions on edge lengths."""
    num_filters: int | None = Field(default=None, ge=1)
    """Width of SchNet's filters; ``hidden_dim`` where not given."""
    activation_function: Activation = "relu"
    graph_pooling: Literal["mean", "add", "sum", "max"] = "mean"
    edge_features: tuple[Literal["lengths"], ...] | None = None
    """What edges carry beside who they join."""
    enable_interatomic_potential: bool = False
    """The one head is an energy; forces are minus its gradient."""
    energy_weight: float = Field(default=0.0, ge=0)
    energy_peratom_weight: float = Field(default=0.0, ge=0)
    force_weight: float = Field(default=0.0, ge=0)
    """Weights of the potential's losses."""
    output_heads: OutputHeads
    task_weights: tuple[float, ...] | None = None
    """Weight of each output's loss; normalised to sum to one."""

    @model_validator(mode="before")
    @classmethod
    def _hydragnn_keys(cls, values: Any) -> Any:
        return _drop_unused("Architecture", values)

    @field_validator("num_gaussians", mode="before")
    @classmethod
    def _default_gaussians(cls, value: Any) -> Any:
        return 50 if value is None else value

    @model_validator(mode="after")
    def _weighted_potential(self) -> Architecture:
        weights = (self.energy_weight, self.energy_peratom_weight, self.force_weight)
        if self.enable_interatomic_potential and not any(weights):
            raise ValueError(
                "enable_interatomic_potential needs a weight above zero for at least one of "
                "energy_weight, energy_peratom_weight and force_weight"
            )
        return self


class VariablesOfInterest(Section):
    """`NeuralNetwork.Variables_of_interest`."""

    input_node_features: tuple[int, ...] = (0,)
    """Columns of the node features that go in."""
    output_names: tuple[str, ...] = Field(min_length=1)
    """Targets, by their names in the store."""
    type: tuple[Literal["graph", "node"], ...]
    """Level of each output."""
    output_dim: tuple[int, ...] | None = None
    """Number of components of each output; the store knows them."""

    @model_validator(mode="before")
    @classmethod
    def _hydragnn_keys(cls, values: Any) -> Any:
        return _drop_unused("Variables_of_interest", values)

    @model_validator(mode="after")
    def _one_type_each(self) -> VariablesOfInterest:
        if len(self.type) != len(self.output_names):
            raise ValueError("type needs one entry ('graph' or 'node') for each of output_names")
        return self


class Optimizer(Section):
    """`NeuralNetwork.Training.Optimizer`."""

    type: Literal["AdamW", "Adam", "SGD"] = "AdamW"
    learning_rate: float = Field(gt=0)

    @model_validator(mode="before")
    @classmethod
    def _hydragnn_keys(cls, values: Any) -> Any:
        return _drop_unused("Optimizer", values)


class BatchLimits(Section):
    """`NeuralNetwork.Training.Batching`: what a step may hold over all ranks together."""

    mode: Literal["fixed", "node_budget"] = "fixed"
    """Steps of ``batch_size`` graphs, or of as many as the limits below allow."""
    max_nodes: int | None = Field(default=None, ge=1)
    """Atoms in a step."""
    max_edges: int | None = Field(default=None, ge=1)
    """Edges in a step; not among HydraGNN's keys."""
    max_graphs: int | None = Field(default=None, ge=1)
    """Graphs in a step."""
    oversized_sample: Literal["error", "single", "skip"] = "error"
    """A training graph beyond the limits is refused, gets a step of its own, or is left out."""

    @model_validator(mode="before")
    @classmethod
    def _hydragnn_keys(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if values.pop("shuffle", None) not in (None, True):
            raise ValueError(
                "'shuffle' cannot be honoured: graphs are shuffled anew in every epoch; "
                "remove the key"
            )
        values = _drop_unused("Batching", values)
        # In this mode HydraGNN reads none of the others, and neither do we.
        if values.get("mode", "fixed") == "fixed":
            values = {key: value for key, value in values.items() if key not in _NODE_BUDGET}
        return values

    @model_validator(mode="after")
    def _limited(self) -> BatchLimits:
        if self.mode == "node_budget" and self.max_nodes is None:
            raise ValueError("mode 'node_budget' needs max_nodes, the atoms a step may hold")
        return self


class Training(Section):
    """`NeuralNetwork.Training`."""

    num_epoch: int = Field(ge=1)
    """Epochs a trial is trained when no rung ends it."""
    batch_size: int = Field(ge=1)
    """Graphs in a step over all ranks together; read in the mode `fixed` of ``Batching``."""
    Batching: BatchLimits | None = None
    loss_function_type: Literal["mse", "mae", "smooth_l1"] = "mse"
    Optimizer: Optimizer
    precision: Literal["fp32", "fp64"] = "fp32"

    @model_validator(mode="before")
    @classmethod
    def _hydragnn_keys(cls, values: Any) -> Any:
        return _drop_unused("Training", values)


class NetworkConfig(Section):
    """The `NeuralNetwork` section of a HydraGNN file."""

    Architecture: Architecture
    Variables_of_interest: VariablesOfInterest
    Training: Training

    @model_validator(mode="after")
    def _heads_present(self) -> NetworkConfig:
        heads = self.Architecture.output_heads
        kinds = self.Variables_of_interest.type
        for kind in kinds:
            if getattr(heads, kind) is None:
                raise ValueError(
                    f"Architecture.output_heads has no {kind!r} head, but "
                    f"Variables_of_interest.type asks for one"
                )
        weights = self.Architecture.task_weights
        if weights is not None and len(weights) != len(kinds):
            raise ValueError("Architecture.task_weights needs one weight per output")
        if weights is not None and (min(weights) < 0 or max(weights) <= 0):
            raise ValueError("Architecture.task_weights must not be negative, and one above zero")
        if self.Architecture.enable_interatomic_potential and len(kinds) != 1:
            raise ValueError(
                "enable_interatomic_potential takes exactly one output, the energy; forces follow"
            )
        return self


def network_section(values: Mapping[str, Any], source: object) -> dict[str, Any]:
    """The `NeuralNetwork` section of a HydraGNN configuration, unchecked.

    The sections `Verbosity`, `Dataset` and `Visualization` steer HydraGNN's own drivers; here the
    run configuration takes their place.
    """
    if "NeuralNetwork" not in values:
        raise InputError(f"{source}: the key 'NeuralNetwork' is required, as in a HydraGNN file")
    for key in values:
        if key not in {"NeuralNetwork", "Verbosity", "Dataset", "Visualization"}:
            raise InputError(f"{source}: unknown key {key!r} beside 'NeuralNetwork'; remove it")
    section = values["NeuralNetwork"]
    if not isinstance(section, Mapping):
        raise InputError(f"{source}: NeuralNetwork must be a mapping of sections")
    return {key: value for key, value in section.items() if key not in ("Profile", "ds_config")}


def read_json(path: Path) -> Any:
    """Read a JSON file; what is wrong with it becomes one sentence."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except ValueError as error:
        raise InputError(f"{path}: is not valid JSON ({error}); correct the file") from None


def load_network(
    network: NetworkConfig | Mapping[str, Any] | str | Path, source: object = "network"
) -> NetworkConfig:
    """Check a HydraGNN network configuration.

    Parameters
    ----------
    network
        A path to HydraGNN's JSON, its content, its `NeuralNetwork` section, or an already checked
        configuration.
    source
        What to call it in errors, where it is not a path.

    Raises
    ------
    InputError
        If a key is unknown, missing, of the wrong type, or cannot be honoured.
    """
    if isinstance(network, NetworkConfig):
        return network
    if isinstance(network, (str, Path)):
        source = network
        network = read_json(Path(network))
    if not isinstance(network, Mapping):
        raise InputError(f"{source}: must hold a mapping, as HydraGNN's JSON does")
    section = network if "Architecture" in network else network_section(network, source)
    config: NetworkConfig = validate(NetworkConfig, dict(section), source)
    return config
