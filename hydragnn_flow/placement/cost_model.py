"""Cost model: seconds and memory of a segment, from its network and then from experience.

The first estimate is a roofline: a step lasts as long as its arithmetic, its memory traffic or the
launching of its operations, whichever is longest (Williams, Waterman & Patterson, Commun. ACM 52,
65 (2009)). Whole segments then correct it; see :class:`~hydragnn_flow.placement.ratios.Ratios`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.placement.ratios import Ratios

GIB = 2**30
# Weights, gradients, two moments, their running average and the best copy, in units of the weights.
COPIES_OF_WEIGHTS = 6
# Factors on estimates of memory: for types that were never measured, for others, and for a trial
# that has run. Of 104 networks of 13 types 12 % took more than 1.5 times the counted memory.
MARGINS = (1.5, 1.25, 1.1)
# Segments of a message-passing type at which its own mean counts half, beside that of all. Step
# times of types differ less than those of networks of one type; memory differs more.
_STEPS_SHRINKAGE, _MEMORY_SHRINKAGE = 8.0, 0.5
# Standard deviations to the largest of some thousand sums.
_FAR = 3.5
# Segments whose time beside their training steps is averaged.
_RESTS = 64


@dataclass(frozen=True)
class Gcd:
    """Speed and memory of one GCD; on a laptop, of one CPU slot."""

    memory_gib: float
    """Memory a segment may use [GiB]."""
    flops: float
    """Arithmetic rate in fp32 on layers of this size [1/s]."""
    bandwidth: float
    """Memory traffic [B/s]."""
    launch_seconds: float
    """Time to start one operation [s]."""
    process_gib: float
    """Memory a process takes before it has a model [GiB]."""
    most_segments: int
    """Largest number of segments side by side on one GCD; 1 on CPU slots."""
    launches: bool = False
    """Whether it starts operations itself, as a CPU core does: it is always busy then, and the
    times to start and to compute add up."""


@dataclass(frozen=True)
class Work:
    """One training step, counted from the network and the size of its batch."""

    flops: float
    bytes: float
    launches: int
    activation_bytes: float
    parameter_bytes: float


@dataclass(frozen=True)
class Estimate:
    """Expected cost of a segment."""

    seconds: float
    """Time on its GCDs, added up over them [s]."""
    memory_gib: float
    """Peak memory of each, process and margin included [GiB]."""
    uncorrected_seconds: float
    """Time of its training steps as the network alone says, before experience corrected it [s]."""
    busy: float
    """Fraction of the time the GCD computes rather than waits for the next launch, 0 to 1."""
    uncorrected_memory_gib: float = 0.0
    """Peak memory as the network alone says, without a margin [GiB]."""


@dataclass(frozen=True)
class Taken:
    """Measured cost of a whole segment, as ratios to the estimate from its network alone."""

    steps: float
    """Time of its training steps, added up over its GCDs."""
    rest: float = 1.0
    """All of its time over that of its training steps."""
    memory: float | None = None
    """Peak memory, without the process; None if the process is most of it."""
    together: float = 1.0
    """Mean number of segments on the GCD while it was there, itself included."""
    width: int = 1
    """GCDs it had."""


@dataclass
class CostModel:
    """Predicts seconds and memory of segments; learns from those that ran.

    Parameters
    ----------
    gcd
        The GCDs of the site.
    """

    gcd: Gcd
    _steps: Ratios = field(default_factory=lambda: Ratios(_STEPS_SHRINKAGE))
    _memory: Ratios = field(default_factory=lambda: Ratios(_MEMORY_SHRINKAGE))
    _rests: deque[float] = field(default_factory=lambda: deque(maxlen=_RESTS))

    def estimate(
        self, kind: str, work: Work, steps: int, width: int = 1, own: Taken | None = None
    ) -> Estimate:
        """Predict a segment.

        Parameters
        ----------
        kind
            The message-passing type: segments of one type have a correction in common.
        work
            One training step.
        steps
            Number of steps.
        width
            GCDs it is to have.
        own
            Ratios of an earlier segment of the same trial; they take precedence.
        """
        gcd = self.gcd
        computing = max(work.flops / gcd.flops, work.bytes / gcd.bandwidth)
        launching = work.launches * gcd.launch_seconds
        step = computing + launching if gcd.launches else max(computing, launching)
        net = (work.activation_bytes + COPIES_OF_WEIGHTS * work.parameter_bytes) / GIB
        rest = math.fsum(self._rests) / len(self._rests) if self._rests else 0.0
        log_ratio = self._log_ratio(kind, width, own)
        return Estimate(
            seconds=step * steps * math.exp(log_ratio + rest),
            uncorrected_seconds=step * steps,
            memory_gib=gcd.process_gib + net * self._memory_factor(kind, own),
            uncorrected_memory_gib=gcd.process_gib + net,
            busy=1.0 if gcd.launches or step == 0 else computing / step,
        )

    def observe(self, kind: str, taken: Taken) -> None:
        """Learn from a segment that did all of its work.

        Many segments are in flight at a time; were each compared with its corrected estimate, all
        of them would add the same correction again. So the ratios are to the estimate from the
        network alone.

        Parameters
        ----------
        kind
            As given to :meth:`estimate`.
        taken
            Its ratios.
        """
        if not (0 < taken.steps < math.inf and 0 < taken.rest < math.inf):
            return
        self._steps.add(kind, math.log(taken.steps), _conditions(taken.together, taken.width))
        self._rests.append(math.log(taken.rest))
        if taken.memory is not None:
            self._memory.add(kind, math.log(taken.memory))

    def _log_ratio(self, kind: str, width: int, own: Taken | None) -> float:
        """Correction of the time of training steps, on a GCD that is not shared."""
        expected = self._steps.expected(kind, _conditions(1, width))
        if own is None or own.steps <= 0:
            return expected
        before = self._steps.expected(kind, _conditions(own.together, own.width))
        return math.log(own.steps) + expected - before

    def _memory_factor(self, kind: str, own: Taken | None) -> float:
        unknown, known, measured = MARGINS
        if own is not None and own.memory is not None:
            return own.memory * measured
        margin = known if self._memory.knows(kind) else unknown
        return math.exp(self._memory.expected(kind)) * margin


def _conditions(together: float, width: int) -> tuple[float, ...]:
    """Logarithms on which a segment's time depends linearly, beside its network."""
    return math.log(together), math.log(width)


@dataclass(frozen=True)
class Sizes:
    """How the sizes of graphs are distributed."""

    mean: float
    deviation: float
    skewness: float
    largest: float

    @classmethod
    def of(cls, sizes: NDArray[np.int64]) -> Sizes:
        """Sizes from the number of atoms, or of edges, of each graph."""
        mean, deviation = float(sizes.mean()), float(sizes.std())
        skewness = float((((sizes - mean) / (deviation or 1.0)) ** 3).mean())
        return cls(mean, deviation, skewness, float(sizes.max()))

    def largest_batch(self, graphs: float) -> float:
        """How much larger the largest of some thousand random batches is than the mean one.

        The quantile of a sum to the second order (Cornish and Fisher, Rev. Inst. Int. Stat. 5, 307
        (1938)), at 3.5 standard deviations.

        Parameters
        ----------
        graphs
            In a batch.
        """
        graphs = max(graphs, 1.0)
        far = _FAR + (_FAR**2 - 1) / 6 * max(0.0, self.skewness) / math.sqrt(graphs)
        above = far * self.deviation / math.sqrt(graphs)
        return max(1.0, min(self.mean + above, self.largest) / self.mean)
