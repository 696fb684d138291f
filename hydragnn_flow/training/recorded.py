"""Recorded training steps: a device replays a step's kernels without waiting for Python.

A step of a small network takes as long as Python needs to launch its kernels. Recorded once as a
CUDA or HIP graph, all of them are launched by one call. A recording has fixed addresses and sizes.
So batches are filled up to one of a few sizes (:mod:`.filled`), and every size has its own place on
the device and its own recording of the gradient. The update of the weights is recorded once.

The first gradient of each size is compared with that of the batch as it is. If they differ, or the
device cannot record, steps are taken as on a CPU, and the result of the segment says why.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch_geometric.data import Batch

from hydragnn_flow.training.compiled import Compute, compiled
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.filled import FilledBatch, Filler, Size
from hydragnn_flow.training.loading import moved, sent
from hydragnn_flow.training.measures.losses import Counts
from hydragnn_flow.training.memory import give_back_memory, out_of_memory
from hydragnn_flow.training.optimizers import Average

_logger = logging.getLogger(__name__)

# Largest relative difference of a recorded gradient that rounding can explain.
_SAME = {"fp32": 1e-3, "fp64": 1e-6, "bf16": 0.05}


_stream: Any = lru_cache(torch.cuda.Stream)


class Recorder(Protocol):
    """Recorder of functions that read and write tensors in place."""

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return a function that does the same as ``function``, which has been called before."""


class Caller:
    """Recorder of a device that cannot replay: compiled functions are called again."""

    def __init__(self, device: torch.device) -> None:
        pass

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return ``function``."""
        return function


class GraphRecorder:
    """Recorder of functions as CUDA or HIP graphs, which share their memory.

    From then on, this thread computes on the stream on which it records, the same in all trainings
    of the process: a recording must not wait for another stream, and torch keeps freed memory for
    the stream that used it.
    """

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = _stream(device)
        torch.cuda.set_stream(self._stream)

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return a function that replays the kernels of ``function``; none runs before.

        ``function`` has been called before: kernels are loaded, and states of optimisers made.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            # A thread of the loader pins memory meanwhile, which would end a global recording.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                function()
        except Exception as error:
            with suppress(Exception):  # which torch leaves out where a recording fails
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)
            raise RuntimeError(_told(error.__context__ or error)) from error
        replay: Callable[[], None] = graph.replay
        return replay


RECORDERS: dict[str, Callable[[torch.device], Recorder]] = {"cuda": GraphRecorder}
"""Recorders by type of device; torch calls AMD's devices `cuda` too."""


def replays_wanted() -> bool:
    """Return False if the environment variable `HYDRAGNN_FLOW_REPLAY` is 0, for broken drivers."""
    return os.environ.get("HYDRAGNN_FLOW_REPLAY") != "0"


class _Place:
    """Place of the filled batches of one size on the device, and the recorded gradient there."""

    def __init__(self, first: FilledBatch, device: torch.device, largest: int) -> None:
        self.memory = torch.empty(first.layout.size, dtype=torch.uint8, device=device)
        self.memory.copy_(first.memory, non_blocking=True)
        self.batch = first.layout.batch(self.memory)
        # What layers ask about the graphs of one batch holds for those of all.
        self.batch.largest_graph, self.batch.any_finite = largest, True
        self.compared = 0
        """Number of batches whose replay was compared with ordinary steps."""
        self.replay: Callable[[], None] | None = None
        """Function that adds the gradient, or computes the outputs, of the batch there."""
        self.outputs: dict[str, Tensor] = {}
        """Outputs of the network by name, if :attr:`replay` computes them."""


