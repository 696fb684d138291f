"""Task-parallel training: ranks share the encoder and divide the heads of the branches.

Like HydraGNN's ``MultiTaskModelMP``. Each group of ranks holds the heads of its branches with their
gradients, optimiser state, average and best weights, and computes the graphs of these branches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hydragnn_flow.config.network.training import DDP
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.heads import BranchedHeads
from hydragnn_flow.training.checkpoints.checkpoint import OWN, Rows
from hydragnn_flow.training.distributed import PATIENCE, World
from hydragnn_flow.training.parallel.alone import Parallel, Replicated
from hydragnn_flow.training.parallel.division import Division


class TaskParallel(Parallel):
    """Parallel strategy in which every rank holds the encoder, and heads are divided among ranks.

    Parameters
    ----------
    model
        The network with all of its heads; those of other ranks are removed from it.
    settings
        Settings of the exchange, from `Training.ddp`.
    division
        Assignment of branches to groups of ranks.
    world
        Rank of this process and number of ranks.
    device
        Device that computes; the network is moved to it.

    Raises
    ------
    InputError
        If a group of ranks has no parameter to train.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: DDP,
        division: Division,
        world: World,
        device: torch.device,
    ) -> None:
        self._heads = _Heads(model)
        self._trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
        self._check(division)
        self._world, self._group = world, division.group_of(world.rank)
        self._branches = frozenset(division.branches[self._group])
        ranks = division.ranks[self._group]
        self._peers, self._is_first_of_group = len(ranks), world.rank == ranks[0]
        # Creating groups is a collective: all ranks create all groups, in the same order.
        groups = [dist.new_group(one, timeout=PATIENCE) for one in division.ranks if len(one) > 1]
        self._exchange = next((g for g in groups if g != dist.GroupMember.NON_GROUP_MEMBER), None)
        self.files = len(division.ranks) - 1
        self._heads.keep(self._branches)
        super().__init__(model.to(device))
        own = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self._numbers = [n for n, name in enumerate(self._trained) if name in own]
        self._common = [weight for name, weight in own.items() if not self._heads.have(name)]
        self._own = [weight for name, weight in own.items() if self._heads.have(name)]
        everything = [*model.named_parameters(), *model.named_buffers()]
        apart = [name for name, _ in everything if self._heads.have(name)]
        ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        ignore(model, apart)
        # If the encoder is frozen there is nothing to exchange among all ranks.
        self._all = Parallel(model)
        if self._common:
            self._all = Replicated(model, settings, foreign=False)
        self._is_last_piece = True

    def outputs(self, batch: Any) -> dict[str, Tensor]:
        """Compute the outputs of the encoder and this rank's heads for a batch (collective)."""
        return self._all.outputs(batch)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this rank's loss to the gradients of the weights.

        Gradients are then exchanged, unless inside :meth:`without_exchange`.
        """
        super().backward(loss)
        if self._is_last_piece:
            self._sum_over_group()

    @contextmanager
    def without_exchange(self) -> Iterator[None]:
        """Context manager: accumulate gradients of encoder and heads without exchange."""
        self._is_last_piece = False
        try:
            with self._all.without_exchange():
                yield
        finally:
            self._is_last_piece = True

    def norm(self) -> Tensor:
        """Compute the norm of the gradient over heads of all ranks (collective)."""
        device = self.weights[0].device
        common, own = (_square(weights).to(device) for weights in (self._common, self._own))
        # Ranks of a group have the same gradient of their heads: count it once.
        square = common + self._world.sum(own / self._peers)
        return square.sqrt().to(self.weights[0].dtype)

    def taken_apart(
        self, state: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
        """Divide a checkpoint's content into the first rank's file and one with this group's heads.

        In both, the optimiser's state has the parameter indices of the whole network. The first
        rank of each group writes the shard, except in the group of rank 0.
        """
        optimizer = state["optimizer"]
        states = {self._numbers[n]: values for n, values in optimizer["state"].items()}
        (group,) = optimizer["param_groups"]
        groups = [{**group, "params": [*range(len(self._trained))]}]
        whole = {**state, "optimizer": {**optimizer, "state": states, "param_groups": groups}}
        if self._world.is_first or not self._is_first_of_group:
            return whole, {}
        average = state["average"]
        own = {
            "model": self._of_heads(state["model"]),
            "average": {"weights": self._of_heads(average["weights"])},
            "best": self._of_heads(state["best"]),
            "optimizer": {
                "state": {
                    number: values
                    for number, values in states.items()
                    if self._heads.branch(self._trained[number]) is not None
                }
            },
        }
        return whole, {self._group - 1: {OWN: own}}

    def placed(self, values: Mapping[str, Any], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this rank's tensors of a checkpoint: the encoder, and heads of its branches."""
        here = {None, *self._branches}
        return super().placed(
            {k: v for k, v in values.items() if self._heads.branch(k) in here}, like
        )

    def placed_optimizer(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a checkpoint's optimiser state for the parameters that this rank holds."""
        states = {
            n: state["state"][number]
            for n, number in enumerate(self._numbers)
            if number in state["state"]
        }
        groups = [
            {**group, "params": [*range(len(self._numbers))]} for group in state["param_groups"]
        ]
        return super().placed_optimizer({**state, "state": states, "param_groups": groups})

    def part(self, value: Tensor | Rows, like: Tensor) -> Tensor:
        """Return a copy of a checkpoint's tensor, with the device and type of ``like``."""
        return super().part(value, like).to(like.device, like.dtype, copy=True)

    def _of_heads(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in values.items() if self._heads.branch(k) is not None}

    def _sum_over_group(self) -> None:
        """Sum the gradients of heads over the ranks of the group."""
        gradients = [weight.grad for weight in self._own if weight.grad is not None]
        if not gradients:
            return
        # Like DDP: the losses are multiplied by the number of ranks.
        torch._foreach_div_(gradients, self._world.size)
        if self._exchange is None:
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=self._exchange)
        pieces = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, piece in zip(gradients, pieces, strict=True):
            gradient.copy_(piece.view_as(gradient))

    def _check(self, division: Division) -> None:
        trained = {self._heads.branch(name) for name in self._trained}
        for ranks, branches in zip(division.ranks, division.branches, strict=True):
            if not trained & {None, *branches}:
                raise InputError(
                    f"start_from.freeze: with Training.task_parallel it leaves nothing to train to "
                    f"rank {ranks[0]}, which has the heads of branch "
                    f"{', '.join(map(str, branches))}; name fewer, or remove task_parallel"
                )


class _Heads:
    """Heads of a network, and which of its parameters and buffers belong to them."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, BranchedHeads)
        }

    def keep(self, branches: Collection[int]) -> None:
        """Remove from the network the heads of all branches other than these."""
        for module in self._modules.values():
            module.keep(branches)

    def have(self, name: str) -> bool:
        """Return whether a parameter or buffer belongs to the heads."""
        return any(name.startswith(f"{path}.") for path in self._modules)

    def branch(self, name: str) -> int | None:
        """Return the branch that a parameter or buffer belongs to; None if shared by all."""
        for path in self._modules:
            if name.startswith(prefix := f"{path}.branches."):
                return int(name.removeprefix(prefix).partition(".")[0])
        return None


def _square(weights: Sequence[Tensor]) -> Tensor:
    """Return the sum of squares of a gradient, float64."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    return nn.utils.get_total_norm(gradients).double().square()
