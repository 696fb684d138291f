"""`NeuralNetwork.Training.sharding` and `.ddp`: distribution of a network over ranks."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from hydragnn_flow.config.base import Section


class Sharding(Section):
    """`NeuralNetwork.Training.sharding`: the shard of a network that each GCD holds.

    Networks are sharded by torch's ``fully_shard`` (FSDP2); the strategies have the names of FSDP.
    HydraGNN reads them from ``HYDRAGNN_FSDP_STRATEGY`` in its environment.
    """

    strategy: Literal[
        "NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"
    ] = "NO_SHARD"
    """Shard of each GCD: the whole network (``NO_SHARD``, DDP); its part of parameters, gradients
    and optimiser's state, with parameters gathered for the forward and again for the backward pass
    (``FULL_SHARD``) or kept in between (``SHARD_GRAD_OP``); or one of these within groups
    (``HYBRID_SHARD``, ``HYBRID_SHARD_ZERO2``)."""
    group: int | None = Field(default=None, ge=2)
    """Number of GCDs that together hold one copy of the network, such as those of a node. Required
    with ``HYBRID_SHARD`` and ``HYBRID_SHARD_ZERO2``."""

    removed: ClassVar = {
        "prefetch": ("backward_pre", "layers are always gathered ahead; remove it"),
        "reshard_after_forward": (None, "write the strategy that does so, or remove it"),
        "limit_all_gathers": (True, "fully_shard always limits them; remove it"),
    }

    @model_validator(mode="after")
    def _of_the_strategy(self) -> Sharding:
        if self.has_groups and self.group is None:
            raise ValueError(
                f"strategy {self.strategy!r} needs group, the GCDs that hold the network together; "
                "write those of a node"
            )
        return self

    @property
    def is_sharded(self) -> bool:
        """True if several GCDs would each hold a shard."""
        return self.strategy != "NO_SHARD"

    @property
    def reshards(self) -> bool:
        """True if gathered parameters are freed after the forward pass."""
        return self.strategy not in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2")

    @property
    def has_groups(self) -> bool:
        """True if each group of GCDs holds a copy of the network."""
        return self.strategy.startswith("HYBRID_SHARD")

    def replica(self, gcds: int) -> int:
        """Return the number of GCDs that hold one copy of the network, out of all that train it."""
        if not self.is_sharded:
            return 1
        return min(self.group or gcds, gcds) if self.has_groups else gcds

    def wrong_width(self, gcds: int) -> str:
        """Return why the network cannot be trained on so many GCDs, and a remedy; empty if fine."""
        if gcds == 1 or not self.is_sharded:
            return ""
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
    comm_hook: Literal["none", "bf16"] = "none"
    """``bf16`` exchanges gradients rounded to bfloat16, in half the bytes."""

    removed: ClassVar = {
        "gradient_as_bucket_view": (True, "gradients are always stored once; remove it"),
        "static_graph": (False, "the same parameters are used in every step; remove it"),
    }
