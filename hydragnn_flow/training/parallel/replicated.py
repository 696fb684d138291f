"""Data-parallel training: every rank holds the whole network (DDP)."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from hydragnn_flow.config.network import DDP
from hydragnn_flow.training.parallel.alone import Parallel

# Name of the option to broadcast the first rank's buffers before a forward pass. Newer versions of
# torch deprecate the second name. The first also broadcasts them when DDP is made, which changes
# nothing here.
_KEYS = inspect.signature(DistributedDataParallel).parameters
_OF_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _KEYS else "broadcast_buffers"


class Replicated(Parallel):
    """Training of a network that every rank holds, with an exchange of gradients.

    Parameters
    ----------
    model
        The network, on its device.
    settings
        Settings of the exchange, from `Training.ddp`.
    foreign
        True if the network may leave weights out of a step, or normalise by running means.
    """

    def __init__(self, model: nn.Module, settings: DDP, *, foreign: bool) -> None:
        super().__init__(model)
        exchange: dict[str, Any] = {_OF_BUFFERS: foreign}
        self._ddp = DistributedDataParallel(
            model,
            **exchange,
            find_unused_parameters=foreign,
            bucket_cap_mb=settings.bucket_cap_mb,
            gradient_as_bucket_view=True,
        )
        if settings.comm_hook == "bf16":
            self._ddp.register_comm_hook(None, _in_bf16)

    def outputs(self, batch: Any) -> dict[str, Tensor]:
        """See :meth:`Parallel.outputs`."""
        found: dict[str, Tensor] = self._ddp(batch)
        return found

    def without_exchange(self) -> AbstractContextManager[None]:
        """See :meth:`Parallel.without_exchange`."""
        return self._ddp.no_sync()


def _in_bf16(state: Any, bucket: Any) -> Any:
    """Call torch's hook, which DDP refuses by name except on NCCL and XCCL; gloo sums bf16 too."""
    return bf16_compress_hook(state, bucket)


# DDP checks the annotations.
_in_bf16.__annotations__ = bf16_compress_hook.__annotations__
