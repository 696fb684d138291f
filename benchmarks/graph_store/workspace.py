"""Stores to measure on, and processes to measure in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
from torch_geometric.data import Data

from graph_store.generated import random_graphs, tiny_graphs
from hydragnn_flow import GraphStore, InputError, write_store

SPLIT = "trainset"
Dtypes = Literal["hydragnn", "compact"]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    graphs: int
    """Random graphs of the store that is read in batches."""
    rounds: int
    """Turns of each contender."""
    seconds: float
    """CPU time of a turn."""
    large: int = 32_200
    """Random graphs that make 1 GB."""
    tiny: int = 1_000_000
    """Graphs of the store that is only opened."""


class Workspace:
    """Makes a store when a row first asks for it.

    Parameters
    ----------
    folder
        Deleted after the run.
    kept
        For what takes long to make; found again by the next run.
    settings
        Numbers of graphs.
    hydragnn
        A checkout of HydraGNN to compare with.
    say
        Told what is being done.

    Attributes
    ----------
    left_out
        What could not be measured here, and why.
    rates
        Row → contender → graphs per CPU-second in each turn.
    """

    def __init__(
        self,
        folder: Path,
        kept: Path,
        settings: Settings,
        hydragnn: Path | None,
        say: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.hydragnn = hydragnn
        self.say = say
        self.left_out: list[str] = []
        self.rates: dict[str, dict[str, list[float]]] = {}
        self._kept = kept

    @cached_property
    def graphs(self) -> list[Data]:
        """The random graphs themselves, each in memory of its own."""
        self.say("generating graphs")
        return [graph.clone() for graph in random_graphs(self.settings.graphs, seed=0)]

    @cached_property
    def wide(self) -> Path:
        """The random graphs in HydraGNN's types."""
        return self._random("hydragnn")

    @cached_property
    def compact(self) -> Path:
        """The random graphs in narrow types."""
        return self._random("compact")

    @cached_property
    def small(self) -> Path:
        """A few random graphs, to warm up with."""
        return self._write("small.gs", islice(random_graphs(64, seed=1), 64))

    @cached_property
    def large(self) -> Path:
        """Random graphs of 1 GB."""
        path = self.folder / "large.gs"
        if not path.exists():  # the row that measures writing has made it
            self._write(path.name, random_graphs(self.settings.large, seed=2))
        return path

    @cached_property
    def tiny(self) -> Path:
        """A million graphs of two atoms, kept from run to run."""
        path = self._kept / f"tiny-{self.settings.tiny}.gs"
        try:
            GraphStore.open(path)
        except InputError:  # none yet, or of another version
            self.say(f"writing {self.settings.tiny:,} tiny graphs, once")
            unfinished = self.folder / path.name
            write_store(unfinished, {SPLIT: tiny_graphs(self.settings.tiny)})
            shutil.rmtree(path, ignore_errors=True)
            unfinished.replace(path)
        return path

    def _random(self, dtypes: Dtypes) -> Path:
        graphs = random_graphs(self.settings.graphs, seed=0)
        return self._write(f"random-{dtypes}.gs", graphs, dtypes)

    def _write(self, name: str, graphs: Iterator[Data], dtypes: Dtypes = "hydragnn") -> Path:
        self.say(f"writing {name}")
        path = self.folder / name
        write_store(path, {SPLIT: graphs}, dtypes=dtypes)
        return path


def in_fresh_process(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a process that has done nothing but imports, and raise what it raises.

    The process ends with the call, also where this one has been killed meanwhile.

    Raises
    ------
    RuntimeError
        If the process is killed.
    """
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_alone, args=(there, function, arguments))
    process.start()
    there.close()
    try:
        result, error = here.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"{function.__name__} ended with {process.exitcode}") from None
    process.join()
    if error is not None:
        raise error
    return cast(Result, result)


def _alone(pipe: Connection, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    answer: tuple[object, Exception | None]
    try:
        answer = function(*arguments), None
    except Exception as error:
        answer = None, error
    with suppress(BrokenPipeError):  # nobody waits for it any more
        pipe.send(answer)


def files_of(store: Path) -> list[Path]:
    """Every file of a store."""
    return sorted(path for path in store.rglob("*") if path.is_file())


def forget(store: Path) -> None:
    """Drop a store from the page cache, as far as the system lets go of it."""
    for path in files_of(store):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
