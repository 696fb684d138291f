"""Fused trainings: several trainings of one shape, stepped together.

Each member is a :class:`.Trainer` that plans, validates, stops and saves as it does alone. Only the
steps are shared, on the member's own batches. So a member may begin at any epoch, end before the
others or diverge, and its checkpoint can be continued without them.
"""

from __future__ import annotations

import math
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
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.filled import Filler
from hydragnn_flow.training.fused.batches import FusedMember, Stack
from hydragnn_flow.training.fused.shapes import refusal_together
from hydragnn_flow.training.loading import sent
from hydragnn_flow.training.measures.losses import Counts
from hydragnn_flow.training.memory import out_of_memory
from hydragnn_flow.training.plan.batching import Step
from hydragnn_flow.training.state import Spent
from hydragnn_flow.training.trainer import Course

# Number of steps that the probe takes separately, and then fused. The first of each is not timed,
# as it includes start-up costs.
_PROBED = 6
# Largest ratio of fused to separate step time at which fusing is worth it.
_PAYS = 0.9
# Largest relative difference of a loss that rounding can explain.
_SAME = {torch.float32: 1e-3, torch.float64: 1e-6}


@dataclass(frozen=True)
class Probe:
    """Comparison of separate and fused training steps: their times [s], and how losses differ."""

    separate: float
    """Shortest time in which all members took one step, one after the other [s]."""
    fused: float
    """Shortest time in which all members took one step together [s]."""
    difference: float
    """Largest relative difference between separate and fused losses and gradient norms."""

    @property
    def pays(self) -> bool:
        """True if a fused step takes less than nine tenths of the time of separate steps."""
        return self.fused < _PAYS * self.separate


