"""Profile of training steps as plain values: where the time of a step goes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parts:
    """Time of a step by activity of a GCD [s], averaged over ranks and steps.

    Attributes
    ----------
    reading
        Time until the graphs are there; reading in a thread during computation does not count.
    computing
        Time of forward and backward pass up to the last gradient, and of the update.
    exchanging
        Time of summing gradients over ranks while nothing is left to compute.
    waiting
        Time waiting for ranks that have their gradients later.
    """

    reading: float = 0.0
    computing: float = 0.0
    exchanging: float = 0.0
    waiting: float = 0.0

    @property
    def seconds(self) -> float:
        """Total time of a training step [s]: the sum over all activities."""
        return self.reading + self.computing + self.exchanging + self.waiting


@dataclass(frozen=True)
class TrainingProfile:
    """Profile of the training steps of a trial: where their time goes, memory and energy.

    Attributes
    ----------
    device
        Kind of device of the ranks: `cpu`, `cuda` or `xpu`.
    ranks
        Number of GCDs that trained together.
    graphs, atoms, edges
        Mean numbers per step, over all ranks.
    steps
        Number of steps that were timed.
    seconds
        Wall time of a step [s]: the mean of many that were timed as a whole, over all ranks.
    peak_memory_gib
        Peak memory of the first rank [GiB].
    joules_per_graph
        Energy per graph, from the first rank's counters; None without counters.
    parts
        Time of a step by activity. With sharded weights exchanging includes waiting: it is the time
        of a step less that of a step in which a rank holds all weights and exchanges nothing.
    """

    device: str
    ranks: int
    graphs: float
    atoms: float
    edges: float
    steps: int
    seconds: float
    peak_memory_gib: float
    joules_per_graph: float | None
    parts: Parts

    @property
    def closure(self) -> float:
        """Relative difference between the sum of `parts` and the step time measured as a whole."""
        return self.parts.seconds / self.seconds - 1.0
