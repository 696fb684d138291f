"""Fused trainings: several of one shape, a step of all of them at once.

Each is a :class:`.Trainer` of its own, which plans its epochs, judges them, stops and saves as it
does alone. Only its steps are taken with those of the others, on its own batches. So a member may
begin anywhere, end before the others or diverge, and whatever it leaves can be continued by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.stacked import StackedNetwork
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.batching import Step
from hydragnn_flow.training.fused.batches import FusedBatch, fused
from hydragnn_flow.training.fused.member import FusedMember
from hydragnn_flow.training.fused.shapes import refusal_together
from hydragnn_flow.training.fused.stack import Stack
from hydragnn_flow.training.memory import out_of_memory
from hydragnn_flow.training.state import Spent
from hydragnn_flow.training.trainer import Course

# Steps of every member taken alone, and then fused, before it is decided; the first of either,
# which starts much up, is not counted.
_PROBED = 6
# Fused steps that take more than this fraction of the time of separate ones are not worth it.
_PAYS = 0.9
# Largest difference of a member's loss that rounding can make, relative to its size.
_SAME = {torch.float32: 1e-3, torch.float64: 1e-6}


@dataclass(frozen=True)
class Probe:
    """What a step of all members takes [s], and how it compares."""

    separate: float
    fused: float
    difference: float
    """Largest of the members' losses, relative to the loss."""

    @property
    def pays(self) -> bool:
        """Whether it is worth while to train fused."""
        return self.fused < _PAYS * self.separate


