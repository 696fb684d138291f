"""Peak rates of a device for a roofline, measured: operations and bytes per second."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from hydragnn_flow.training.profiles.profile_result import Peaks

# Side of the multiplied square matrices, and length of the arrays that are read and written: far
# larger than a cache, small compared with the memory of a GCD.
_SIDE = {"cpu": 512}
_LARGE_SIDE = 4096
_NUMBERS = {"cpu": 2**23}
_MANY_NUMBERS = 2**27
_SECONDS, _AT_LEAST = 0.2, 3
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


def measured_peaks(device: torch.device, precision: str) -> Peaks:
    """Measure peak rates with matrix products and array sums for half a second; best of all tries.

    Parameters
    ----------
    device
        Device to measure. Other load on it lowers the result.
    precision
        Precision of the matrix products, as in `Training.precision`.
    """
    side = _SIDE.get(device.type, _LARGE_SIDE)
    a, b = (torch.randn(side, side, device=device).to(_DTYPES[precision]) for _ in range(2))
    product = torch.empty_like(a)
    flops = 2 * side**3 / _shortest(device, lambda: torch.mm(a, b, out=product))
    numbers = _NUMBERS.get(device.type, _MANY_NUMBERS)
    x, y = (torch.ones(numbers, device=device) for _ in range(2))
    total = torch.empty_like(x)
    seconds = _shortest(device, lambda: torch.add(x, y, alpha=0.5, out=total))
    return Peaks(flops, 3 * x.element_size() * numbers / seconds)


def _shortest(device: torch.device, work: Callable[[], object]) -> float:
    """Return the shortest time of repeated runs [s]."""
    work()
    waited(device)
    times: list[float] = []
    while len(times) < _AT_LEAST or sum(times) < _SECONDS:
        begin = time.perf_counter()
        work()
        waited(device)
        times.append(time.perf_counter() - begin)
    return min(times)


def waited(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
