"""Energy of a whole node: what its segments use, and what it uses while none is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hydragnn_flow.energy_counters.cray import cray_counter
from hydragnn_flow.energy_counters.intel import intel_counters
from hydragnn_flow.energy_counters.rapl import rapl_counters
from hydragnn_flow.energy_counters.sysfs import Counter
from hydragnn_flow.energy_counters.vendors import amd_counters, nvidia_counters

_OF_DEVICES: tuple[tuple[str, Callable[[], list[Counter]]], ...] = (
    ("NVML", nvidia_counters),
    ("AMD SMI", amd_counters),
    ("hwmon", intel_counters),
    ("RAPL", rapl_counters),
)


class Reading(NamedTuple):
    """What a node has used since its meter was made."""

    joules: float
    seconds: float
    counters: str
    """What counted it: `pm_counters`, or `NVML + RAPL`."""


class NodeMeter:
    """Energy of this node since the meter was made [J].

    Cray's counter of the node has everything in it. Where there is none, those of its GPUs and
    sockets are added up. All that runs on the node is counted, also what others run there.
    """

    def __init__(self) -> None:
        found = dict(_found())
        self._counters = [counter for of in found.values() for counter in of]
        self._names = " + ".join(found)
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._first = self._now()

    def read(self) -> Reading | None:
        """What was used so far; None if nothing counts it, or no longer."""
        # Tasks end at the same time, and a counter that is read out of order seems to begin anew.
        with self._lock:
            now, seconds = self._now(), time.monotonic() - self._began
        if not self._counters:
            return None
        used = sum(after - before for before, after in zip(self._first, now, strict=True))
        return Reading(used, seconds, self._names)

    def _now(self) -> list[float]:
        """What the counters show; none counts any more once one is lost."""
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
