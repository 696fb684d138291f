"""Data loading: batches are read and copied to the device while it computes.

A thread reads the next batches into pinned memory and copies them on a stream of its own. The
stream of the steps waits for the copy of a batch; the host waits for neither. On a CPU the thread
would compete with the steps, so batches are read on demand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Batch

from hydragnn_flow.models.geometry import finite_graphs

Batches = Generator[Batch, None, None]
_T = TypeVar("_T")
_Sent = TypeVar("_Sent", Tensor, Batch)

AHEAD = 2
"""Number of batches read ahead: one is read while another is copied."""
THREAD = "batches"
"""Name prefix of the thread that reads batches ahead."""


def reads_ahead(device: torch.device) -> bool:
    """Return True if a thread reads batches ahead of the training steps; False on a CPU."""
    return device.type != "cpu"


def on_device(
    batches: Iterable[Batch],
    device: torch.device,
    prepare: Callable[[Batch], Any] = lambda batch: None,
) -> Generator[Any, None, None]:
    """Yield batches of graphs in their order, copied to a device.

    Close the generator if you leave it early: this ends its thread and closes ``batches``. An
    exception of ``batches`` is raised in place of the batch.

    Parameters
    ----------
    batches
        Batches on the host. For an accelerator a thread reads :data:`AHEAD` of them in advance.
    device
        Device that the batches are copied to.
    prepare
        Function that makes something else to yield of a batch, called where batches are read; None
        for a batch that is copied as it is.
    """
    copies = None if device.type == "cpu" else _copies(device)

    def begin(batch: Batch) -> tuple[Any, Any]:
        made = prepare(batch)
        if made is not None:
            return made, None
        return (_counted(batch), None) if copies is None else copies.begin(batch)

    with closing(_each(batches)) as source:
        if not reads_ahead(device):
            for batch in source:
                yield begin(batch)[0]
        else:
            with closing(_ahead(source, begin)) as begun:
                for copy, done in begun:
                    yield copy if copies is None or done is None else copies.end(copy, done)


def moved(batch: Batch, device: torch.device) -> Batch:
    """Return one batch of graphs copied to a device; the host waits for the copy."""
    on_it: Batch = _counted(batch).to(device)
    return on_it


def sent(values: _Sent, device: torch.device) -> _Sent:
    """Return a copy of a tensor or batch on a device, copied asynchronously; on a CPU itself."""
    if device.type == "cpu":
        return values
    there: _Sent = values.pin_memory().to(device, non_blocking=True)
    return there


def _each(batches: Iterable[Batch]) -> Batches:
    yield from batches


def _counted(batch: Batch) -> Batch:
    # Attention needs these numbers, and reading them from the device would make the host wait.
    batch.largest_graph = int((batch.ptr[1:] - batch.ptr[:-1]).max())
    batch.any_finite = bool(finite_graphs(batch).any())
    return batch


def _ahead(source: Batches, work: Callable[[Batch], _T]) -> Generator[_T, None, None]:

    def make() -> _T | None:
        batch = next(source, None)
        return None if batch is None else work(batch)

    made: deque[Future[_T | None]] = deque()
    with ThreadPoolExecutor(1, THREAD) as thread:
        try:
            made.extend(thread.submit(make) for _ in range(AHEAD))
            while (item := made.popleft().result()) is not None:
                made.append(thread.submit(make))
                yield item
        finally:
            for future in made:
                future.cancel()


class _Copies:
    """Copier of batches from pinned memory to a device, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._runtime: Any = torch.get_device_module(device)
        self._stream = self._runtime.Stream(device)

    def begin(self, batch: Batch) -> tuple[Batch, Any]:
        """Begin to copy a batch, in any thread; returns the copy and an event at its end."""
        with self._runtime.stream(self._stream):
            copy = _counted(batch).pin_memory().to(self._device, non_blocking=True)
            return copy, self._stream.record_event()

    def end(self, copy: Batch, done: Any) -> Batch:
        """Make later work on the current stream wait for the event ``done``; returns ``copy``."""
        steps = self._runtime.current_stream(self._device)
        steps.wait_event(done)
        # The memory belongs to the copying stream, which must not reuse it before the step is done.
        copy.record_stream(steps)
        return copy


# One instance for good: torch caches freed memory per stream, so a new stream could not reuse it.
_copies = lru_cache(_Copies)
