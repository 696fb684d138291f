"""Points grouped in small boxes, so that distant ones can be skipped box by box."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.intp]


class Boxes:
    """Groups of indices, with the smallest and the largest value in each group."""

    def __init__(self, groups: list[Index]) -> None:
        self.groups = groups
        self.order = np.concatenate(groups)
        self.sizes = np.array([len(group) for group in groups])
        self._starts = np.cumsum(self.sizes) - self.sizes

    def in_order(self) -> Boxes:
        """Same boxes for an array that was sorted by ``order``."""
        return Boxes(np.split(np.arange(len(self.order)), np.cumsum(self.sizes)[:-1]))

    def lowest(self, values: Array) -> Array:
        return np.asarray(np.minimum.reduceat(values[self.order], self._starts))

    def highest(self, values: Array) -> Array:
        return np.asarray(np.maximum.reduceat(values[self.order], self._starts))


def cut(placed: Array, size: int) -> Boxes:
    """Divide points into boxes of at most ``size`` points, or no wider than a kernel (width 1)."""
    whole, waiting = [], [np.arange(len(placed))]
    while waiting:
        box = waiting.pop()
        if len(box) > size:
            inside = placed[box]
            low, high = inside.min(axis=0), inside.max(axis=0)
            widest = int(np.argmax(high - low))
            if high[widest] - low[widest] > 1.0:
                is_low = inside[:, widest] < 0.5 * (low[widest] + high[widest])
                waiting += [box[is_low], box[~is_low]]
                continue
        whole.append(box)
    return Boxes(whole)
