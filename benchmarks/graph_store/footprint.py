"""Rows of memory, disk traffic and waiting, each measured in processes of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from results import Line

from graph_store.generated import bytes_of, random_graphs
from graph_store.throughput import stream_order
from graph_store.workspace import SPLIT, Workspace, files_of, forget, in_fresh_process
from hydragnn_flow import GraphStore, write_store

_PROCESSES = 8


class CannotMeasure(Exception):
    """This system does not show what a row needs; the message says what."""


def cold(work: Workspace) -> list[Line]:
    """Bytes that a stream reads from the device, for each graph of one epoch."""
    graphs, size = work.settings.graphs, _tensor_bytes(work.wide)
    work.say("streaming from a cold cache")
    read, everything = in_fresh_process(_stream_cold, work.wide)
    if everything < 0.9 * sum(path.stat().st_size for path in files_of(work.wide)):
        raise CannotMeasure(f"the file system of {work.folder.parent} does not count what it reads")
    return [
        Line(
            "cold",
            "stream, cold cache, read per graph",
            read / graphs / 1e3,
            "kB",
            "a graph's tensors",
            size / graphs / 1e3,
            at_most=60,
        )
    ]


def pss(work: Workspace) -> list[Line]:
    """Memory that processes of one node need for the same data together."""
    data, warm = _tensor_bytes(work.large), work.small
    work.say(f"{_PROCESSES} processes open one store")
    context = get_context("spawn")
    pipes, processes = [], []
    try:
        for _ in range(_PROCESSES):
            here, there = context.Pipe()
            arguments = (there, warm, work.large)
            process = context.Process(target=_touch_everything, args=arguments)
            process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        totals = []
        for _ in ("before", "with all of it"):
            for pipe in pipes:
                pipe.recv()
            totals.append(sum(_proportional(process.pid) for process in processes))
            for pipe in pipes:
                pipe.send("go on")
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join()
    value = (totals[1] - totals[0]) / data
    what = f"memory, {_PROCESSES} processes, PSS in all"
    return [Line("pss", what, value, "× the data", "a copy each", _PROCESSES, at_most=1.15)]


def write(work: Workspace) -> list[Line]:
    """Memory that writing 1 GB takes beyond what the process has anyway."""
    work.say("writing 1 GB")
    path, count = work.folder / "large.gs", work.settings.large
    grown = in_fresh_process(_write, path, work.folder / "warm.gs", count)
    size = sum(file.stat().st_size for file in files_of(path))
    what = f"writing {size / 1e9:.2g} GB, resident memory gained"
    return [Line("write", what, grown / 1e6, "MB", "all of it", size / 1e6, at_most=100)]


def opening(work: Workspace) -> list[Line]:
    """Time until a large store is open and the size of every graph known."""
    store = work.tiny
    work.say("opening a store of many graphs")
    seconds = sorted(in_fresh_process(_open, store) for _ in range(3))
    what = f"opening {work.settings.tiny:,} graphs"
    return [Line("open", what, seconds[1], "s", at_most=1, spread=(seconds[0], seconds[-1]))]


def _tensor_bytes(store: Path) -> int:
    """Size of all graphs of a store as tensors."""
    split = GraphStore.open(store)[SPLIT]
    return bytes_of(len(split), int(split.n_atoms.sum()), int(split.n_edges.sum()))


def _stream_cold(store: Path) -> tuple[int, int]:
    """Bytes read from the device by one epoch of a stream, and by reading every file plainly."""

    def stream() -> None:
        split = GraphStore.open(store, mode="stream")[SPLIT]
        for batch in split.batches(stream_order(split, 128, seed=0)):
            del batch

    def plainly() -> None:
        for path in files_of(store):
            path.read_bytes()

    return _read_cold(store, stream), _read_cold(store, plainly)


def _read_cold(store: Path, read: Callable[[], None]) -> int:
    forget(store)
    before = _field("/proc/self/io", "read_bytes")
    read()
    return _field("/proc/self/io", "read_bytes") - before


def _touch_everything(pipe: Connection, small: Path, store: Path) -> None:
    """Wait, read every graph of a store in memory mode, wait again with the store open."""
    torch.set_num_threads(1)
    _read_all(small)
    pipe.send("ready")
    pipe.recv()
    opened = _read_all(store)
    pipe.send("ready")
    pipe.recv()
    del opened


def _read_all(path: Path) -> GraphStore:
    store = GraphStore.open(path, mode="memory")
    split = store[SPLIT]
    for first in range(0, len(split), 16):
        split.batch(np.arange(first, min(first + 16, len(split))))
    return store


def _write(path: Path, warm: Path, count: int) -> int:
    """Bytes by which resident memory exceeds, at its highest, that of the process before."""
    write_store(warm, {SPLIT: random_graphs(64, seed=1)})
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # forget the highest so far
    except OSError as error:
        raise CannotMeasure(f"/proc/self/clear_refs cannot be written ({error.strerror})") from None
    before = _field("/proc/self/status", "VmRSS")
    write_store(path, {SPLIT: random_graphs(count, seed=2)})
    return 1024 * (_field("/proc/self/status", "VmHWM") - before)


def _open(store: Path) -> float:
    start = time.perf_counter()
    split = GraphStore.open(store, mode="stream")[SPLIT]
    assert len(split) == split.n_atoms.sum() // 2 == split.n_edges.sum() // 2
    return time.perf_counter() - start


def _proportional(pid: int | None) -> int:
    """Proportional set size of a process: memory it shares counts by its share."""
    return 1024 * _field(f"/proc/{pid}/smaps_rollup", "Pss")


def _field(file: str, name: str) -> int:
    """The number after ``name:`` in a file of /proc."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise CannotMeasure(f"{file} cannot be read ({error.strerror})") from None
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise CannotMeasure(f"{file} has no {name}")
