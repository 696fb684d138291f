"""Member of a fused training: a trainer whose steps are taken together with those of others."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from hydragnn_flow.data import GraphStore
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.loading import moved
from hydragnn_flow.training.plan.batching import Step
from hydragnn_flow.training.state import Spent
from hydragnn_flow.training.trainer import Trainer


class FusedMember(Trainer):
    """Trainer whose steps are taken together with those of others; see :class:`.Trainer`."""

    def __init__(
        self,
        spec: SegmentSpec,
        store: GraphStore,
        device: torch.device,
        spent: Callable[[], Spent] = Spent,
    ) -> None:
        self.bring_up_to_date: Callable[[], None] = lambda: None
        """Function that copies weights back from the stack; called before they are read."""
        super().__init__(spec, store, device, World(), spent)
        self.most_norm = self.settings.gradient_clip or math.inf

    @property
    def weights(self) -> list[nn.Parameter]:
        """Parameters that are trained."""
        return self.parallel.weights

    def micro_batches(self, steps: Sequence[Step]) -> Generator[list[Batch | None], None, None]:
        """Yield empty lists: the batches of all members are read together."""
        for _ in steps:
            yield []

    def step_alone(self, step: Step) -> tuple[Tensor, Tensor]:
        """Take a step without the others; returns its loss and the norm of its gradient."""
        self.model.train()
        batch = moved(self.train.batch(step.of_rank(0)), self.device)
        return self._step(step, batch)

    @contextmanager
    def _averaged(self) -> Iterator[nn.Module]:
        self.bring_up_to_date()
        with super()._averaged() as model:
            yield model

    def save(self) -> None:
        """See :meth:`.Trainer.save`."""
        self.bring_up_to_date()
        super().save()
