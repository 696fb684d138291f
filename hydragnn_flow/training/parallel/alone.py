"""Training by one rank, and what all ways of training have in common."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from hydragnn_flow.training.checkpoint_parts import Rows


class Parallel:
    """Training of a network by one rank, which holds all of it and exchanges nothing.

    Parameters
    ----------
    model
        The network, on its device.
    """

    is_sharded = False
    """Whether this rank holds a part of the network alone."""
    files = 0
    """Parts of a checkpoint that the ranks write beside the first one's file."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        """Parameters that are trained, as far as this rank holds them."""

    def outputs(self, batch: Any) -> dict[str, Tensor]:
        """Outputs of the network for a batch to train on; all ranks call this."""
        found: dict[str, Tensor] = self.model(batch)
        return found

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this rank's loss, and exchange it with the other ranks."""
        # Only weights are wanted: a potential's positions would get a gradient as well.
        torch.autograd.backward(loss, inputs=self.weights)

    def without_exchange(self) -> AbstractContextManager[None]:
        """Gradients within this context are added up on each rank, and not exchanged yet."""
        return nullcontext()

    def part_ways(self) -> None:
        """Exchange nothing from here on, so that steps can be timed as if there were no other rank.

        What they compute is of no use.
        """

    def clip(self, most: float) -> Tensor:
        """Shorten the gradient to a norm; returns the norm that it had."""
        return nn.utils.clip_grad_norm_(self.weights, most)

    def settle(self) -> None:
        """Let no rank hold more than its part, before weights are changed by hand."""

    def taken_apart(
        self, state: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
        """A checkpoint's content as it is written.

        Parameters
        ----------
        state
            Model, best weights, average and optimiser, among others, as this rank has them.

        Returns
        -------
        state, parts
            What the first rank writes, and which of the :attr:`files` this rank writes, by their
            numbers.
        """
        return state, {}

    def placed(self, values: Mapping[str, Any], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What this rank holds of some whole tensors.

        Parameters
        ----------
        values
            By name; of a checkpoint, either in memory or still in its files.
        like
            Tensors that this rank holds parts of, for those of the values that are divided so.
        """
        return {
            name: self.part(value, like[name]) if name in like else whole(value)
            for name, value in values.items()
        }

    def placed_optimizer(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """State of an optimiser of :attr:`weights`, of a checkpoint, as this rank holds it."""
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
        """What this rank holds of a whole tensor that is divided as another is."""
        found: Tensor = whole(value)
        return found


def whole(value: Any) -> Any:
    """All rows of a tensor, wherever they are; other values as they are."""
    return value[:] if isinstance(value, Rows) else value


def _copied(value: Any) -> Any:
    """A tensor apart from the file that it may be mapped from; other values as they are."""
    return value.clone() if isinstance(value, Tensor) else value
