"""Parts of a training step, timed where they happen: reading, computing, exchanging, waiting.

Each rank marks five moments of a step: it asks for its graphs, has them, begins to compute, has its
last gradient, has the sums over all ranks, has taken the step. From its last gradient on a rank
only waits: for ranks that are later, then for what is still on the way. The rank that comes last
waits for nobody, so the least of the ranks' times is that of the exchange, and what the others take
longer is waiting. Only lengths of time are compared, so the clocks of nodes need not agree.

Sums that travel while a rank still computes cost it nothing and are not counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from torch_geometric.data import Batch

from hydragnn_flow.training.batching import Step
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.profile_result import Parts
from hydragnn_flow.training.trainer import Trainer

Moment = Any
"""A time on the host [s]; of an accelerator an event on the stream that computes."""


class Clock:
    """Moments of a device's work; taking one makes nobody wait.

    Parameters
    ----------
    device
        On a CPU, moments are those of the host. On an accelerator, which works behind the host,
        they are events on the stream of the steps.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def now(self) -> Moment:
        """This moment."""
        if self.device.type == "cpu":
            return time.perf_counter()
        event = torch.Event(self.device, enable_timing=True)
        event.record()
        return event

    def between(self, begin: Moment, end: Moment) -> float:
        """Time from one moment to another [s]; of an accelerator once it has done its work."""
        if self.device.type == "cpu":
            return float(end - begin)
        return float(begin.elapsed_time(end)) / 1e3


class Marks:
    """Moments of the steps of one rank.

    Parameters
    ----------
    clock
        Of its device.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.steps: list[list[Moment]] = []
        """Moments of each step: asked, there, begun, last gradient, exchanged, taken."""
        self._latest: Tensor | None = None
        # Events cost a launch each, so only the weight is marked that came last the step before.
        self._last: Tensor | None = None
        self._gradient: Moment = None
        self._exchanged: Moment = None

    def gradient(self, weight: Tensor) -> None:
        """A gradient of this rank is there."""
        self._latest = weight
        if weight is self._last:
            self._gradient = self.clock.now()

    def exchanged(self) -> None:
        """The backward pass has ended, and with it the exchange."""
        self._exchanged, self._last = self.clock.now(), self._latest

    def taken(self, asked: Moment, there: Moment, begun: Moment) -> None:
        """A step has been taken."""
        self.steps.append([asked, there, begun, self._gradient, self._exchanged, self.clock.now()])
        self._gradient = self._exchanged = None

    def seconds(self, begin: int = 0) -> Tensor:
        """Reading, computing, and being done before the sums are there [s], [n_steps, 3].

        NaN for a step whose last gradient was not marked, such as the first.

        Parameters
        ----------
        begin
            The first step that is wanted.
        """
        between, rows = self.clock.between, []
        for asked, there, begun, last, after, end in self.steps[begin:]:
            if last is None:
                rows.append((math.nan,) * 3)
                continue
            computing = between(begun, last) + between(after, end)
            rows.append((between(asked, there), computing, between(last, after)))
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)


class MarkedTrainer(Trainer):
    """Trainer that marks the moments of its steps within :meth:`marking`."""

    marks: Marks | None = None

    def _backward(self, step: Step, batch: Batch | None) -> Tensor:
        loss = super()._backward(step, batch)
        if self.marks is not None:
            self.marks.exchanged()
        return loss

    @contextmanager
    def marking(self, marks: Marks) -> Iterator[None]:
        """Mark the steps that are taken in a ``with`` block."""
        hooks: list[RemovableHandle] = [
            weight.register_post_accumulate_grad_hook(marks.gradient)  # type: ignore[no-untyped-call]  # torch has no types here
            for weight in self.parallel.weights
        ]
        self.marks = marks
        try:
            yield
        finally:
            self.marks = None
            for hook in hooks:
                hook.remove()

    def marked_step(self, batches: Iterator[tuple[Step, Sequence[Batch]]]) -> Step:
        """Take the next step with marks."""
        assert self.marks is not None
        clock = self.marks.clock
        asked = clock.now()
        step, pieces = next(batches)
        there = clock.now()
        begun = clock.now()
        self.train_step(step, pieces)
        self.marks.taken(asked, there, begun)
        return step


def parts_of(seconds: Tensor, world: World, device: torch.device) -> Parts:
    """What all ranks did in their marked steps; all of them call this.

    Parameters
    ----------
    seconds
        Of this rank, as :meth:`Marks.seconds` has them; the ranks have taken the same steps.
    world
        The ranks.
    device
        Where they exchange numbers.
    """
    ranks = torch.zeros(world.size, *seconds.shape, dtype=torch.float64, device=device)
    ranks[world.rank] = seconds.to(device)
    return divided(world.sum(ranks).cpu())


def divided(seconds: Tensor) -> Parts:
    """Parts of a step, of what each rank did in each step.

    Parameters
    ----------
    seconds
        As :meth:`Marks.seconds` has them, of all ranks [s], [n_ranks, n_steps, 3].
    """
    known = ~seconds.isnan().any(-1).any(0)
    reading, computing, exposed = seconds[:, known].unbind(-1)
    if len(seconds) == 1:
        return Parts(float(reading.mean()), float((computing + exposed).mean()))
    exchange = exposed.amin(0)
    return Parts(
        float(reading.mean()),
        float(computing.mean()),
        float(exchange.mean()),
        float((exposed - exchange).mean()),
    )
