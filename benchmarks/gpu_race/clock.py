"""Time on a device, where calls return before their work is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch


@dataclass(frozen=True)
class Clock:
    """Seconds of a device: by the wall once it has done what it was told, of a CPU those it spent.

    Attributes
    ----------
    device
        Whose.
    """

    device: torch.device

    def now(self) -> float:
        """Seconds since some moment [s]; waits for the device."""
        if self.device.type == "cpu":
            return time.process_time()
        torch.get_device_module(self.device).synchronize(self.device)
        return time.perf_counter()

    def of(self, work: Callable[[], object], seconds: float) -> float:
        """Seconds that some work takes, of as many times as fill so many seconds [s]."""
        times, start = 1, self.now()
        work()
        once = self.now() - start
        while once * times < seconds:
            times = max(2 * times, int(seconds / max(once, 1e-9)))
            start = self.now()
            for _ in range(times):
                work()
            once = (self.now() - start) / times
        return once


@dataclass(frozen=True)
class Turns:
    """Seconds of each contender, one for each round."""

    seconds: dict[str, list[float]]

    def of(self, name: str) -> float:
        """Median over the rounds [s]."""
        return median(self.seconds[name])

    def ratio(self, name: str, other: str) -> tuple[float, float, float]:
        """How many times as fast as the other: median, smallest and largest over the rounds."""
        pairs = zip(self.seconds[name], self.seconds[other], strict=True)
        ratios = [theirs / ours for ours, theirs in pairs]
        return median(ratios), min(ratios), max(ratios)


def take_turns(contenders: Mapping[str, Callable[[], float]], rounds: int) -> Turns:
    """Let contenders, each of which says how long it took, work in turns; first once unmeasured."""
    for work in contenders.values():
        work()
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, work in contenders.items():
            found[name].append(work())
    return Turns(found)
