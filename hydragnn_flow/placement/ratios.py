"""How far predictions are off, learned from few segments without spoiling their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

# The last segments of a kind that count, so that a change of the machine is followed.
WINDOW = 16
# Strength of the prior on the powers of the conditions, which segments of all kinds inform.
_POWER_SHRINKAGE = 1.0


class Ratios:
    """Expects the logarithm of measured over predicted, by kind and conditions.

    A ridge regression: one constant for all, which is free, and constants of the kinds and powers
    of the conditions, which are drawn towards nothing. A kind that has not been measured gets the
    common part of the others; constants of kinds of their own would raise those that were measured
    first above all others, and spoil the order that the predictions had.

    Parameters
    ----------
    shrinkage
        Observations at which a kind's own mean counts half.
    """

    def __init__(self, shrinkage: float) -> None:
        self._shrinkage = shrinkage
        self._seen: dict[str, deque[tuple[float, Sequence[float]]]] = {}
        self._fit: NDArray[np.float64] | None = None

    def add(self, kind: str, log_ratio: float, conditions: Sequence[float] = ()) -> None:
        """Learn from one segment; ``conditions`` are as many for all, nothing if usual."""
        self._seen.setdefault(kind, deque(maxlen=WINDOW)).append((log_ratio, conditions))
        self._fit = None

    def knows(self, kind: str) -> bool:
        """Whether a segment of the kind was seen."""
        return kind in self._seen

    def expected(self, kind: str, conditions: Sequence[float] = ()) -> float:
        """The logarithm to expect; 0 before anything was seen."""
        if not self._seen:
            return 0.0
        if self._fit is None:
            self._fit = self._fitted()
        kinds = list(self._seen)
        own = self._fit[1 + kinds.index(kind)] if kind in self._seen else 0.0
        powers = self._fit[1 + len(kinds) :]
        return float(self._fit[0] + own + np.dot(powers, conditions))

    def _fitted(self) -> NDArray[np.float64]:
        """The constant of all, those of the kinds in their order, the powers."""
        numbers = [i for i, seen in enumerate(self._seen.values()) for _ in seen]
        seen = list(chain.from_iterable(self._seen.values()))
        values = np.array([log_ratio for log_ratio, _ in seen])
        is_kind = np.eye(len(self._seen))[numbers]
        conditions = np.array([conditions for _, conditions in seen])
        columns = np.hstack([np.ones((len(seen), 1)), is_kind, conditions])
        penalty = np.full(columns.shape[1], _POWER_SHRINKAGE)
        penalty[0], penalty[1 : 1 + len(self._seen)] = 0.0, self._shrinkage
        fit: NDArray[np.float64] = np.linalg.solve(
            columns.T @ columns + np.diag(penalty), columns.T @ values
        )
        return fit
