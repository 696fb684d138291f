"""Bayesian regression of times: sums of terms, each at a rate that is guessed and then learned.

The logarithm of a time is that of a sum of terms, plus a constant common to all times, a constant
of each kind (message-passing type), and powers of conditions. No condition shortens a time. All are
shrunk towards the guess, so a few observations mainly move what all times have in common: an unseen
kind gets the common constant of the others, and free rates of its own would spoil the order of the
guesses.

Gauss-Newton steps lead to the most probable values. Around them the posterior is that of a linear
regression with unknown noise, whose predictions follow Student's distribution (Gelman et al.,
Bayesian Data Analysis, 3rd ed., section 14.8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_CONVERGED = 1e-4
# Order of the norm that combines sets of terms which hide each other. A maximum would make
# Gauss-Newton steps oscillate where two sets are equally long.
_SHARPNESS = 8


@dataclass(frozen=True)
class Prior:
    """Prior of a :class:`Regression` of times: standard deviations before any observation.

    All are standard deviations of logarithms.
    """

    noise: float
    """Deviation of one observation from the value of its kind and terms."""
    counts: float
    """Number of observations that the prior of the noise is worth."""
    common: float
    """Deviation of the constant common to all times."""
    terms: tuple[float, ...]
    """Deviation of the rate of each term from the common constant."""
    kinds: float
    """Deviation of the constant of each kind (message-passing type)."""
    powers: float = 1.0
    """Deviation of the powers of the conditions."""


@dataclass(frozen=True)
class Case:
    """Variables on which an observed or predicted time depends: its kind, terms and conditions."""

    kind: str
    terms: tuple[float, ...]
    """Guessed times that add up [s], one for each rate."""
    conditions: tuple[float, ...] = ()
    """Logarithms of further influences, such as the number of segments on the GCD; 0 in the usual
    case. All cases have equally many."""


@dataclass(frozen=True)
class Expected:
    """Predicted time, as Student's distribution of its logarithm."""

    log: float
    """Median of the logarithm of the time in seconds."""
    deviation: float
    """Scale of Student's distribution of the logarithm."""
    freedom: float
    """Degrees of freedom of that distribution."""
    parts: Array
    """Time of each term divided by the time of all terms [n_terms]. Hidden terms have a value here,
    but hardly count in the time of all terms."""


