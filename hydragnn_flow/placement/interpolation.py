"""Interpolation of the work of a training step between networks whose work was counted.

Counting a network operation by operation takes the driver up to a fifth of a second. A search asks
for thousands of networks that differ only in their sizes, and the work is a smooth function of the
sizes. Once some dozens of such a family are counted, its other networks are interpolated.

Rounding the sizes to the nearest factor of 1.25 and caching the result would be shorter, but saves
nothing: of 360 random networks in the space of `configs/hydragnn_hpo.yaml` 358 would be counted.
The interpolation estimates 88 of the 360, and nine in ten of its logarithms are within 0.24.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.placement.cost_model import Work

Array = NDArray[np.float64]

# Fields of the work that are counted; the others say how GCDs divide a network.
_COUNTED = (
    *("flops", "update_flops", "bytes", "launches"),
    *("activation_bytes", "parameter_bytes", "head_bytes"),
)


class WorkInterpolation:
    """Estimator of the work (FLOPs, bytes, kernel launches) of a network's training step.

    It counts the work exactly until interpolation between counted networks is accurate enough.

    Parameters
    ----------
    tolerance
        Largest leave-one-out error of the logarithms of the work, for nine in ten networks;
        corrections by measured segments are larger than the default.
    beyond
        Distance outside the range of the counted sizes at which a network is still extrapolated, as
        a fraction of that range.
    """

    def __init__(self, tolerance: float = 0.2, beyond: float = 0.0) -> None:
        self._tolerance, self._beyond = tolerance, beyond
        self._known: dict[str, Work] = {}
        self._families: dict[str, _Family] = {}

    def work(self, shape: Any, count: Callable[[], Work]) -> Work:
        """Return the work of a training step: interpolated if that is accurate, else counted.

        Parameters
        ----------
        shape
            Plain values that determine the work. Networks of a family differ in integers and in
            lists of integers; floating-point numbers are assumed not to matter.
        count
            Function that counts the work exactly.
        """
        kind, sizes = _apart(shape)
        key = json.dumps([kind, sizes])
        if key not in self._known:
            family = self._families.setdefault(kind, _Family())
            if family.error <= self._tolerance and family.covers(np.array(sizes), self._beyond):
                self._known[key] = family.interpolate(np.array(sizes))
            else:
                self._known[key] = count()
                family.add(sizes, self._known[key])
        return self._known[key]


class _Family:
    """Counted networks that differ only in their sizes.

    A Gaussian process over the logarithms of the sizes is fitted to the first 16 of these networks,
    and again whenever there are a quarter more. Its error is the leave-one-out error: Rasmussen and
    Williams, Gaussian Processes for Machine Learning, equation 5.12.
    """

    def __init__(self) -> None:
        self._sizes: list[list[float]] = []
        self._logs: list[list[float]] = []
        self._next_fit = 16.0
        self.error = math.inf

    def add(self, sizes: list[float], work: Work) -> None:
        self._sizes.append(sizes)
        self._logs.append([math.log1p(getattr(work, name)) for name in _COUNTED])
        if len(self._sizes) >= self._next_fit:
            self._next_fit = 1.25 * len(self._sizes)
            self._fit(np.array(self._sizes), np.array(self._logs))

    def covers(self, sizes: Array, beyond: float) -> bool:
        """Return True if every size is within the range of the counted networks.

        The range is extended at both ends by the fraction ``beyond`` of its length.
        """
        far = beyond * (self._high - self._low)
        return bool(np.all((self._low - far <= sizes) & (sizes <= self._high + far)))

    def interpolate(self, sizes: Array) -> Work:
        """Return the work for logarithms of sizes; fields that are not counted have defaults."""
        point = (sizes[None, self._columns] - self._shift) / self._scale
        work = np.expm1(self._mean + (self._kernel(point) @ self._weights)[0])
        found = dict(zip(_COUNTED, work.tolist(), strict=True))
        return Work(**{**found, "launches": round(found["launches"])})

    def _fit(self, sizes: Array, logs: Array) -> None:
        self._low, self._high = sizes.min(axis=0), sizes.max(axis=0)
        # One key may set several sizes.
        _, first = np.unique(sizes, axis=1, return_index=True)
        self._columns = first[self._high[first] > self._low[first]]
        seen = sizes[:, self._columns]
        self._shift, self._scale = seen.mean(axis=0), seen.std(axis=0)
        self._points = (seen - self._shift) / self._scale
        self._mean = logs.mean(axis=0)
        kernel, self.error = self._kernel(self._points), math.inf
        for ridge in (1e-8, 1e-6, 1e-4, 1e-2):
            inverse = np.linalg.inv(kernel + ridge * np.eye(len(kernel)))
            weights = inverse @ (logs - self._mean)
            left_out = np.abs(weights / np.diag(inverse)[:, None])
            error = float(np.quantile(left_out, 0.9, axis=0).max())
            if error < self.error:
                self.error, self._weights = error, weights

    def _kernel(self, points: Array) -> Array:
        """Return a Gaussian of the distances between points and the counted points [n, n_counted].

        Its length is four times the square root of the number of dimensions.
        """
        squares = ((points[:, None] - self._points[None]) ** 2).sum(axis=2)
        kernel: Array = np.exp(-squares / (2 * 4.0**2 * max(1, points.shape[1])))
        return kernel


def _apart(shape: Any) -> tuple[str, list[float]]:
    """Split plain values into a text that names the family, and the logarithms of the sizes."""
    sizes: list[float] = []

    def family(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: family(value[key]) for key in sorted(value)}
        if _is_size(value):
            sizes.append(math.log1p(value))
            return "size"
        if isinstance(value, list) and value and all(map(_is_size, value)):
            # Widths of layers are represented by their count and the mean of their logarithms.
            logs = [math.log1p(width) for width in value]
            sizes.extend([math.log1p(len(logs)), sum(logs) / len(logs)])
            return "sizes"
        if isinstance(value, list):
            return [family(entry) for entry in value]
        return "number" if isinstance(value, float) else value

    return json.dumps(family(shape)), sizes


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0
