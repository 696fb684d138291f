"""Gradients of several fused trainings (members) in one pass, on a filled batch of all of them."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch
from torch import Tensor
from torch_geometric.data import Batch

from hydragnn_flow.models.stacked import StackedNetwork
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.loading import moved
from hydragnn_flow.training.measures.losses import Counts
from hydragnn_flow.training.plan.batching import Step
from hydragnn_flow.training.trainer import Trainer


class FusedMember(Trainer):
    """Trainer of one of several fused networks, whose gradients are computed together."""

    may_record = False

    def micro_batches(self, steps: Sequence[Step]) -> Generator[list[Batch | None], None, None]:
        """Yield an empty list for each step, as the batches of all members are read elsewhere."""
        for _ in steps:
            yield []

    def step_alone(self, step: Step) -> tuple[Tensor, Tensor]:
        """Take a training step of this member alone; return its loss and gradient norm, scalars."""
        self.model.train()
        return self.train_step(step, moved(self.train.batch(step.of_rank(0)), self.device))


class Stack:
    """Stack of the networks of several trainings, which are computed as one network.

    Each training keeps its weights, optimiser and average; only their gradients come from here.

    Parameters
    ----------
    members
        Trainings of networks of one shape.

    Raises
    ------
    InputError
        If the networks have layers that cannot be stacked.
    """

    def __init__(self, members: Sequence[FusedMember]) -> None:
        self.members = list(members)
        self._network = StackedNetwork(members[0].model, len(members)).train()
        self._named = [dict(member.model.named_parameters()) for member in members]
        self._trained = [weight for member in members for weight in member.parallel.weights]

    def gradients(self, batch: Batch, counts: Counts) -> Tensor:
        """Compute the gradients of all members' weights in place; return their losses, [n_members].

        Each member's loss is that on its own graphs of the filled batch. ``counts`` has the numbers
        of these graphs, and of their atoms, ``[n_members]`` each.
        """
        for member in self.members:
            member.optimizer.zero_grad()
        losses = self._losses(batch, counts)
        # Each member's loss depends on its own weights alone.
        torch.autograd.backward(losses.sum(), inputs=self._trained)
        return losses.detach()

    def _losses(self, batch: Batch, counts: Counts) -> Tensor:
        self._network.put(self._named)
        loss, means = self.members[0].loss, []
        for values, elements in loss.term_values(self._network(batch), batch):
            sums = values.view(len(self.members), -1).sum(dim=1)
            means.append(sums.double() / (getattr(counts, elements) * values.shape[1]))
        return loss.of_rank(torch.stack(means, dim=1), World())