class Regression:
    """Bayesian regression that predicts a time, such as a training step's, from observed times.

    A time is a sum of terms, each at a rate that is guessed and then corrected.

    Parameters
    ----------
    prior
        Standard deviations before any observation.
    powers
        Number of conditions of each case (influences with a power).
    seen
        Observed cases, and their times [s].
    hidden
        Sets of positions of terms that hide each other: only the longest set counts, plus up to 9 %
        where two are equally long.
    """

    def __init__(
        self,
        prior: Prior,
        powers: int,
        seen: Sequence[tuple[Case, float]],
        hidden: Sequence[Sequence[int]] = (),
    ) -> None:
        self._prior, self._hidden = prior, hidden
        kinds, terms = dict.fromkeys(case.kind for case, _ in seen), len(prior.terms)
        self._kinds = {kind: 1 + terms + number for number, kind in enumerate(kinds)}
        self._factors = slice(1, 1 + terms)
        self._powers = slice(1 + terms + len(kinds), 1 + terms + len(kinds) + powers)
        deviations = [
            prior.common,
            *prior.terms,
            *[prior.kinds] * len(kinds),
            *[prior.powers] * powers,
        ]
        # In units of the noise, which scales with it in the posterior.
        self._precision = (prior.noise / np.array(deviations)) ** 2
        self._values = np.zeros(len(deviations))
        self._known: dict[Case, Expected] = {}
        self._fit(seen)

    def expect(self, case: Case) -> Expected:
        """Predict the time of a case, as a distribution of its logarithm.

        The driver asks for the same cases again and again, so recent answers are cached.
        """
        if case not in self._known:
            if len(self._known) >= 10_000:
                self._known.clear()
            self._known[case] = self._expect(case)
        return self._known[case]

    def power(self, condition: int) -> tuple[float, float, float]:
        """Return the median, scale and degrees of freedom of the power of a condition.

        A time is proportional to the condition, such as the number of segments on the GCD, to this
        power. The values are those of Student's distribution. ``condition`` is the position in
        :attr:`Case.conditions`.
        """
        place = self._powers.start + condition
        variance = self._variance * float(self._covariance[place, place])
        return float(self._values[place]), math.sqrt(variance), self._freedom

    def _expect(self, case: Case) -> Expected:
        table = self._table([case])
        rows, log, parts = self._linear(*table)
        spread = 1 + float(rows[0] @ self._covariance @ rows[0])
        unseen = 0.0 if case.kind in self._kinds else (self._prior.kinds / self._prior.noise) ** 2
        return Expected(
            log=float(log[0]),
            deviation=math.sqrt(self._variance * (spread + unseen)),
            freedom=self._freedom,
            parts=parts[0],
        )

    def _fit(self, seen: Sequence[tuple[Case, float]]) -> None:
        prior, logs, residuals = self._prior, np.log([time for _, time in seen]), np.zeros(0)
        inverse = np.diag(self._precision)
        if seen:
            table = self._table([case for case, _ in seen])
            for _ in range(20):
                rows, expected, _ = self._linear(*table)
                inverse = rows.T @ rows + np.diag(self._precision)
                towards = rows.T @ (logs - expected) - self._precision * self._values
                step = self._step(inverse, towards)
                longest = float(np.abs(step).max())
                # No logarithm changes by more than 1 in an iteration.
                self._values += step / max(1.0, longest)
                if longest < _CONVERGED:
                    break
            residuals = logs - self._linear(*table)[1]
        drawn = float(self._precision @ self._values**2)
        squares = prior.counts * prior.noise**2 + float(residuals @ residuals) + drawn
        self._freedom = prior.counts + len(seen)
        self._variance = squares / self._freedom
        self._covariance = np.linalg.inv(inverse)

    def _step(self, matrix: Array, towards: Array) -> Array:
        """Solve the linear problem with the constraint that no power becomes negative."""
        step = np.asarray(np.linalg.solve(matrix, towards), dtype=np.float64)
        is_bound = np.zeros(len(step), dtype=bool)
        is_bound[self._powers] = (self._values + step)[self._powers] < 0
        if is_bound.any():
            free = ~is_bound
            step[is_bound] = -self._values[is_bound]
            rest = towards[free] - matrix[np.ix_(free, is_bound)] @ step[is_bound]
            step[free] = np.linalg.solve(matrix[np.ix_(free, free)], rest)
        return step

    def _table(self, cases: Sequence[Case]) -> tuple[Array, Array]:
        """Return the terms of cases [n_cases, n_terms], and the design matrix of their logarithms.

        The matrix [n_cases, n_values] has the columns on which the logarithms depend linearly.
        """
        rows = np.zeros((len(cases), len(self._values)))
        rows[:, 0] = 1.0
        for row, case in zip(rows, cases, strict=True):
            if case.kind in self._kinds:
                row[self._kinds[case.kind]] = 1.0
        rows[:, self._powers] = [case.conditions for case in cases]
        return np.array([case.terms for case in cases]), rows

    def _linear(self, terms: Array, rows: Array) -> tuple[Array, Array, Array]:
        """Linearise the logarithms of the times for the present values.

        Return their derivatives, the logarithms, and each term divided by the time of all terms.
        """
        sizes = terms * np.exp(self._values[self._factors])
        counted = sizes
        if self._hidden:
            counted = sizes.copy()
            sums = np.array([sizes[:, group].sum(axis=1) for group in self._hidden])
            sums /= np.maximum(sums.max(axis=0), np.finfo(float).tiny)
            norms = np.maximum(np.linalg.norm(sums, _SHARPNESS, axis=0), 1.0)  # 0 of nothing
            shares = (sums / norms) ** (_SHARPNESS - 1)
            for group, share in zip(self._hidden, shares, strict=True):
                counted[:, group] *= share[:, None]
        total = np.maximum(counted.sum(axis=1), np.finfo(float).tiny)[:, None]
        logs = np.log(total[:, 0]) + rows @ self._values
        derivatives = rows.copy()
        derivatives[:, self._factors] = counted / total
        return derivatives, logs, sizes / total


def quantile(probability: float, freedom: float) -> float:
    """Return a quantile of Student's distribution with ``freedom`` degrees of freedom."""
    from scipy.special import stdtrit  # whose import takes a quarter of a second

    return float(stdtrit(freedom, probability))
