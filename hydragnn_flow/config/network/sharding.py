"""`NeuralNetwork.Training.sharding` and `.ddp`: how the ranks of a training divide a network."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, model_validator

from hydragnn_flow.config.base import Section


class Sharding(Section):
    """`NeuralNetwork.Training.sharding`: what of a network each GCD of a training holds.

    By torch's ``fully_shard`` (FSDP2); the strategies have the names of FSDP. HydraGNN takes them
    from its environment, as ``HYDRAGNN_FSDP_STRATEGY``.
    """

    strategy: Literal["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD"] = "NO_SHARD"
    """``NO_SHARD``: all GCDs hold the whole network (DDP). ``FULL_SHARD``: each holds its part of
    the parameters, their gradients and the optimiser's state, and gathers the parameters for the
    forward and once more for the backward pass. ``SHARD_GRAD_OP`` keeps what the forward pass has
    gathered for the backward pass. ``HYBRID_SHARD``: ``FULL_SHARD`` within groups, each of which
    holds the whole network."""
    group: int | None = Field(default=None, ge=2)
    """GCDs that hold the network together. Required with ``HYBRID_SHARD``; those of a node are a
    good choice."""
    prefetch: Literal["backward_pre", "none"] = "backward_pre"
    """When the backward pass gathers the parameters of the layer after: before it computes that of
    a layer, or not ahead of time. A potential is gathered as a whole, and has nothing to
    prefetch."""
    reshard_after_forward: StrictBool | Annotated[StrictInt, Field(ge=2)] | None = None
    """Whether a GCD frees gathered parameters after the forward pass. With a number n it keeps the
    part that it would hold if n GCDs held the network together. By default as the strategy says.
    ``false`` goes with ``HYBRID_SHARD`` alone, whose groups then do as ``SHARD_GRAD_OP``."""
    limit_all_gathers: Literal[True] = True
    """Whether parameters are gathered for a layer ahead at most. ``fully_shard`` always does so."""

    @model_validator(mode="after")
    def _of_the_strategy(self) -> Sharding:
        if self.strategy == "HYBRID_SHARD" and self.group is None:
            raise ValueError(
                "strategy 'HYBRID_SHARD' needs group, the GCDs that hold the network together; "
                "write those of a node"
            )
        reshard = self.reshard_after_forward
        if self.strategy == "SHARD_GRAD_OP" and reshard not in (None, False):
            raise ValueError(
                "strategy 'SHARD_GRAD_OP' keeps parameters after the forward pass, and "
                f"reshard_after_forward is {reshard!r}; write 'FULL_SHARD' or remove the key"
            )
        if self.strategy == "FULL_SHARD" and reshard is False:
            raise ValueError(
                "strategy 'FULL_SHARD' does not keep parameters after the forward pass, and "
                "reshard_after_forward is False; write 'SHARD_GRAD_OP' or remove the key"
            )
        return self

    @property
    def is_sharded(self) -> bool:
        """Whether several GCDs would each hold a part."""
        return self.strategy != "NO_SHARD"

    @property
    def reshards(self) -> bool | int:
        """What ``fully_shard`` is to be told."""
        if self.reshard_after_forward is not None:
            return self.reshard_after_forward
        return self.strategy != "SHARD_GRAD_OP"

    def replica(self, gcds: int) -> int:
        """GCDs that hold the network together, of all that train it."""
        if not self.is_sharded:
            return 1
        return gcds if self.strategy != "HYBRID_SHARD" else min(self.group or gcds, gcds)

    def wrong_width(self, gcds: int) -> str:
        """What is wrong with training on some GCDs, and the remedy; empty if nothing is."""
        if gcds == 1 or not self.is_sharded:
            return ""
        if gcds % self.replica(gcds):
            return (
                f"Training.sharding.group = {self.group} does not divide {gcds} GCDs; choose one "
                f"that does"
            )
        reshard = self.reshards
        if not isinstance(reshard, bool) and self.replica(gcds) % reshard:
            return (
                f"Training.sharding.reshard_after_forward = {reshard} does not divide the "
                f"{self.replica(gcds)} GCDs that hold the network together; choose one that does"
            )
        return ""


class DDP(Section):
    """`NeuralNetwork.Training.ddp`: how GCDs that all hold the network exchange its gradient.

    The keys are those of torch's ``DistributedDataParallel``.
    """

    bucket_cap_mb: float = Field(default=25.0, gt=0)
    """Size of the buckets in which gradients are exchanged while the backward pass goes on
    [MiB]."""
    gradient_as_bucket_view: bool = True
    """Whether gradients live in the buckets. Otherwise they are held twice."""
    static_graph: bool = False
    """Whether the backward pass computes the same parameters in every step. Not with
    ``accumulation_steps``."""
    comm_hook: Literal["none", "bf16"] = "none"
    """``bf16``: gradients are exchanged in half the bytes, rounded to bfloat16."""