class RecordedSteps:
    """Training steps of one network on one device, replayed as far as possible.

    Parameters
    ----------
    loss
        Function that returns this rank's part of the loss, of a batch on the device and of a step
        with given counts, without exchange with other ranks.
    update
        Function that changes the weights by their gradients and returns the gradient's norm.
    optimizer, average
        What ``update`` calls; learning rates and the average's weight become tensors on the device.
    weights
        Parameters that are trained; their gradients get places for good.
    device
        Device that the training computes on.
    world
        Rank of this process and number of ranks, which sum their gradients between the two
        recordings.
    recorder
        Recorder of the device.
    filler
        Maker of filled batches.
    precision
        `Training.precision`, which says how well gradients agree; None if they are random.
    cache
        Folder of compiled kernels; None if gradients are not compiled.
    """

    def __init__(
        self,
        loss: Callable[[Batch, Counts], Tensor],
        update: Callable[[], Tensor],
        optimizer: torch.optim.Optimizer,
        average: Average,
        weights: Sequence[Tensor],
        device: torch.device,
        world: World,
        recorder: Recorder,
        filler: Filler,
        *,
        precision: str | None,
        cache: Path | None,
    ) -> None:
        self._loss_of, self._update_weights, self._average = loss, update, average
        self._weights, self._device, self._world = list(weights), device, world
        self._filler = filler
        self._same = None if precision is None else _SAME[precision]
        self._recorder, self._cache = recorder, cache
        self.reason = ""
        """Reason why steps are ordinary ones from now on; empty as long as they are not."""
        self.replayed = 0
        """Number of gradients and evaluations of a batch that were replayed or compiled."""
        self.seconds: tuple[list[float], list[float]] = [], []
        """CPU times of gradients that were compared, ordinary and recorded ones [s]."""
        # Learning rate, weight of the average, and numbers of graphs and atoms of a step.
        self._settings = torch.zeros(4, device=device)
        rate, average.weight, *counts = self._settings.unbind()
        self._counts = Counts(*counts)
        self._groups = optimizer.param_groups
        # Other optimisers read their settings on the host, so their update is not recorded.
        self._records_update = all(group.get("fused") for group in self._groups)
        if self._records_update:
            for group in self._groups:
                group["lr"] = rate
        # One tensor, which several ranks sum in one call.
        sizes = [weight.numel() for weight in self._weights]
        self._gradient = torch.zeros(sum(sizes), dtype=self._weights[0].dtype, device=device)
        parts = zip(torch.split(self._gradient, sizes), self._weights, strict=True)
        self._gradients = [part.view_as(weight) for part, weight in parts]
        for weight, gradient in zip(self._weights, self._gradients, strict=True):
            weight.grad = gradient
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._taken = torch.zeros(2, dtype=torch.float64, device=device)
        self._places: dict[Size, _Place] = {}
        self._evaluations: dict[Size, _Place] = {}
        self._replay_update: Callable[[], None] | None = None

    def filled(self, purpose: str, batch: Batch) -> FilledBatch | None:
        """Return a filled copy of a batch on the host; None if no size of a purpose holds it."""
        size = None if self.reason else self._filler.fitting(purpose, batch)
        return None if size is None else self._filler.filled(batch, size).pinned(self._device)

    def take(
        self, batches: Sequence[FilledBatch | Batch | None], counts: Counts, rate: float
    ) -> tuple[Tensor, Tensor]:
        """Take one training step; return its loss and the gradient's norm, both scalars.

        Parameters
        ----------
        batches
            Micro-batches of the step: filled ones on the host, others on the device.
        counts
            Numbers of graphs and atoms of the step.
        rate
            Learning rate of the step.
        """
        self._set(rate, self._average.next_weight(), counts)
        for group in () if self._records_update else self._groups:
            group["lr"] = rate
        for batch in batches:
            if isinstance(batch, FilledBatch):
                self._add_filled(batch)
            elif batch is not None:
                self._add_ordinary(batch)
        self._world.sum(self._gradient)
        self._update()
        loss, norm = self._taken.clone().unbind()
        return loss, norm

    def compile(
        self, batches: Iterable[FilledBatch | None], deadline: float | None, *, compares: bool
    ) -> None:
        """Compile and record the gradient of each batch's size, before steps are timed.

        Parameters
        ----------
        batches
            Two batches of each size; None for a batch of another one.
        deadline
            Time of :func:`time.monotonic` at which the segment ends; None if it does not.
        compares
            True to take ordinary steps if compiled ones are slower.
        """
        for filled in batches:
            # A size may take two minutes, in which nothing can stop the segment.
            if deadline is not None and time.monotonic() + 600 > deadline:
                self.refuse("the deadline is too near to compile")
                break
            if filled is not None:
                self._set(0.0, 0.0, Counts(filled.own.num_graphs, filled.own.num_nodes))
                with self._same_numbers():
                    self._add_filled(filled)
                torch._foreach_zero_([self._loss, self._gradient])
        ordinary, compiled = map(sum, self.seconds)
        if compares and compiled > ordinary:
            self.refuse(f"compiled, they take {compiled / ordinary:.1f} times as long")

    def _set(self, rate: float, weight: float, counts: Counts) -> None:
        """Send the settings of a step to the device."""
        numbers = torch.tensor([rate, weight, counts.graphs, counts.atoms])
        self._settings.copy_(sent(numbers, self._device), non_blocking=True)

    def _add(self, batch: Batch) -> None:
        """Add the loss of a batch on the device, and its gradient, to those of the step."""
        self._add_up(self._gradient_of(batch))

    def _gradient_of(self, batch: Batch) -> list[Tensor]:
        """Compute the loss of a batch on the device, and its gradient by each of the weights."""
        loss = self._loss_of(batch, self._counts)
        # Not backward(), which remembers the streams of earlier steps and so ends a recording.
        return [loss.detach(), *torch.autograd.grad(loss, self._weights)]

    def _add_up(self, found: list[Tensor]) -> None:
        loss, *gradients = found
        torch._foreach_add_(self._gradients, gradients)
        self._loss.add_(loss)

    def _add_filled(self, filled: FilledBatch) -> None:
        if not self._is_replayed(self._places, filled, partial(self._recorded, filled)):
            self._add_ordinary(moved(filled.own, self._device))

    def _add_ordinary(self, batch: Batch) -> None:
        """Add the loss and gradient of a batch, without recordings if they leave no memory."""
        try:
            self._add(batch)
            return
        except RuntimeError as error:
            if out_of_memory(error) is None or not (self._places or self._evaluations):
                raise
            self.refuse(_told(error))
        give_back_memory()
        self._add(batch)

    def forget(self) -> None:
        """Drop the recordings of batches, and with them their memory."""
        self._places.clear()
        self._evaluations.clear()

    def evaluated(
        self,
        filled: FilledBatch,
        compute: Callable[[Batch], dict[str, Tensor]],
        sums: Tensor,
    ) -> dict[str, Tensor]:
        """Compute the outputs of an evaluation's batch, and add its errors to ``sums``.

        Parameters
        ----------
        filled
            The batch; the outputs have the rows of its own graphs, without padding.
        compute
            Function of a batch on the device that returns the outputs and adds to ``sums``; the
            same network and tensor in every call.
        sums
            Sums of errors on the device.
        """

        def found(work: Callable[[], object]) -> Tensor:
            sums.zero_()
            work()
            return sums.clone()

        def record(place: _Place) -> float:
            def copied() -> None:
                for name, values in compute(place.batch).items():
                    if name not in place.outputs:
                        place.outputs[name] = values.new_empty(values.shape)
                    place.outputs[name].copy_(values)

            before = sums.clone()
            try:
                expected = found(lambda: compute(moved(filled.own, self._device)))
                if place.replay is None:
                    copied()
                    place.replay = self._recorder.record(copied)
                same = found(place.replay)
            finally:
                sums.copy_(before)
            # One by one, as numbers of labels stand beside losses; errors may be zero.
            return float(((same - expected).abs() / (expected.abs() + 1e-6)).max())

        if not self._is_replayed(self._evaluations, filled, record):
            return compute(moved(filled.own, self._device))
        rows = {filled.size.graphs: filled.own.num_graphs, filled.size.atoms: filled.own.num_nodes}
        outputs = self._evaluations[filled.size].outputs
        return {name: values[: rows[len(values)]].clone() for name, values in outputs.items()}

    def _is_replayed(
        self,
        places: dict[Size, _Place],
        filled: FilledBatch,
        record: Callable[[_Place], float],
    ) -> bool:
        """Copy a batch to its place and replay what is recorded there; False if that fails.

        At a new place, ``record`` records it and returns how far it differs from ordinary steps. It
        compares a second batch too, as numbers that a compiled trace read on the host are constant.
        """
        if self.reason:
            return False
        place = places.get(filled.size)
        try:
            if place is None:
                place = _Place(filled, self._device, self._filler.largest)
            else:
                place.memory.copy_(filled.memory, non_blocking=True)
            if place.compared < (1 if self._cache is None or self._same is None else 2):
                with self._same_numbers():
                    difference = record(place)
                if self._same is not None and not difference <= self._same:
                    self.refuse(f"recorded steps differ by {difference:.1g} of them")
                    return False
                place.compared += 1
            places[filled.size] = place
            assert place.replay is not None
            place.replay()
        except Exception as error:  # of whatever kind: an ordinary step says what is wrong
            self.refuse(_told(error))
            return False
        self.replayed += 1
        return True

    def _same_numbers(self) -> AbstractContextManager[None]:
        """Context manager: run something without changing the random numbers to come."""
        devices = [] if self._device.type == "cpu" else [self._device]
        return torch.random.fork_rng(devices, device_type=self._device.type)

    def _recorded(self, filled: FilledBatch, place: _Place) -> float:
        """Record the gradient at a new place; return how far it differs for the batch there."""
        sums = [self._loss, self._gradient]
        before = [each.clone() for each in sums]

        def found(add: Callable[[], None], seconds: list[float]) -> list[Tensor]:
            torch._foreach_zero_(sums)
            began = time.thread_time()
            add()
            seconds.append(time.thread_time() - began)
            return [each.clone() for each in sums]

        try:
            expected = found(lambda: self._add(moved(filled.own, self._device)), self.seconds[0])
            if place.replay is None:
                compute: Compute = partial(self._gradient_of, place.batch)
                if self._cache is not None:
                    compute = self._compiled(compute, self._cache)
                compute()
                place.replay = self._recorder.record(lambda: self._add_up(compute()))
            same = found(place.replay, self.seconds[1])
        finally:
            torch._foreach_copy_(sums, before)
        return max(map(_difference, same, expected))

    def _compiled(self, compute: Compute, cache: Path) -> Compute:
        """Return a compiled function; the same one if that fails and it is replayed anyway."""
        try:
            return compiled(compute, cache)
        except Exception as error:
            if isinstance(self._recorder, Caller):
                raise
            self._cache = None
            _logger.warning("training steps are not compiled: %s", _told(error))
            return compute

    def _update(self) -> None:
        if self._replay_update is not None:
            self._replay_update()
            return
        self._change()
        # The first update has made the optimiser's state, which must not be part of a recording.
        if self._records_update and not self.reason:
            try:
                self._replay_update = self._recorder.record(self._change)
            except Exception as error:
                self.refuse(_told(error))

    def _change(self) -> None:
        """Change the weights by the gradients of the step, and begin the sums of the next one."""
        norm = self._update_weights()
        self._taken.copy_(torch.stack([self._loss, norm.double()]))
        torch._foreach_zero_([self._loss, self._gradient])

    def refuse(self, reason: str) -> None:
        """Take ordinary steps from now on, for a reason that is told."""
        self.reason = reason.partition("\n")[0]
        self.forget()
        _logger.warning("training steps are not replayed or compiled: %s", self.reason)


def _told(error: BaseException) -> str:
    short = out_of_memory(error) if isinstance(error, (MemoryError, RuntimeError)) else None
    return short or f"{type(error).__name__}: {error}"


def _difference(found: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference of two tensors, relative to the second's."""
    return float((found - expected).norm() / expected.norm().clamp_min(1e-30))