class FusedTrainer:
    """Trainer of several networks of one shape in one process, each on its own batches.

    Losses and weights equal those of separate trainings up to rounding.

    Parameters
    ----------
    specs
        Segments to train; :func:`.shape_of` says what they must have in common.
    store
        Store of the graphs.
    device
        Device that the training computes on.
    spent
        Function that returns the cost so far, [s] and [J], of the member with a given index.

    Raises
    ------
    InputError
        If the segments cannot be fused.
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
        """Reason why the remaining members continue separately; empty while they are fused."""
        self.probe: Probe | None = None
        """Result of the probe; None before it."""
        self.members = [
            FusedMember(spec, store, device, World(), partial(spent, place))
            for place, spec in enumerate(specs)
        ]
        self.ended: dict[int, Exception | None] = {}
        """Exception that ended a member, by the member's index; None for a normal end."""
        self.seconds = [0.0] * len(specs)
        """Time spent so far on each member [s], [n_members]."""
        self._check_networks(specs)
        encoder: Any = self.members[0].model.encoder
        self._filler = Filler(store.manifest, 2.0 * encoder.cutoff)
        self._courses: dict[int, Course] = {}
        self._next: dict[int, Step] = {}
        self._stack: Stack | None = None
        self._stacked_places: list[int] = []

    def run(
        self,
        should_stop: Callable[[], bool] = lambda: False,
        alive: Callable[[float], None] = lambda longest_step: None,
        *,
        probe: bool = True,
    ) -> None:
        """Train every member up to its last epoch, or until it stops early or fails.

        Parameters
        ----------
        should_stop, alive
            The same as for :meth:`.Trainer.run`; every member calls them.
        probe
            If true, time some steps separately and fused, and continue separately if fused steps
            are hardly faster or give other losses. This costs little, as the timed steps train too.
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
        """Prepare the first step of every member, without taking it.

        Parameters are those of :meth:`run`.
        """
        for place, member in enumerate(self.members):
            self._courses[place] = member.course(should_stop, alive)
            self._advance(place)

    def _probe(self) -> None:
        """Take separate and fused steps and time them; set ``apart`` if fusing does not pay."""
        separate = [self.timed_round(self.take_apart) for _ in range(_PROBED)]
        expected = self._expected()
        self.round(self.take_apart)
        difference = self._difference(expected)
        if difference is None:
            return
        if not difference < _SAME.get(self.members[0].parallel.weights[0].dtype, 0.0):
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
        """Take the next step of all remaining members by calling ``take``; prepare another step.

        In between each member validates, writes checkpoints or ends, as far as that is due.
        """
        taking, began = [*self._next], time.perf_counter()
        take()
        share = (time.perf_counter() - began) / max(len(taking), 1)
        for place in taking:
            self.seconds[place] += share
            if place in self._next:
                self._advance(place)

    def timed_round(self, take: Callable[[], None]) -> float:
        """Take a step of all members as :meth:`round` does; return the time of ``take`` [s].

        On an accelerator the time includes waiting for the device; on a CPU it is CPU time.
        """
        times: list[float] = []

        def timed() -> None:
            start = self._now()
            take()
            times.append(self._now() - start)

        self.round(timed)
        return times[0]

    def _now(self) -> float:
        """Return a time for differences [s]: CPU time on a CPU, else synchronized wall time."""
        if self.device.type == "cpu":
            return time.process_time()  # unaffected by other load on this machine
        torch.get_device_module(self.device.type).synchronize(self.device)
        return time.monotonic()

    def take(self) -> None:
        """Take the next step of all members together, or separately if that is not possible."""
        if len(self._next) > 1:
            try:
                losses = self._gradients()
            except (MemoryError, RuntimeError) as error:
                reason = out_of_memory(error)
                if reason is None:
                    raise
                self.apart = f"fused training takes too much memory: {reason}"
                self._stack = None
            else:
                for place, loss in losses.items():
                    self._attempt(place, partial(self._update, place, loss))
                return
        self.take_apart()

    def take_apart(self) -> None:
        """Take the next step of each member separately, one after the other."""
        for place, step in [*self._next.items()]:
            self._attempt(place, partial(self.members[place].step_alone, step))

    def _update(self, place: int, loss: Tensor) -> tuple[Tensor, Tensor]:
        return loss, self.members[place].update()

    def _attempt(self, place: int, take: Callable[[], tuple[Tensor, Tensor]]) -> None:
        """Take the step of the member with index ``place`` by ``take``; an error ends it alone."""
        try:
            self.members[place].taken = take()
        except Exception as error:
            self._end(place, error)

    def _advance(self, place: int) -> None:
        """Let the member with index ``place`` prepare its next step, or end.

        Before that the member validates and writes checkpoints, as far as that is due.
        """
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

    def _gradients(self) -> dict[int, Tensor]:
        """Set the gradients of all members for their next steps; return losses by member index."""
        places, steps = [*self._next], [*self._next.values()]
        if self._stack is None or self._stacked_places != places:
            self._stack = Stack([self.members[place] for place in places])
            self._stacked_places = places
        batch = self.members[0].train.batch(np.concatenate([step.order for step in steps]))
        graphs = [step.graphs for step in steps]
        whole = self._filler.filled(batch, graphs).on(self.device)
        atoms = [step.atoms for step in steps]
        counts = [torch.tensor(of, dtype=torch.float64) for of in (graphs, atoms)]
        losses = self._stack.gradients(whole, Counts(*(sent(of, self.device) for of in counts)))
        return dict(zip(places, losses.unbind(), strict=True))

    def _expected(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Return fused (loss, gradient norm) of the next steps by member index; take no step.

        The result is empty if fewer than two members are left, or memory does not suffice.
        """
        if len(self._next) < 2:
            return {}
        try:
            losses = self._gradients()
        except (MemoryError, RuntimeError) as error:
            if out_of_memory(error) is None:
                raise
            return {}
        return {
            place: (loss, self.members[place].parallel.clip(math.inf))
            for place, loss in losses.items()
        }

    def _difference(self, expected: dict[int, tuple[Tensor, Tensor]]) -> float | None:
        """Return the largest relative difference of ``expected`` to the last steps taken.

        ``expected`` are the losses and norms of :meth:`_expected`. The result is None if no member
        can be compared.
        """
        differences = [
            abs(float(one) - float(other)) / max(abs(float(other)), 1e-12)
            for place, found in expected.items()
            if place in self._next
            for one, other in zip(found, self.members[place].taken, strict=True)
        ]
        return max(differences, default=None)

    def _check_networks(self, specs: Sequence[SegmentSpec]) -> None:
        """Raise an error if networks cannot be stacked, or differ in more than their weights."""
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
