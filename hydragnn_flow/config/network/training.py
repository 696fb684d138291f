"""`NeuralNetwork.Training`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.network.hydragnn_keys import IGNORED, NODE_BUDGET, drop_unused

# HydraGNN's other names of the precisions.
_PRECISIONS = {
    "bfloat16": "bf16",
    "float32": "fp32",
    "float": "fp32",
    "float64": "fp64",
    "double": "fp64",
}


class Optimizer(Section):
    """`NeuralNetwork.Training.Optimizer`."""

    type: Literal[
        "AdamW", "Adam", "SGD", "Adadelta", "Adagrad", "Adamax", "RMSprop", "FusedLAMB"
    ] = "AdamW"
    """torch's optimisers by their names there, and LAMB."""
    learning_rate: float = Field(gt=0)
    """The largest that is used; a schedule lowers it."""
    weight_decay: float | None = Field(default=None, ge=0)
    """That of the optimiser (AdamW 0.01, the others 0) where not given; not among HydraGNN's
    keys."""
    batch_scaling: Literal["none", "linear", "sqrt"] = "none"
    """The learning rate is multiplied by the graphs in a step over ``reference_batch``, or by the
    root of that; not among HydraGNN's keys."""
    reference_batch: int | None = Field(default=None, ge=1)
    """Graphs in the step that ``learning_rate`` is meant for; read with ``batch_scaling``."""
    use_zero_redundancy: bool = False
    """Ranks share the optimiser's state among them."""

    unused = IGNORED["Optimizer"]

    @model_validator(mode="before")
    @classmethod
    def _hydragnn_keys(cls, values: Any) -> Any:
        return _given(drop_unused("Optimizer", values))

    @model_validator(mode="after")
    def _scaled_from_somewhere(self) -> Optimizer:
        if self.batch_scaling != "none" and self.reference_batch is None:
            raise ValueError(
                f"batch_scaling {self.batch_scaling!r} needs reference_batch, the graphs in a step "
                f"that learning_rate is meant for"
            )
        return self


class Scheduler(Section):
    """`NeuralNetwork.Training.Scheduler`: how the learning rate changes; not among HydraGNN's keys.

    HydraGNN's drivers all use ``ReduceLROnPlateau`` with the values that are the defaults here.
    """

    type: Literal["constant", "ReduceLROnPlateau", "cosine", "one_cycle"]
    """``cosine`` and ``one_cycle`` end with ``num_epoch``; training a member further goes through
    another one."""
    warmup_epochs: float = Field(default=0.0, ge=0)
    """The learning rate rises for so long, step by step; with ``one_cycle`` three tenths of the
    cycle where zero."""
    factor: float = Field(default=0.5, gt=0, lt=1)
    """ReduceLROnPlateau: what the learning rate is multiplied by."""
    patience: int = Field(default=5, ge=0)
    """ReduceLROnPlateau: epochs without a smaller validation loss that are put up with."""
    min_lr: float = Field(default=1e-5, ge=0)
    """ReduceLROnPlateau, cosine: no learning rate below this one."""


# A field of the same name would hide the class from pydantic.
_Scheduler = Scheduler


class BatchLimits(Section):
    """`NeuralNetwork.Training.Batching`: what a step may hold over all ranks together."""

    mode: Literal["fixed", "node_budget"] = "fixed"
    """Steps of ``batch_size`` graphs, or of as many as the limits below allow."""
    max_nodes: int | None = Field(default=None, ge=1)
    """Atoms in a step; required with ``node_budget``."""
    max_edges: int | None = Field(default=None, ge=1)
    """Edges in a step; not among HydraGNN's keys."""
    max_graphs: int | None = Field(default=None, ge=1)
    """Graphs in a step."""
    oversized_sample: Literal["error", "single", "skip"] = "error"
    """A training graph beyond the limits is refused, gets a step of its own, or is left out."""

    unused = IGNORED["Batching"]

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
        values = drop_unused("Batching", values)
        # In this mode HydraGNN reads none of the others, and neither do we.
        if values.get("mode", "fixed") == "fixed":
            values = {key: value for key, value in values.items() if key not in NODE_BUDGET}
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
    accumulation_steps: int = Field(default=1, ge=1)
    """Parts in which a rank computes its share of a step, one after the other, which takes less
    memory and gives the same gradient; not among HydraGNN's keys."""
    loss_function_type: Literal["mse", "mae", "rmse", "smooth_l1", "huber", "GaussianNLLLoss"] = (
        "mse"
    )
    """Of residuals divided by a scale of the training split. ``rmse`` is the root of a step's mean
    square; ``GaussianNLLLoss`` is for heads that predict a variance as well; ``huber`` is not among
    HydraGNN's."""
    huber_delta: float = Field(default=0.1, gt=0)
    """Residual at which ``huber`` goes over from square to straight; not among HydraGNN's keys."""
    nll_beta: float = Field(default=0.0, ge=0, le=1)
    """``GaussianNLLLoss`` of each element is weighted with its variance to this power; 0.5 is a
    good value. Not among HydraGNN's keys."""
    Optimizer: Optimizer
    Scheduler: _Scheduler | None = None
    """Where not given, trials keep their learning rate, so that they can be trained on from any
    rung, and members lower theirs along half a cosine."""
    gradient_clip: float = Field(default=10.0, ge=0)
    """Largest norm of a step's gradient; 0 switches clipping off. Not among HydraGNN's keys."""
    ema_decay: float = Field(default=0.99, ge=0, lt=1)
    """The moving average of the weights, which is what is judged and kept, loses this share of
    what it was in a step; 0 switches it off. Not among HydraGNN's keys."""
    EarlyStopping: bool = False
    """Training ends after ``patience`` epochs without a smaller validation loss."""
    patience: int = Field(default=10, ge=1)
    """Read with ``EarlyStopping``."""
    conv_checkpointing: bool = False
    """What message-passing layers computed is computed again for the gradient instead of kept."""
    precision: Literal["fp32", "bf16", "fp64"] = "fp32"
    """``bf16`` keeps the weights in fp32 and trains under torch's autocast."""

    unused = IGNORED["Training"]

    @model_validator(mode="before")
    @classmethod
    def _hydragnn_keys(cls, values: Any) -> Any:
        values = _given(drop_unused("Training", values))
        if isinstance(values, dict) and isinstance(values.get("precision"), str):
            name = values["precision"].lower()
            values = values | {"precision": _PRECISIONS.get(name, name)}
        return values

    @model_validator(mode="after")
    def _root_of_a_whole_step(self) -> Training:
        if self.loss_function_type == "rmse" and self.accumulation_steps > 1:
            raise ValueError(
                "loss_function_type 'rmse' takes the root over a whole step, which "
                "accumulation_steps divides; write 'mse' or remove accumulation_steps"
            )
        return self


def _given(values: Any) -> Any:
    """HydraGNN writes null for what is not given."""
    if not isinstance(values, dict):
        return values
    return {key: value for key, value in values.items() if value is not None}
