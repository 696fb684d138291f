"""Ranges of quantities in data, and margins within which new values count as similar."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hydragnn_flow.ensemble.domain.environments import Floats

STRANGE = 0.02
"""Fraction of the training data beyond a range that ends at the tail of its values."""
# Number of values below which the standard deviation itself is uncertain.
_FEW = 10


@dataclass(frozen=True)
class Range:
    """Range of a quantity in the data, with a margin within which values count as similar."""

    low: float
    high: float
    margin: float

    @classmethod
    def of(cls, values: Floats) -> Range | None:
        """Compute the range of finite values; None if there are none.

        The range ends at the quantiles 0.3 % and 99.7 %, so with several hundred values or more it
        leaves out the most extreme. The margin is half a standard deviation. With fewer values it
        is wider: it reaches as far as several hundred values of a normal distribution, of which the
        largest of n is about √(2 ln n) standard deviations from the mean.
        """
        values = values[np.isfinite(values)]
        if not len(values):
            return None
        low, high = np.quantile(values, [0.003, 0.997], method="inverted_cdf")
        return cls(float(low), float(high), _width(len(values)) * float(values.std()))

    @classmethod
    def below_tail(cls, values: Floats) -> Range:
        """Compute a range up to the tail of the values; with few values somewhat beyond."""
        high = np.quantile(values, 1 - STRANGE, method="inverted_cdf")
        return cls(float(values.min()), float(high), _FEW / len(values) * float(values.std()))

    def beyond(self, values: Floats, below: object, above: object) -> Iterator[tuple[int, float]]:
        """Yield the index of each value beyond the range and its margin, and the end exceeded.

        Only the requested sides are checked. The limits allow for rounding between two computations
        of one quantity.
        """
        if below:
            limit = self.low - self.margin - 1e-4 * max(1.0, abs(self.low))
            yield from ((i, self.low) for i in np.flatnonzero(values < limit).tolist())
        if above:
            limit = self.high + self.margin + 1e-4 * max(1.0, abs(self.high))
            yield from ((i, self.high) for i in np.flatnonzero(values > limit).tolist())


def mirrored(values: Floats) -> Floats:
    """Return the values above the median, and their mirror images below it.

    Members agree that perfect crystals have no forces. How small their deviation can be says
    nothing of its usual variation, so only the upper half is used.
    """
    values = values[np.isfinite(values)]
    middle = np.median(values) if len(values) else 0.0
    upper = values[values >= middle]
    return np.concatenate([upper, 2 * middle - upper])


def ranges_of(values: Mapping[str, Floats]) -> dict[str, Range]:
    """Compute the range of each quantity that any structure has."""
    found = {name: Range.of(of) for name, of in values.items()}
    return {name: range_ for name, range_ in found.items() if range_ is not None}


def fraction_ranges(fractions: Floats) -> dict[int, Range]:
    """Compute the range of the fraction of each element that occurs, by atomic number.

    In diverse chemistry most structures lack most elements, and say nothing of how much an
    element's fraction varies. The margin therefore comes from structures with the element, and is
    shrunk towards that of the other elements, which count as five structures.

    Parameters
    ----------
    fractions
        Fraction of each element in each structure, ``[n, 119]``.
    """
    held = fractions > 0
    n = held.sum(axis=0)
    means = fractions.sum(axis=0) / np.maximum(n, 1)
    squares = np.square(np.where(held, fractions - means, 0.0)).sum(axis=0)
    variances = (squares + 5 * squares.sum() / n.sum()) / (n + 5)
    lowest, highest = fractions.min(axis=0), fractions.max(axis=0)
    return {
        z: Range(float(lowest[z]), float(highest[z]), _width(int(n[z])) * math.sqrt(variances[z]))
        for z in np.flatnonzero(n).tolist()
    }


def _width(n: int) -> float:
    """Return the margin beyond the ends of n values, in standard deviations."""
    return max(0.5, 3.8 - math.sqrt(2 * math.log(n))) * (1 + _FEW / n)
