"""Ranges of quantities in data, and how far beyond them values are still taken as like the data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hydragnn_flow.ensemble.environments import Floats

# Fraction of the training data beyond either end of a range, where they are many.
_BEYOND = 0.003
STRANGE = 0.02
"""Fraction of the training data beyond a range that ends where the tail of its values begins."""
# Width of a margin in standard deviations: at least this, and more where the data are few.
_MARGIN = 0.5
_FAR = 3.8
# Of as few values the standard deviation itself is uncertain.
_FEW = 10
# The variance of an element's fractions leans on that of all as if by as many structures.
_LEANING = 5.0


@dataclass(frozen=True)
class Range:
    """Range of a quantity in the data, and how far beyond it is still taken as like them."""

    low: float
    high: float
    margin: float

    @classmethod
    def of(cls, values: Floats) -> Range | None:
        """Range of some values, of which NaN does not count; None if there is none.

        The range ends at the quantiles 0.3 % and 99.7 %, so of several hundred values or more it
        leaves out the most extreme. The margin is half a standard deviation. Of fewer values it is
        wider: it reaches as far as several hundred values of a normal distribution, of which the
        largest of n is about √(2 ln n) standard deviations from the mean.
        """
        values = values[np.isfinite(values)]
        if not len(values):
            return None
        low, high = np.quantile(values, [_BEYOND, 1 - _BEYOND], method="inverted_cdf")
        return cls(float(low), float(high), _width(len(values)) * float(values.std()))

    @classmethod
    def below_tail(cls, values: Floats) -> Range:
        """Range up to where the values' tail begins; of few values somewhat beyond."""
        high = np.quantile(values, 1 - STRANGE, method="inverted_cdf")
        return cls(float(values.min()), float(high), _FEW / len(values) * float(values.std()))

    def beyond(self, values: Floats, below: object, above: object) -> Iterator[tuple[int, float]]:
        """Places of values beyond the range and its margin, and the end they are beyond.

        Only on the sides that are asked for.
        """
        if below:
            limit = self.low - self.margin - _rounding(self.low)
            yield from ((i, self.low) for i in np.flatnonzero(values < limit).tolist())
        if above:
            limit = self.high + self.margin + _rounding(self.high)
            yield from ((i, self.high) for i in np.flatnonzero(values > limit).tolist())


def mirrored(values: Floats) -> Floats:
    """Values from the median on, and as many below as far from it.

    Perfect crystals have no forces, and members agree on that: how little they can differ says
    nothing of how much they usually do.
    """
    values = values[np.isfinite(values)]
    middle = np.median(values) if len(values) else 0.0
    upper = values[values >= middle]
    return np.concatenate([upper, 2 * middle - upper])


def ranges_of(values: Mapping[str, Floats]) -> dict[str, Range]:
    """Those of quantities that any structure has."""
    found = {name: Range.of(of) for name, of in values.items()}
    return {name: range_ for name, range_ in found.items() if range_ is not None}


def fraction_ranges(fractions: Floats) -> dict[int, Range]:
    """Ranges of the fraction of each element that occurs, from smallest to largest.

    Where chemistry is diverse, most structures lack most elements: those without an element say
    nothing of how much its fraction varies. The margin is of the structures with it, and leans on
    the other elements where these are few.

    Parameters
    ----------
    fractions
        Of each element in each structure, ``[n, 119]``.
    """
    held = fractions > 0
    n = held.sum(axis=0)
    means = fractions.sum(axis=0) / np.maximum(n, 1)
    squares = np.square(np.where(held, fractions - means, 0.0)).sum(axis=0)
    variances = (squares + _LEANING * squares.sum() / n.sum()) / (n + _LEANING)
    lowest, highest = fractions.min(axis=0), fractions.max(axis=0)
    return {
        z: Range(float(lowest[z]), float(highest[z]), _width(int(n[z])) * math.sqrt(variances[z]))
        for z in np.flatnonzero(n).tolist()
    }


def _width(n: int) -> float:
    """Width of the margin beyond the ends of n values, in standard deviations."""
    return max(_MARGIN, _FAR - math.sqrt(2 * math.log(n))) * (1 + _FEW / n)


def _rounding(end: float) -> float:
    """What two computations of one quantity may differ by."""
    return 1e-4 * max(1.0, abs(end))
