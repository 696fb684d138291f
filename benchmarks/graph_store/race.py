"""Several ways to do the same, measured in turns."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Batch

Epoch = Generator[Batch, None, None]


@dataclass(frozen=True)
class Contender:
    """Somebody who takes turns."""

    name: str
    turn: Callable[[np.random.Generator, float], int]
    """Reads for some CPU-seconds, in the order of a generator; returns the number of graphs."""


def reader(name: str, epoch: Callable[[np.random.Generator], Epoch]) -> Contender:
    """A contender that reads epochs of batches."""

    def turn(rng: np.random.Generator, seconds: float) -> int:
        graphs, start = 0, time.process_time()
        while time.process_time() - start < seconds:
            # Closed within the time: a thread that reads ahead must not work in another's turn.
            with closing(epoch(rng)) as batches:
                for batch in batches:
                    graphs += batch.num_graphs
                    if time.process_time() - start >= seconds:
                        break
        return graphs

    return Contender(name, turn)


def by_index(
    name: str, batch: Callable[[NDArray[np.int64]], Batch], n_graphs: int, size: int
) -> Contender:
    """A contender that makes batches of any graphs, here of ``size`` random ones."""

    def epoch(rng: np.random.Generator) -> Epoch:
        order = rng.permutation(n_graphs)
        for first in range(0, n_graphs - size + 1, size):
            yield batch(order[first : first + size])

    return reader(name, epoch)


class Rates:
    """Graphs per CPU-second of each contender, one figure for each round."""

    def __init__(self, rounds: dict[str, list[float]]) -> None:
        self.rounds = rounds

    def of(self, name: str) -> float:
        """Median over the rounds."""
        return median(self.rounds[name])

    def ratio(self, name: str, other: str) -> float:
        """Median of the ratios within each round, in which both found the machine the same."""
        return median(self._ratios(name, other))

    def spread(self, name: str, other: str) -> tuple[float, float]:
        """Smallest and largest of those ratios."""
        ratios = self._ratios(name, other)
        return min(ratios), max(ratios)

    def _ratios(self, name: str, other: str) -> list[float]:
        pairs = zip(self.rounds[name], self.rounds[other], strict=True)
        return [ours / theirs for ours, theirs in pairs]


def race(
    contenders: Sequence[Contender], rounds: int, seconds: float, say: Callable[[str], None]
) -> Rates:
    """Let the contenders work in turns.

    Parameters
    ----------
    contenders
        Ready to work, their files in the page cache.
    rounds
        Turns of each.
    seconds
        CPU time of a turn; that of all threads of this process counts.
    say
        Told what is being measured.
    """
    found: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    rng = np.random.default_rng(0)
    # The objects that contenders keep must not slow down the garbage collection of all.
    gc.collect()
    gc.freeze()
    try:
        for contender in contenders:
            say(f"{contender.name}: warming up")
            _turn(contender, rng, seconds / 5)
        for number in range(rounds):
            for contender in contenders:
                say(f"{contender.name}: round {number + 1} of {rounds}")
                found[contender.name].append(_turn(contender, rng, seconds))
    finally:
        gc.unfreeze()
    return Rates(found)


def _turn(contender: Contender, rng: np.random.Generator, seconds: float) -> float:
    """Graphs per CPU-second of one contender."""
    start = time.process_time()
    graphs = contender.turn(rng, seconds)
    return graphs / (time.process_time() - start)
