"""Training by one rank or replicated on all (DDP), and the interface of all parallel strategies."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hydragnn_flow.config.network.training import DDP
from hydragnn_flow.training.checkpoints.checkpoint import Rows


class Parallel:
    """Parallel strategy of a single rank, which holds the whole network and exchanges nothing.

    The strategies of several ranks are subclasses with the same methods.

    Parameters
    ----------
    model
        The network, on its device.
    """

    is_sharded = False
    """True if this rank holds only a shard of the network."""
    files = 0
    """Number of shard files that the ranks write in addition to the checkpoint file."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        """Parameters that are trained, as far as this rank holds them."""

    def outputs(self, batch: Any) -> dict[str, Tensor]:
        """Compute the outputs of the network for a batch to train on (collective)."""
        found: dict[str, Tensor] = self.model(batch)
        return found

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this rank's loss to the gradients of the weights.

        With several ranks the gradients are then exchanged.
        """
        # Restricted to weights: a potential's positions would get a gradient as well.
        torch.autograd.backward(loss, inputs=self.weights)

    def without_exchange(self) -> AbstractContextManager[None]:
        """Return a context in which gradients accumulate on each rank without being exchanged."""
        return nullcontext()

    def norm(self) -> Tensor:
        """Compute the norm of the gradient of all weights (collective)."""
        return nn.utils.get_total_norm(w.grad for w in self.weights if w.grad is not None)

    def settle(self) -> None:
        """Release weights that this rank has gathered from others beyond its own shard, if any.

        Call this before weights are read or changed outside of a training step.
        """

    def taken_apart(
        self, state: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
        """Divide a checkpoint's content between the checkpoint file and further files (shards).

        The first rank writes the checkpoint file.

        Parameters
        ----------
        state
            State dicts as this rank holds them: model, best weights, average, optimiser and others.

        Returns
        -------
        state, parts
            Content of the first rank's file, and content of the shards that this rank writes, by
            index of the shard, below :attr:`files`.
        """
        return state, {}

    def placed(self, values: Mapping[str, Any], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the parts of a checkpoint's tensors that this rank holds, by name.

        Parameters
        ----------
        values
            Tensors of a checkpoint by name, in memory or still in mapped files.
        like
            Tensors that this rank holds, which say how values of the same name are sharded.
        """
        return {
            name: self.part(value, like[name]) if name in like else whole(value)
            for name, value in values.items()
        }

    def placed_optimizer(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of a checkpoint's optimiser state that this rank holds.

        In the state, parameters are identified by their index in :attr:`weights`.
        """
        placed = {
            number: {
                name: self.part(value, self.weights[number])
                if getattr(value, "shape", None) == self.weights[number].shape
                else _copied(whole(value))
                for name, value in values.items()
            }
            for number, values in state["state"].items()
        }
        return {**state, "state": placed}

    def part(self, value: Tensor | Rows, like: Tensor) -> Tensor:
        """Return the part of a checkpoint's tensor that this rank holds.

        ``like`` is a tensor of this rank that is divided among ranks in the same way.
        """
        found: Tensor = whole(value)
        return found


def whole(value: Any) -> Any:
    """Return a checkpoint's sharded tensor with all of its rows; other values unchanged."""
    return value[:] if isinstance(value, Rows) else value


def _copied(value: Any) -> Any:
    """Return a copy of a tensor, which may be mapped from a file; other values unchanged."""
    return value.clone() if isinstance(value, Tensor) else value


# Name of the option to broadcast the first rank's buffers before a forward pass. Newer versions of
# torch deprecate the second name. The first also broadcasts them when DDP is made, which changes
# nothing here.
_KEYS = inspect.signature(DistributedDataParallel).parameters
_OF_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _KEYS else "broadcast_buffers"


class Replicated(Parallel):
    """Parallel strategy DDP: every rank holds the whole network, and ranks exchange gradients.

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

    def outputs(self, batch: Any) -> dict[str, Tensor]:
        """Compute the outputs of the network for a batch, in DDP's forward pass (collective)."""
        found: dict[str, Tensor] = self._ddp(batch)
        return found

    def without_exchange(self) -> AbstractContextManager[None]:
        """Return DDP's context in which gradients accumulate on each rank without exchange."""
        return self._ddp.no_sync()
