"""Training by ranks that all hold the whole network (DDP)."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from hydragnn_flow.config.network import DDP
from hydragnn_flow.training.parallel.alone import Parallel

# Whether a forward pass begins with the first rank's buffers. By the first name they also are those
# of the first rank when DDP is made, which changes nothing; newer versions of torch deprecate the
# second.
_KEYS = inspect.signature(DistributedDataParallel).parameters
_OF_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _KEYS else "broadcast_buffers"


class Replicated(Parallel):
    """Training of a network of which all ranks hold all, and exchange the gradient.

    Parameters
    ----------
    model
        The network, on its device.
    settings
        `Training.ddp`.
    accumulates
        Whether steps are computed in several micro-batches.
    foreign
        Whether the network may leave out weights in a step, or normalise by running means.
    """

    def __init__(
        self, model: nn.Module, settings: DDP, *, accumulates: bool, foreign: bool
    ) -> None:
        super().__init__(model)
        exchange: dict[str, Any] = {_OF_BUFFERS: foreign}
        self._ddp = DistributedDataParallel(
            model,
            **exchange,
            find_unused_parameters=foreign,
            bucket_cap_mb=settings.bucket_cap_mb,
            gradient_as_bucket_view=settings.gradient_as_bucket_view,
            # A step that was too large for a GCD may be computed in micro-batches after all.
            static_graph=settings.static_graph and not accumulates,
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

    def part_ways(self) -> None:
        """See :meth:`Parallel.part_ways`."""
        self._ddp.require_backward_grad_sync = False


def _in_bf16(state: Any, bucket: Any) -> Any:
    """torch's hook, which DDP refuses by its name on all but NCCL and XCCL; gloo sums bf16 too."""
    return bf16_compress_hook(state, bucket)


# DDP looks at them too.
_in_bf16.__annotations__ = bf16_compress_hook.__annotations__