class FusedTrainer:
    """Trains several networks of one shape in one process, on batches of their own.

    Losses and weights are those of separate trainings, but for rounding.

    Parameters
    ----------
    specs
        What to train; see :func:`.shape_of` for what they must have in common.
    store
        The graphs.
    device
        Where to compute.
    spent
        As :class:`.Trainer` takes it, of a member by its place.

    Raises
    ------
    InputError
        If they cannot be fused.
    """

    def __init__(
        self,
        specs: Sequence[SegmentSpec],
        store: GraphStore,
        device: torch.device,
        spent: Callable[[int], Spent] = lambda place: Spent(),
    ) -> None:
        if reason := refusal_together(specs):
            raise InputError(f"{_named(specs)}: {reason}; train them separately")
        self.device = device
        self.apart = ""
        """Why members that are left go on separately; empty while they do not."""
        self.probe: Probe | None = None
        """What the probe has found."""
        self.members = [
            FusedMember(spec, store, device, partial(spent, place))
            for place, spec in enumerate(specs)
        ]
        for place, member in enumerate(self.members):
            member.bring_up_to_date = partial(self._give_back, place)
        self.ended: dict[int, Exception | None] = {}
        """How members have ended, by their place: well, or with an exception."""
        self.seconds = [0.0] * len(specs)
        """Each member's share of the time so far [s]."""
        self._check_networks(specs)
        self._store = store
        encoder: Any = self.members[0].model.encoder
        self._beyond = 2.0 * encoder.cutoff
        self._courses: dict[int, Course] = {}
        self._next: dict[int, Step] = {}
        self._stack: Stack | None = None
        self._rows: dict[int, int] = {}
        self._behind: set[int] = set()
        """Members whose row of the stack has got further than they have."""

    def run(
        self,
        should_stop: Callable[[], bool] = lambda: False,
        alive: Callable[[float], None] = lambda longest_step: None,
        *,
        probe: bool = True,
    ) -> None:
        """Train every member up to its last epoch, or until it ends otherwise.

        Parameters
        ----------
        should_stop, alive
            As of :meth:`.Trainer.run`; every member asks and tells.
        probe
            Whether to take some steps separately first, and to go on so where fused ones are
            hardly faster, or are not the same. It costs little: its steps count.
        """
        try:
            self.begin(should_stop, alive)
            if probe:
                self._probe()
            while self._next:
                self.round(self.take_apart if self.apart else self.take)
        finally:
            for course in self._courses.values():
                course.close()

    def begin(
        self,
        should_stop: Callable[[], bool] = lambda: False,
        alive: Callable[[float], None] = lambda longest_step: None,
    ) -> None:
        """Bring every member to its first step; parameters as of :meth:`run`."""
        for place, member in enumerate(self.members):
            self._courses[place] = member.course(should_stop, alive)
            self._advance(place)

    def _probe(self) -> None:
        """Take steps both ways, and decide."""
        separate = [self.timed_round(self.take_apart) for _ in range(_PROBED)]
        expected = self._expected()
        self.round(self.take_apart)
        difference = self._difference(expected)
        if difference is None:
            return
        if not difference < _SAME.get(self.members[0].weights[0].dtype, 0.0):
            self.apart = f"fused losses differ from separate ones by {difference:.1g} of them"
            return
        together = [self.timed_round(self.take) for _ in range(_PROBED)]
        if self.apart or len(self._next) < 2:
            return
        self.probe = Probe(min(separate[1:]), min(together[1:]), difference)
        if not self.probe.pays:
            ratio = self.probe.separate / self.probe.fused
            self.apart = f"fused training does not pay: {ratio:.2f} times the speed"

    def round(self, take: Callable[[], None]) -> None:
        """Have every member that is left take its next step, by :meth:`take` or otherwise."""
        taking, began = [*self._next], time.perf_counter()
        take()
        share = (time.perf_counter() - began) / max(len(taking), 1)
        for place in taking:
            self.seconds[place] += share
            if place in self._next:
                self._advance(place)

    def timed_round(self, take: Callable[[], None]) -> float:
        """The same; returns the time of the steps alone [s], for which the host waits."""
        times: list[float] = []

        def timed() -> None:
            start = self._now()
            take()
            times.append(self._now() - start)

        self.round(timed)
        return times[0]

    def _now(self) -> float:
        """Time of which a step's is the difference [s]."""
        if self.device.type == "cpu":
            return time.process_time()  # whatever else this machine does
        torch.get_device_module(self.device.type).synchronize(self.device)
        return time.monotonic()

    def take(self) -> None:
        """Take the next step of all members at once, or separately where that is not possible."""
        if len(self._next) > 1:
            try:
                losses, norms = self._stacked().step(self._batch())
            except (MemoryError, RuntimeError) as error:
                reason = out_of_memory(error)
                if reason is None:
                    raise
                self.apart = f"fused training takes too much memory: {reason}"
            else:
                for place, row in self._rows.items():
                    self.members[place].taken = losses[row], norms[row]
                self._behind = set(self._rows)
                return
        self.take_apart()

    def take_apart(self) -> None:
        """Take the next step of each member, one after the other."""
        self._unstack()
        for place, step in [*self._next.items()]:
            member = self.members[place]
            try:
                member.taken = member.step_alone(step)
            except Exception as error:  # which is this member's alone
                self._end(place, error)

    def _advance(self, place: int) -> None:
        """Have a member do what lies between two steps."""
        start = time.perf_counter()
        try:
            self._next[place], _ = next(self._courses[place])
        except StopIteration:
            self._end(place, None)
        except Exception as error:  # which is this member's alone
            self._end(place, error)
        self.seconds[place] += time.perf_counter() - start

    def _end(self, place: int, error: Exception | None) -> None:
        self.ended[place] = error
        self._next.pop(place, None)

    def _stacked(self) -> Stack:
        if self._stack is None or self._rows.keys() != self._next.keys():
            self._unstack()
            self._rows = {place: row for row, place in enumerate(self._next)}
            left = [self.members[place] for place in self._next]
            self._stack = Stack(left)
        return self._stack

    def _unstack(self) -> None:
        for place in self._next:
            self._give_back(place)
        self._stack = None
        self._behind.clear()

    def _give_back(self, place: int) -> None:
        """Put into a member what its row of the stack has become."""
        if self._stack is not None and place in self._behind:
            self._stack.give_back(self._rows[place])
            self._behind.discard(place)

    def _batch(self) -> FusedBatch:
        steps = list(self._next.values())
        batch = self.members[0].train.batch(np.concatenate([step.order for step in steps]))
        return fused(batch, steps, self._store.manifest, self._beyond).on(self.device)

    def _expected(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Losses and norms of the gradients of the next steps, fused, which are not taken."""
        if len(self._next) < 2:
            return {}
        try:
            losses, gradients = self._stacked().gradient(self._batch())
        except (MemoryError, RuntimeError) as error:
            if out_of_memory(error) is None:
                raise
            return {}
        norms = torch.linalg.vector_norm(gradients, dim=1)
        return {place: (losses[row], norms[row]) for place, row in self._rows.items()}

    def _difference(self, expected: dict[int, tuple[Tensor, Tensor]]) -> float | None:
        """Largest difference from the steps that were taken last; None if there are none."""
        differences = [
            abs(float(one) - float(other)) / max(abs(float(other)), 1e-12)
            for place, found in expected.items()
            if place in self._next
            for one, other in zip(found, self.members[place].taken, strict=True)
        ]
        return max(differences, default=None)

    def _check_networks(self, specs: Sequence[SegmentSpec]) -> None:
        """Refuse networks that differ in more than their weights."""
        first = self.members[0].model
        try:
            StackedNetwork(first, 1)
        except InputError as error:
            raise InputError(f"{_named(specs)}: {error}; train them separately") from None
        own = dict(first.named_buffers())
        for member in self.members[1:]:
            for name, buffer in member.model.named_buffers():
                if not torch.equal(buffer, own[name]):
                    raise InputError(
                        f"{_named(specs)}: begin with different {name}, and cannot be fused; train "
                        f"them separately"
                    )


def _named(specs: Sequence[SegmentSpec]) -> str:
    return f"{specs[0].kind}s {', '.join(str(spec.number) for spec in specs)}"
