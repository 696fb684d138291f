"""`NeuralNetwork.Training.sharding` and `.ddp`: distribution of a network over ranks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, model_validator

from hydragnn_flow.config.base import Section


class Sharding(Section):
    """`NeuralNetwork.Training.sharding`: the shard of a network that each GCD holds.

    Networks are sharded by torch's ``fully_shard`` (FSDP2); the strategies have the names of FSDP.
    HydraGNN reads them from ``HYDRAGNN_FSDP_STRATEGY`` in its environment.
    """

    strategy: Literal["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD"] = "NO_SHARD"
    """Shard of each GCD: the whole network (``NO_SHARD``, DDP); its part of parameters, gradients
    and optimiser's state, with parameters gathered for the forward and again for the backward pass
    (``FULL_SHARD``) or kept in between (``SHARD_GRAD_OP``); or ``FULL_SHARD`` within groups
    (``HYBRID_SHARD``)."""
    group: int | None = Field(default=None, ge=2)
    """Number of GCDs that together hold one copy of the network, such as those of a node. Required
    with ``HYBRID_SHARD``."""
    prefetch: Literal["backward_pre", "none"] = "backward_pre"
    """Gather the parameters of the next layer before the backward pass of the current one
    (``backward_pre``), or when needed. No effect for potentials, which are gathered as a whole."""
    reshard_after_forward: StrictBool | Annotated[StrictInt, Field(ge=2)] | None = None
    """Free gathered parameters after the forward pass; a number n keeps the shard of one of n GCDs.
    By default as the strategy says. ``false`` makes the groups of ``HYBRID_SHARD`` work like
    ``SHARD_GRAD_OP``."""
    limit_all_gathers: Literal[True] = True
    """Gather parameters at most one layer ahead, as ``fully_shard`` always does."""

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
        """True if several GCDs would each hold a shard."""
        return self.strategy != "NO_SHARD"

    @property
    def reshards(self) -> bool | int:
        """Argument ``reshard_after_forward`` of ``fully_shard``."""
        if self.reshard_after_forward is not None:
            return self.reshard_after_forward
        return self.strategy != "SHARD_GRAD_OP"

    def replica(self, gcds: int) -> int:
        """Return the number of GCDs that hold one copy of the network, out of all that train it."""
        if not self.is_sharded:
            return 1
        return gcds if self.strategy != "HYBRID_SHARD" else min(self.group or gcds, gcds)

    def wrong_width(self, gcds: int) -> str:
        """Return why the network cannot be trained on so many GCDs, and a remedy; empty if fine."""
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
    """`NeuralNetwork.Training.ddp`: gradient exchange of GCDs that all hold the network.

    The keys are those of torch's ``DistributedDataParallel``.
    """

    bucket_cap_mb: float = Field(default=25.0, gt=0)
    """Size of the buckets in which gradients are exchanged [MiB]."""
    gradient_as_bucket_view: bool = True
    """Keep gradients in the buckets, so that they are stored once."""
    static_graph: bool = False
    """Promise that the backward pass uses the same parameters in every step. Not with
    ``accumulation_steps``."""
    comm_hook: Literal["none", "bf16"] = "none"
    """``bf16`` exchanges gradients rounded to bfloat16, in half the bytes."""
