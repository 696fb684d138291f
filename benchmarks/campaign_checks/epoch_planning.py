"""Time and memory that a rank takes to plan an epoch of a large data set.

    python -m campaign_checks.epoch_planning        (from the directory of benchmarks)

The index is synthetic: it works out the sizes of graphs when it is asked for them. A process of its
own plans for one rank of many, since its peak memory is measured.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.branch_runs import BranchRuns
from hydragnn_flow.training.batching import Budget
from hydragnn_flow.training.epochs import Epoch
from hydragnn_flow.training.orders import InTurns, Order, Shuffled

Ints = NDArray[np.int64]
GRAPHS, RANKS, GRAPHS_PER_RANK, BRANCHES = 10**7, 64, 32, 16


@dataclass(frozen=True)
class Index:
    """Graphs of 1 to 97 atoms."""

    size: int
    name: str = "trainset"

    def __len__(self) -> int:
        return self.size

    def atoms_of(self, graphs: Ints) -> Ints:
        """Atoms of some graphs."""
        return 1 + graphs % 97

    def edges_of(self, graphs: Ints) -> Ints:
        """Edges of some graphs."""
        return 12 * (1 + graphs % 97)


@dataclass(frozen=True)
class Planning:
    """What planning took of one rank."""

    what: str
    steps: int
    first_seconds: float
    """CPU time until the first step is known [s]."""
    seconds: float
    """CPU time of the whole epoch, spread over its training [s]."""
    mebibytes: float
    """Peak memory beyond that of the process before it planned [MiB]."""


def measured(graphs: int = GRAPHS, ranks: int = RANKS) -> list[Planning]:
    """What planning takes of a rank, for whole epochs and for 100 steps of them."""
    whole, some = {"n_graphs": graphs}, {"n_steps": 100}
    cases = [
        ("an epoch", whole, False, False),
        (f"an epoch, {BRANCHES} data sets equally", whole, True, False),
        ("100 steps", some, False, False),
        (f"100 steps, {BRANCHES} data sets equally", some, True, False),
        ("100 steps, batches limited by atoms", some, False, True),
    ]
    context = multiprocessing.get_context("spawn")  # with no memory of this process
    found = []
    for case in cases:
        with context.Pool(1) as pool:
            found.append(pool.apply(_planned, (*case, graphs, ranks)))
    return found


def _planned(
    what: str, length: dict[str, int], is_equal: bool, by_atoms: bool, graphs: int, ranks: int
) -> Planning:
    order: Order = Shuffled(graphs, 0)
    if is_equal:
        bounds = np.linspace(0, graphs, BRANCHES + 1).astype(np.int64)
        runs = BranchRuns.of_pairs([*enumerate(np.diff(bounds).tolist())])
        order = InTurns(runs, dict.fromkeys(range(BRANCHES), 1), 0)
    each = GRAPHS_PER_RANK * ranks
    budget = Budget(atoms=50 * each) if by_atoms else Budget(graphs=each)
    before, begun = _peak(), time.process_time()
    epoch = Epoch(Index(graphs), order, budget, 0, ranks, **length)
    steps, first = 0, 0.0
    for window in epoch.windows():
        first = first or time.process_time() - begun
        for step in window:
            assert len(step.of_rank(ranks - 1))
            steps += 1
    seconds = time.process_time() - begun
    return Planning(what, steps, first, seconds, (_peak() - before) / 2**20)


def _peak() -> int:
    """Peak memory of this process [B]."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


if __name__ == "__main__":
    for planning in measured():
        print(asdict(planning))
