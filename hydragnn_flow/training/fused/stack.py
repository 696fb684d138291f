"""Stack of several trainings, whose gradients are computed in one pass."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch
from torch import Tensor
from torch_geometric.data import Batch

from hydragnn_flow.models.stacked import StackedNetwork
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.fused.batches import FusedBatch
from hydragnn_flow.training.loading import moved
from hydragnn_flow.training.plan.batching import Step
from hydragnn_flow.training.trainer import Trainer


class FusedMember(Trainer):
    """Trainer whose gradients are computed together with those of others; see :class:`.Trainer`."""

    def micro_batches(self, steps: Sequence[Step]) -> Generator[list[Batch | None], None, None]:
        """Yield empty lists: the batches of all members are read together."""
        for _ in steps:
            yield []

    def step_alone(self, step: Step) -> tuple[Tensor, Tensor]:
        """Take a step without the others; returns its loss and the norm of its gradient."""
        self.model.train()
        return self._step(step, moved(self.train.batch(step.of_rank(0)), self.device))


class Stack:
    """Networks of several trainings as one network.

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

    def gradients(self, batch: FusedBatch) -> Tensor:
        """Set the members' gradients on their own batches; returns losses [members] float64."""
        for member in self.members:
            member.optimizer.zero_grad()
        losses = self._losses(batch)
        # Each member's loss depends on its own weights alone.
        torch.autograd.backward(losses.sum(), inputs=self._trained)
        return losses.detach()

    def _losses(self, batch: FusedBatch) -> Tensor:
        self._network.put(self._named)
        loss, means = self.members[0].loss, []
        found = loss.term_values(self._network(batch.batch), batch.batch)
        for term, (values, elements) in zip(loss.terms, found, strict=True):
            rows = values.view(len(self.members), -1, values.shape[1])
            sums = (rows * batch.counted[term.level].to(rows.dtype)).sum((1, 2))
            means.append(sums.double() / (batch.counts[elements] * values.shape[1]))
        return loss.of_rank(torch.stack(means, dim=1), World())
