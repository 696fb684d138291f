"""Batches on the device, made and copied while it computes.

A thread reads the next batches into pinned memory and copies them on a stream of its own. The
stream of the steps waits for a batch's copy; the host waits for neither. On a CPU the thread would
take from the steps what it saves, so there a batch is made when it is asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch_geometric.data import Batch

from hydragnn_flow.models.space import finite_graphs

Batches = Generator[Batch, None, None]
_T = TypeVar("_T")

AHEAD = 2
"""Batches made before they are asked for: one that is read while another is copied."""
THREAD = "batches"
"""Beginning of the thread's name."""


def reads_ahead(device: torch.device) -> bool:
    """Whether a thread makes the batches."""
    return device.type != "cpu"


def on_device(batches: Iterable[Batch], device: torch.device) -> Batches:
    """The batches in their order, on the device.

    Close it if you leave it before its end; then its thread is gone, and ``batches`` is closed too.
    An exception of ``batches`` is raised here in the place of the batch.

    Parameters
    ----------
    batches
        On the host. For an accelerator they are made in another thread, :data:`AHEAD` of the
        request.
    device
        Where they are wanted.
    """
    with closing(_each(batches)) as source:
        if not reads_ahead(device):
            for batch in source:
                yield moved(batch, device)
        elif device.type == "cpu":
            with closing(_ahead(source, _counted)) as counted:
                yield from counted
        else:
            copies = _copies(device)
            with closing(_ahead(source, copies.begin)) as begun:
                for copy in begun:
                    yield copies.end(*copy)


def moved(batch: Batch, device: torch.device) -> Batch:
    """One batch on the device, for which the host waits."""
    on_it: Batch = _counted(batch).to(device)
    return on_it


def _each(batches: Iterable[Batch]) -> Batches:
    yield from batches


def _counted(batch: Batch) -> Batch:
    # Attention asks for these, and of a batch on the device the host would have to wait for them.
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
    """Copies from pinned memory, on a stream beside that of the steps."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._runtime: Any = torch.get_device_module(device)
        self._stream = self._runtime.Stream(device)

    def begin(self, batch: Batch) -> tuple[Batch, Any]:
        """Begin to copy a batch; in any thread. Also an event that says when it is done."""
        with self._runtime.stream(self._stream):
            copy = _counted(batch).pin_memory().to(self._device, non_blocking=True)
            return copy, self._stream.record_event()

    def end(self, copy: Batch, done: Any) -> Batch:
        """Make this thread's later work on the device wait for the copy."""
        steps = self._runtime.current_stream(self._device)
        steps.wait_event(done)
        # Its memory belongs to the other stream, which must not use it again before the steps have.
        copy.record_stream(steps)
        return copy


# One for good: what torch frees on a stream it gives to no other.
_copies = lru_cache(_Copies)
