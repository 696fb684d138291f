"""Profile of training steps as plain values: time per step of each mode, and hardware peaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

REAL, MARKED, CACHED, LOADER, ALONE = (
    "real data",
    "real data, timed part by part",
    "one cached batch",
    "loader alone",
    "one cached batch, no exchange",
)


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
        """Total time of a step [s]."""
        return self.reading + self.computing + self.exchanging + self.waiting


@dataclass(frozen=True)
class Peaks:
    """Peak rates of a GCD: the ceilings of its roofline.

    Williams, Waterman and Patterson, Commun. ACM 52 (2009) 65,
    https://doi.org/10.1145/1498765.1498785.

    Attributes
    ----------
    flops
        Floating-point operations per second in a matrix product.
    bytes
        Bytes per second read and written by ``a = b + s c`` over large arrays.
    """

    flops: float
    bytes: float

    def attainable(self, intensity: float) -> float:
        """Return the roofline: attainable operations per second at an intensity [FLOP/byte]."""
        return min(self.flops, intensity * self.bytes)


@dataclass(frozen=True)
class Timing:
    """Timing of one mode of going through steps.

    Attributes
    ----------
    steps
        Number of steps that were timed.
    seconds, cpu_seconds
        Wall time and CPU time of a process per step [s], averaged over ranks.
    graphs_per_second
        Throughput of all ranks in wall time.
    """

    steps: int
    seconds: float
    cpu_seconds: float
    graphs_per_second: float


@dataclass(frozen=True)
class TrainingProfile:
    """Profile of a trial's steps: where their time goes.

    Attributes
    ----------
    device
        Kind of device of the ranks: `cpu`, `cuda` or `xpu`.
    ranks
        Number of GCDs that trained together.
    graphs, atoms, edges
        Mean numbers per step, over all ranks.
    flops, bytes
        Floating-point operations of a step, and bytes that its kernels would read and write without
        caches, over all ranks.
    peak_memory_gib
        Peak memory of the first rank [GiB].
    joules_per_graph
        Energy per graph while training on real data, from the first rank's counters; None without
        counters.
    peaks
        Peak rates of a GCD, measured on all GCDs at once and averaged.
    parts
        Time of a step on real data by activity. With sharded weights waiting counts as exchanging,
        which is the difference that it makes to cached batches.
    timings
        Timing by mode. ``real data``: training as it is. ``real data, timed part by part``: the
        source of `parts`. These two are always there, the others if a comparison was asked for.
        ``one cached batch``: the same batches repeatedly, so nothing is read. ``loader alone``:
        batches are read and not computed. ``one cached batch, no exchange``, with several ranks: as
        if there were no other rank.
    """

    device: str
    ranks: int
    parameters: int
    graphs: float
    atoms: float
    edges: float
    flops: float
    bytes: float
    peak_memory_gib: float
    joules_per_graph: float | None
    peaks: Peaks
    parts: Parts
    timings: dict[str, Timing]

    @property
    def seconds(self) -> float:
        """Time per step in normal training, without timing within the step [s]."""
        return self.timings[REAL].seconds

    @property
    def closure(self) -> float:
        """Relative difference between the sum of `parts` and the same steps timed as a whole.

        The whole is the host's wall time of many steps, averaged over ranks.
        """
        return self.parts.seconds / self.timings[MARKED].seconds - 1.0

    @property
    def disturbance(self) -> float:
        """Relative overhead of timing within a step.

        On a CPU it is that of CPU time, because wall time varies more with other load on the
        machine. On an accelerator it is that of wall time.
        """
        plain, timed = self.timings[REAL], self.timings[MARKED]
        if self.device == "cpu":
            return timed.cpu_seconds / plain.cpu_seconds - 1.0
        return timed.seconds / plain.seconds - 1.0

    @property
    def flops_per_second(self) -> float:
        """Floating-point operations per second of a GCD while it computes."""
        return self.flops / self.ranks / self.parts.computing

    @property
    def intensity(self) -> float:
        """Arithmetic intensity of a step [FLOP/byte]."""
        return self.flops / self.bytes

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; :meth:`from_dict` reads them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingProfile:
        """Return the profile from JSON values; inverse of :meth:`to_dict`."""
        known = {
            "peaks": Peaks(**values["peaks"]),
            "parts": Parts(**values["parts"]),
            "timings": {name: Timing(**timing) for name, timing in values["timings"].items()},
        }
        return cls(**{**values, **known})
