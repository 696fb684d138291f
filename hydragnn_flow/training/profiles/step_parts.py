"""Timing within a training step: reading, computing, exchanging and waiting.

Each rank records events in a step: it asks for its graphs, has them, begins to compute, has its
last gradient, has the sums over all ranks, and has taken the step. After its last gradient a rank
only waits, first for slower ranks, then for the remaining exchange. The slowest rank waits for
nobody, so the shortest of these times over ranks is the exchange, and the excess of the others is
waiting. Only durations are compared, so the clocks of nodes need not agree.

Exchange that overlaps with computation costs nothing and is not counted.
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

from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.plan.batching import Step
from hydragnn_flow.training.profiles.profile_result import Parts
from hydragnn_flow.training.trainer import Trainer

Moment = Any
"""Time on the host [s], or an event on the stream that computes on an accelerator."""


class Clock:
    """Clock of a device's work; reading it does not synchronize.

    Parameters
    ----------
    device
        Device to time. For a CPU the clock is the host's. An accelerator runs behind the host, so
        events on the stream of the steps are recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def now(self) -> Moment:
        """Return the current moment."""
        if self.device.type == "cpu":
            return time.perf_counter()
        event = torch.Event(self.device, enable_timing=True)
        event.record()
        return event

    def between(self, begin: Moment, end: Moment) -> float:
        """Return the time between two moments [s]; an accelerator must have passed both."""
        if self.device.type == "cpu":
            return float(end - begin)
        return float(begin.elapsed_time(end)) / 1e3


class Marks:
    """Moments recorded in the steps of one rank.

    Parameters
    ----------
    clock
        Clock of the rank's device.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.steps: list[list[Moment]] = []
        """Moments of each step: asked, there, begun, last gradient, exchanged, taken."""
        self._latest: Tensor | None = None
        # An event costs a launch, so only the weight that was last in the step before has one.
        self._last: Tensor | None = None
        self._gradient: Moment = None
        self._exchanged: Moment = None

    def gradient(self, weight: Tensor) -> None:
        """Record that the gradient of a weight is complete on this rank (hook)."""
        self._latest = weight
        if weight is self._last:
            self._gradient = self.clock.now()

    def exchanged(self) -> None:
        """Record the end of the backward pass, and with it of the exchange."""
        self._exchanged, self._last = self.clock.now(), self._latest

    def taken(self, asked: Moment, there: Moment, begun: Moment) -> None:
        """Record the end of a step, with its earlier moments."""
        self.steps.append([asked, there, begun, self._gradient, self._exchanged, self.clock.now()])
        self._gradient = self._exchanged = None

    def seconds(self, begin: int = 0) -> Tensor:
        """Return times of reading, of computing, and from last gradient to sums [s], [n_steps, 3].

        A step whose last gradient was not recorded, such as the first, gives NaN.

        Parameters
        ----------
        begin
            Index of the first step to return.
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
    """Trainer that records the moments of its steps within :meth:`marking`."""

    marks: Marks | None = None

    def _backward(self, step: Step, batch: Batch | None) -> Tensor:
        loss = super()._backward(step, batch)
        if self.marks is not None:
            self.marks.exchanged()
        return loss

    @contextmanager
    def marking(self, marks: Marks) -> Iterator[None]:
        """Record the steps that are taken in a ``with`` block."""
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
        """Take the next step and record its moments."""
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
    """Return the mean times of a step from the recorded steps of all ranks (collective).

    Parameters
    ----------
    seconds
        This rank's times from :meth:`Marks.seconds`, for the same steps on every rank.
    world
        Rank of this process and number of ranks.
    device
        Device of the tensors in collectives.
    """
    ranks = torch.zeros(world.size, *seconds.shape, dtype=torch.float64, device=device)
    ranks[world.rank] = seconds.to(device)
    return divided(world.sum(ranks).cpu())


def divided(seconds: Tensor) -> Parts:
    """Compute the mean times of a step from those of each rank and step.

    Parameters
    ----------
    seconds
        Times from :meth:`Marks.seconds` of all ranks [s], [n_ranks, n_steps, 3].
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
