"""Schema of `NeuralNetwork.Training`, with `sharding` and `ddp`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.network.hydragnn_keys import IGNORED, NODE_BUDGET, REFUSED


class Sharding(Section):
    """`NeuralNetwork.Training.sharding`: the shard of a network that each GCD holds.

    Networks are sharded by torch's ``fully_shard`` (FSDP2); the strategies have the names of FSDP.
    HydraGNN reads the strategy from the environment variable ``HYDRAGNN_FSDP_STRATEGY``.
    """

    strategy: Literal[
        "NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"
    ] = "NO_SHARD"
    """Part of the network that each GCD holds: all of it (``NO_SHARD``, DDP), or a shard of the
    parameters, gradients and optimiser's state. Parameters are gathered for the forward and again
    for the backward pass (``FULL_SHARD``), or kept in between (``SHARD_GRAD_OP``).
    ``HYBRID_SHARD`` and ``HYBRID_SHARD_ZERO2`` are these two strategies within groups of GCDs."""
    group: int | None = Field(default=None, ge=2)
    """Number of GCDs that together hold one copy of the network, such as those of a node. Required
    with ``HYBRID_SHARD`` and ``HYBRID_SHARD_ZERO2``."""

    def _conflicts(self) -> Iterator[str]:
        if self.has_groups and self.group is None:
            yield (
                f"strategy {self.strategy!r} needs group, the GCDs that hold the network together; "
                "write those of a node"
            )

    @property
    def is_sharded(self) -> bool:
        """True if several GCDs would each hold a shard of the network."""
        return self.strategy != "NO_SHARD"

    @property
    def reshards(self) -> bool:
        """True if parameters gathered from other GCDs are freed after the forward pass."""
        return self.strategy not in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2")

    @property
    def has_groups(self) -> bool:
        """True if each group of GCDs holds a copy of the network."""
        return self.strategy.startswith("HYBRID_SHARD")

    def replica(self, gcds: int) -> int:
        """Return the number of GCDs that together hold one copy of the network.

        ``gcds`` is the number of all GCDs that train the network.
        """
        if not self.is_sharded:
            return 1
        return min(self.group or gcds, gcds) if self.has_groups else gcds

    def wrong_width(self, gcds: int) -> str:
        """Return why ``gcds`` GCDs cannot train the network, and a remedy; empty if they can."""
        if gcds % self.replica(gcds):
            return (
                f"Training.sharding.group = {self.group} does not divide {gcds} GCDs; choose one "
                f"that does"
            )
        return ""


class DDP(Section):
    """`NeuralNetwork.Training.ddp`: gradient exchange of GCDs that all hold the network.

    The keys are those of torch's ``DistributedDataParallel``.
    """

    bucket_cap_mb: float = Field(default=25.0, gt=0)
    """Size of the buckets in which gradients are exchanged [MiB]."""


# HydraGNN's other names of the precisions.
_PRECISIONS = {
    "bfloat16": "bf16",
    "float32": "fp32",
    "float": "fp32",
    "float64": "fp64",
    "double": "fp64",
}


class Optimizer(Section):
    """`NeuralNetwork.Training.Optimizer`: optimiser and learning rate."""

    type: Literal["AdamW", "Adam", "SGD", "Adadelta", "Adagrad", "Adamax", "RMSprop", "Muon"] = (
        "AdamW"
    )
    """Optimiser: a class name of torch. ``Muon``, which HydraGNN lacks, trains weight matrices, and
    AdamW the rest."""
    learning_rate: float = Field(gt=0)
    """Largest learning rate. A schedule lowers it."""
    weight_decay: float | None = Field(default=None, ge=0)
    """Weight decay. By default 0.01 for AdamW and Muon, 0 for the others."""
    use_zero_redundancy: bool = False
    """The same as ``sharding`` with the strategy ``SHARD_GRAD_OP``. It has no effect if
    ``sharding`` is given, and none with ``task_parallel`` or an engine."""

    @model_validator(mode="before")
    @classmethod
    def _hydragnn_keys(cls, values: Any) -> Any:
        return _given(values)

    def with_batches(self, number: int) -> Optimizer:
        """Return the section with the learning rate for steps of ``number`` batches instead of one.

        The learning rate grows in proportion for SGD (Goyal et al., arXiv:1706.02677), and with the
        square root for other optimisers, which divide steps by the magnitude of the gradient
        (Malladi et al., arXiv:2205.10287).
        """
        factor = number if self.type == "SGD" else number**0.5
        return self.model_copy(update={"learning_rate": self.learning_rate * factor})


class Scheduler(Section):
    """`NeuralNetwork.Training.Scheduler`: learning-rate schedule; not among HydraGNN's keys.

    HydraGNN's drivers all use ``ReduceLROnPlateau`` with the values that are the defaults here.
    """

    type: Literal["constant", "ReduceLROnPlateau", "cosine"]
    """Kind of schedule. ``cosine`` ends with ``num_epoch``."""
    warmup_epochs: float = Field(default=0.0, ge=0)
    """Number of epochs at the start during which the learning rate rises, step by step."""
    factor: float = Field(default=0.5, gt=0, lt=1)
    """ReduceLROnPlateau: factor by which the learning rate is multiplied."""
    patience: int = Field(default=5, ge=0)
    """ReduceLROnPlateau: number of epochs without improvement before the learning rate falls."""
    min_lr: float = Field(default=1e-5, ge=0)
    """ReduceLROnPlateau, cosine: smallest learning rate."""


# A field of the same name would hide the class from pydantic.
_Scheduler = Scheduler


class BatchLimits(Section):
    """`NeuralNetwork.Training.Batching`: size limits of a training step over all GCDs together."""

    mode: Literal["fixed", "node_budget"] = "fixed"
    """Number of graphs in a step: ``batch_size`` (``fixed``), or as many as the limits below allow
    (``node_budget``)."""
    max_nodes: int | None = Field(default=None, ge=1)
    """Maximum number of atoms in a step. Required with ``node_budget``."""
    max_edges: int | None = Field(default=None, ge=1)
    """Maximum number of edges in a step."""
    max_graphs: int | None = Field(default=None, ge=1)
    """Maximum number of graphs in a step."""
    oversized_sample: Literal["error", "single", "skip"] = "error"
    """Treatment of a training graph beyond the limits: reject the run (``error``), give it a step
    of its own (``single``), or leave it out (``skip``)."""

    refused = REFUSED["Batching"]

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
        # In this mode HydraGNN reads none of the limits, and nor does this package.
        if values.get("mode", "fixed") == "fixed":
            values = {key: value for key, value in values.items() if key not in NODE_BUDGET}
        return values

    def _conflicts(self) -> Iterator[str]:
        if self.mode == "node_budget" and self.max_nodes is None:
            yield "mode 'node_budget' needs max_nodes, the atoms a step may hold"


class Training(Section):
    """`NeuralNetwork.Training`: loss, optimiser, batches and length of training."""

    num_epoch: int = Field(ge=1)
    """Number of epochs of a trial that no rung stops. An epoch is a pass through the training
    split, or an equal share of ``search.budget``."""
    batch_size: int = Field(ge=1)
    """Number of graphs in a step: over all GCDs together, or on each GCD with
    ``resources.batch_per_gcd``. Read with ``Batching.mode: fixed``."""
    Batching: BatchLimits | None = None
    accumulation_steps: int = Field(default=1, ge=1)
    """Number of micro-batches in which each GCD computes its graphs of a step. More micro-batches
    take less memory and give the same gradient."""
    loss_function_type: Literal["mse", "mae", "rmse", "smooth_l1", "GaussianNLLLoss"] = "mse"
    """Loss of the scaled residuals. With ``GaussianNLLLoss`` heads also predict a variance."""
    branch_weights: dict[str, Annotated[float, Field(gt=0)]] | None = None
    """Loss weight of each data set of ``data.sources``, by its name. By default 1."""
    nll_beta: float = Field(default=0.0, ge=0, le=1)
    """Power of the predicted variance by which ``GaussianNLLLoss`` weights each element. 0.5 is a
    good value."""
    Optimizer: Optimizer
    Scheduler: _Scheduler | None = None
    """Learning-rate schedule. By default trials keep their learning rate, and members lower it
    along half a cosine."""
    gradient_clip: float = Field(default=2.0, ge=0)
    """Largest norm of a step's gradient, relative to the usual norm (geometric mean over about the
    last 100 steps); 0 for no limit."""
    ema_decay: float = Field(default=0.99, ge=0, lt=1)
    """Decay per step of the moving average of the weights, which is validated and kept; 0 for
    none."""
    EarlyStopping: bool = False
    """Stop training after ``patience`` epochs without improvement."""
    patience: int = Field(default=10, ge=1)
    """Epochs without improvement before ``EarlyStopping``."""
    conv_checkpointing: bool = False
    """Recompute activations of message-passing layers for the gradient, to save memory. A PaiNN
    potential of width 64 takes 112 instead of 219 MB for 20,480 edges, in twice the time."""
    compile: Literal["auto", True, False] = False
    """Compile the gradient's kernels. With ``auto`` on CPUs, for trainings that this shortens."""
    precision: Literal["fp32", "bf16", "fp64"] = "fp32"
    """Precision of training. ``bf16`` is autocast, with weights in fp32."""
    sharding: Sharding = Sharding()
    """Sharding of the network over GCDs. By default each GCD holds all of it."""
    ddp: DDP = DDP()
    """Gradient exchange of GCDs that all hold the network."""
    task_parallel: bool = False
    """Distribute the heads of data sets over GCDs. Each GCD computes the graphs of its data sets,
    and holds the whole encoder."""

    unused, refused = IGNORED["Training"], REFUSED["Training"]

    def with_batches(self, number: int) -> Training:
        """Return the section adapted to training steps of ``number`` batches instead of one.

        The learning rate is that of :meth:`Optimizer.with_batches`. The decay of the moving average
        is raised to the power ``number``, so that the average remembers as many graphs as before
        (Busbridge et al., arXiv:2307.13813).
        """
        optimizer = self.Optimizer.with_batches(number)
        changes = {"Optimizer": optimizer, "ema_decay": self.ema_decay**number}
        return self.model_copy(update=changes)

    @model_validator(mode="before")
    @classmethod
    def _hydragnn_keys(cls, values: Any) -> Any:
        values = _given(values)
        if isinstance(values, dict) and isinstance(values.get("precision"), str):
            name = values["precision"].lower()
            values = values | {"precision": _PRECISIONS.get(name, name)}
        return values

    @property
    def is_sharded(self) -> bool:
        """True if several GCDs would each hold a shard of the network."""
        return self.sharding.is_sharded

    def _conflicts(self) -> Iterator[str]:
        if self.task_parallel and self.is_sharded:
            yield (
                "task_parallel divides the heads among GCDs, and sharding.strategy all of the "
                "network; remove one of them"
            )
        if self.loss_function_type == "rmse" and self.accumulation_steps > 1:
            yield (
                "loss_function_type 'rmse' takes the root over a whole step, which "
                "accumulation_steps divides; write 'mse' or remove accumulation_steps"
            )


def _given(values: Any) -> Any:
    """Return the values of a section without nulls, which HydraGNN writes for keys not given."""
    if not isinstance(values, dict):
        return values
    return {key: value for key, value in values.items() if value is not None}
