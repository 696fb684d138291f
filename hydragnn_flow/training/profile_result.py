"""Profile of training steps as plain values: how long each way of going through steps took."""

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
    """Seconds of a step by what a GCD does, the mean over ranks and steps.

    Attributes
    ----------
    reading
        Until its graphs are there. What a thread reads beside the computing takes no time here.
    computing
        Forward, backward and update, up to the last gradient and after the exchange.
    exchanging
        Sums of gradients on the way while nothing is left to compute.
    waiting
        For ranks that have their gradients later.
    """

    reading: float = 0.0
    computing: float = 0.0
    exchanging: float = 0.0
    waiting: float = 0.0

    @property
    def seconds(self) -> float:
        """Their sum."""
        return self.reading + self.computing + self.exchanging + self.waiting


@dataclass(frozen=True)
class Peaks:
    """What a GCD can do: the ceilings of its roofline.

    Williams, Waterman and Patterson, Commun. ACM 52 (2009) 65,
    https://doi.org/10.1145/1498765.1498785.

    Attributes
    ----------
    flops
        Floating-point operations of a matrix product in a second.
    bytes
        Read and written by ``a = b + s c`` over large arrays, in a second.
    """

    flops: float
    bytes: float

    def attainable(self, intensity: float) -> float:
        """Roofline: most floating-point operations in a second at an intensity [FLOP/byte]."""
        return min(self.flops, intensity * self.bytes)


@dataclass(frozen=True)
class Timing:
    """One way of going through steps.

    Attributes
    ----------
    steps
        How many.
    seconds, cpu_seconds
        Of a step, by the clock and of a process; the means of all ranks.
    graphs_per_second
        Over all ranks, by the clock.
    """

    steps: int
    seconds: float
    cpu_seconds: float
    graphs_per_second: float


@dataclass(frozen=True)
class TrainingProfile:
    """A trial's steps, taken apart.

    Attributes
    ----------
    device
        What the ranks compute on: `cpu`, `cuda` or `xpu`.
    ranks
        GCDs that trained together.
    graphs, atoms, edges
        In a step, over all ranks, on average.
    flops, bytes
        Floating-point operations of a step, and bytes that its kernels read and write as if nothing
        stayed in a cache, over all ranks.
    peak_memory_gib
        Of the first rank [GiB].
    joules_per_graph
        While training on real data, of all that the first rank's counters see; None if nothing
        counts.
    peaks
        What a GCD can do, measured on all of them at a time; their mean.
    parts
        Of a step on real data. Where weights are sharded, waiting counts as exchanging, which is
        the difference that it makes to cached batches.
    timings
        ``real data``: training as it is. ``real data, timed part by part``: where `parts` come
        from. These two are always there, the others where a comparison was wanted. ``one cached
        batch``: the same batches again and again, so nothing is read. ``loader alone``: batches are
        read and not computed. With several ranks also ``one cached batch, no exchange``: as if
        there were no other rank.
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
        """Time of a step as training takes it, with nothing timed within [s]."""
        return self.timings[REAL].seconds

    @property
    def closure(self) -> float:
        """Difference of the parts' sum from the same steps timed as a whole, as a fraction.

        The whole is taken by the host's clock around many steps, the mean of all ranks.
        """
        return self.parts.seconds / self.timings[MARKED].seconds - 1.0

    @property
    def disturbance(self) -> float:
        """What timing the parts adds to a step, as a fraction.

        Of the processor's time where that computes: others on the machine change how long a step
        takes more than marks do. Of the time by the clock on an accelerator.
        """
        plain, timed = self.timings[REAL], self.timings[MARKED]
        if self.device == "cpu":
            return timed.cpu_seconds / plain.cpu_seconds - 1.0
        return timed.seconds / plain.seconds - 1.0

    @property
    def flops_per_second(self) -> float:
        """Achieved by a GCD while it computes."""
        return self.flops / self.ranks / self.parts.computing

    @property
    def intensity(self) -> float:
        """Floating-point operations of the step on each byte."""
        return self.flops / self.bytes

    def to_dict(self) -> dict[str, Any]:
        """As JSON; :meth:`from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingProfile:
        """The profile of which these are the JSON values."""
        known = {
            "peaks": Peaks(**values["peaks"]),
            "parts": Parts(**values["parts"]),
            "timings": {name: Timing(**timing) for name, timing in values["timings"].items()},
        }
        return cls(**{**values, **known})
