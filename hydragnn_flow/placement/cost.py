"""What a segment will take: seconds and memory, first from the network alone, then from experience.

The first estimate is a roofline: a step lasts as long as its arithmetic, its memory traffic or the
launching of its operations, whichever is longest (Williams, Waterman & Patterson, Commun. ACM 52,
65 (2009)). Every finished segment then corrects the estimates for its message-passing type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

GIB = 2**30
# Weights, gradients, two moments, their running average and the best copy, in units of the weights.
COPIES_OF_WEIGHTS = 6
# How much one more observation moves a correction once many have been seen.
SMALLEST_STEP = 0.1


@dataclass(frozen=True)
class Gcd:
    """What one GCD can do; on a laptop, one CPU slot."""

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
    share: int
    """Largest number of segments side by side on one GCD; 1 on CPU slots."""


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
    """What a segment is expected to take."""

    seconds: float
    """Time on a GCD of its own [s]."""
    memory_gib: float
    """Peak memory, process included [GiB]."""
    uncorrected_seconds: float
    """What the network alone would have said, before experience corrected it [s]."""
    busy: float
    """Share of the time the GCD computes rather than waits for the next launch, 0 to 1; 1 where
    GCDs are not shared."""


@dataclass
class CostModel:
    """Predicts seconds and memory; learns from every segment that ran.

    Parameters
    ----------
    gcd
        The GCDs of the site.
    """

    gcd: Gcd
    _corrections: dict[str, tuple[float, int]] = field(default_factory=dict)

    def estimate(self, kind: str, work: Work, steps: int) -> Estimate:
        """Predict a segment.

        Parameters
        ----------
        kind
            Segments of one kind share a correction; the message-passing type.
        work
            One training step.
        steps
            Number of steps.
        """
        computing = max(work.flops / self.gcd.flops, work.bytes / self.gcd.bandwidth)
        launching = work.launches * self.gcd.launch_seconds
        step = max(computing, launching)
        log_ratio, _ = self._corrections.get(kind, (0.0, 0))
        memory = work.activation_bytes + COPIES_OF_WEIGHTS * work.parameter_bytes
        return Estimate(
            seconds=step * steps * math.exp(log_ratio),
            uncorrected_seconds=step * steps,
            memory_gib=self.gcd.process_gib + memory / GIB,
            busy=computing / step if step > 0 and self.gcd.share > 1 else 1.0,
        )

    def observe(self, kind: str, uncorrected_seconds: float, seconds: float) -> None:
        """Learn how long a segment took on a GCD of its own.

        Parameters
        ----------
        kind
            As given to :meth:`estimate`.
        uncorrected_seconds
            Of the segment's estimate. Many segments are in flight at a time; were each compared
            with its corrected estimate, all of them would add the same correction again.
        seconds
            What it took.
        """
        if uncorrected_seconds <= 0 or seconds <= 0:
            return
        log_ratio, seen = self._corrections.get(kind, (0.0, 0))
        weight = max(1 / (seen + 1), SMALLEST_STEP)
        log_ratio += weight * (math.log(seconds / uncorrected_seconds) - log_ratio)
        self._corrections[kind] = (log_ratio, seen + 1)
