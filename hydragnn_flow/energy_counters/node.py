"""Energy of a whole node: of its segments, and of everything else on it, idle or not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hydragnn_flow.energy_counters.kernel import (
    Counter,
    cray_counter,
    intel_counters,
    rapl_counters,
)
from hydragnn_flow.energy_counters.vendors import amd_counters, nvidia_counters

_OF_DEVICES: tuple[tuple[str, Callable[[], list[Counter]]], ...] = (
    ("NVML", nvidia_counters),
    ("AMD SMI", amd_counters),
    ("hwmon", intel_counters),
    ("RAPL", rapl_counters),
)


class Reading(NamedTuple):
    """Energy used by a node since its meter was made."""

    joules: float
    seconds: float
    counters: str
    """Source of the count: `pm_counters`, or `NVML + RAPL`."""


class NodeMeter:
    """Meter of the energy of this node since the meter was made [J].

    Cray's node counter includes everything. Where there is none, the counters of the GPUs and
    sockets are added up. Work of other users on the node is counted too.
    """

    def __init__(self) -> None:
        found = dict(_found())
        self._counters = [counter for of in found.values() for counter in of]
        self._names = " + ".join(found)
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._first = self._now()

    def read(self) -> Reading | None:
        """Return the energy used so far; None if nothing counts it, or no longer."""
        # Tasks end at the same time, and a counter that is read out of order seems to restart.
        with self._lock:
            now, seconds = self._now(), time.monotonic() - self._began
        if not self._counters:
            return None
        used = sum(after - before for before, after in zip(self._first, now, strict=True))
        return Reading(used, seconds, self._names)

    def _now(self) -> list[float]:
        """Read all counters; after an error of one, drop them all."""
        try:
            return [counter() for counter in self._counters]
        except Exception:  # the vendors' packages raise errors of their own
            self._counters = []
            return []


def _found() -> Iterator[tuple[str, list[Counter]]]:
    whole = cray_counter("energy")
    if whole is not None:
        yield "pm_counters", [whole]
        return
    for name, counters in _OF_DEVICES:
        try:
            found = counters()
        except Exception:  # the vendors' packages raise errors of their own, ImportError among them
            continue
        if found:
            yield name, found
