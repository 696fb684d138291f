"""Energy of a segment [J], where its device or processor has counters."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from hydragnn_flow.energy_counters import (
    Counter,
    amd_counter,
    cray_accelerator,
    cray_counter,
    intel_counter,
    nvidia_counter,
    rapl_counters,
)

# A processor's counter wraps around every few minutes; two wraps between readings would be lost.
_SECONDS_BETWEEN_READINGS = 10.0


class EnergyMeter:
    """Energy used since the meter was created [J].

    NVIDIA devices are read through NVML (package ``nvidia-ml-py``), AMD ones through AMD SMI
    (package ``amdsmi``, part of ROCm), Intel's through the kernel, processors through RAPL. If that
    is not possible, Cray's `pm_counters` are read. NVML counts a device; RAPL and Cray's
    `cpu_energy` count the sockets with everything that runs on them. AMD SMI and Cray's
    `accel0_energy` count a package: each GCD of an MI250X is charged with half of it, whatever runs
    on the other one.

    Parameters
    ----------
    device
        Device that does the work.
    fraction
        Function that returns which fraction of the counted energy belongs to this segment now.
    """

    def __init__(self, device: torch.device, fraction: Callable[[], float] = lambda: 1.0) -> None:
        self._fraction, self._joules = fraction, 0.0
        self.source, self._counters = _counters(device)
        """Kind of counters: `RAPL`, `NVML`, `AMD SMI`, `hwmon`, `pm_counters`; empty for none."""
        self._last = self._now()
        self._read = time.monotonic()

    def poll(self) -> None:
        """Read the counters if that is due, so that ``fraction`` is current and no wrap is missed.

        Call this at least once a minute.
        """
        if time.monotonic() - self._read > _SECONDS_BETWEEN_READINGS:
            self.joules()

    def joules(self) -> float | None:
        """Return the energy so far [J]; None if there is no counter or one has failed."""
        self._read = time.monotonic()
        now = self._now()
        if not self._counters:
            return None
        used = (after - before for before, after in zip(self._last, now, strict=True))
        self._joules, self._last = self._joules + self._fraction() * sum(used), now
        return self._joules

    def _now(self) -> list[float]:
        """Read all counters [J]. If one fails all are dropped: their sum would be too small."""
        try:
            return [counter() for counter in self._counters]
        except Exception:  # the vendors' packages raise errors of their own
            self._counters = []
            return []


def _counters(device: torch.device) -> tuple[str, list[Counter]]:
    """Return the name of a device's energy counters, and the counters; empty if it has none."""
    if device.type == "cpu":
        sockets = rapl_counters()
        return ("RAPL", sockets) if sockets else _cray(cray_counter("cpu_energy"))
    if device.type == "xpu":
        card = intel_counter(os.environ.get("ZE_AFFINITY_MASK", ""))
        return ("hwmon", [card]) if card is not None else ("", [])
    if device.type != "cuda":
        return "", []
    properties: Any = torch.cuda.get_device_properties(device)
    try:
        if torch.version.hip:
            return "AMD SMI", [amd_counter(_place(properties))]
        return "NVML", [nvidia_counter(properties.uuid)]
    except Exception:  # the vendors' packages raise errors of their own, ImportError among them
        return _cray(cray_accelerator(_place(properties)))


def _cray(counter: Counter | None) -> tuple[str, list[Counter]]:
    return ("", []) if counter is None else ("pm_counters", [counter])


def _place(properties: Any) -> str:
    """Return a device's PCI address without its function number."""
    return (
        f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:"
        f"{properties.pci_device_id:02x}."
    )
