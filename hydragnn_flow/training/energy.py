"""Joules of a segment, where its device or the processor counts them."""

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

# A processor's counter begins anew every few minutes; a turn between two readings would be lost.
_SECONDS_BETWEEN_READINGS = 10.0


class EnergyMeter:
    """Energy used since the meter was made [J].

    NVIDIA devices are read through NVML (package ``nvidia-ml-py``), AMD ones through AMD SMI
    (package ``amdsmi``, part of ROCm), Intel's through the kernel, processors through RAPL. Where
    that is not possible, Cray's `pm_counters` are read. NVML counts a device, RAPL and Cray's
    `cpu_energy` the sockets with all that runs on them. AMD SMI and Cray's `accel0_energy` count a
    package: of an MI250X each GCD is charged with half of that, whatever runs on the other.

    Parameters
    ----------
    device
        Where the work is done.
    fraction
        Of the energy of these counters that is the work's own, now.
    """

    def __init__(self, device: torch.device, fraction: Callable[[], float] = lambda: 1.0) -> None:
        self._fraction, self._joules = fraction, 0.0
        self.source, self._counters = _counters(device)
        """What counts it: `RAPL`, `NVML`, `AMD SMI`, `hwmon`, `pm_counters`; empty if nothing does.
        """
        self._last = self._now()
        self._read = time.monotonic()

    def poll(self) -> None:
        """Read the counters if that is due: others may begin or end on the device, and no counter
        is to begin anew twice in between.

        To be called at least every minute or so.
        """
        if time.monotonic() - self._read > _SECONDS_BETWEEN_READINGS:
            self.joules()

    def joules(self) -> float | None:
        """Energy so far [J]; None if nothing counts it, or no longer."""
        self._read = time.monotonic()
        now = self._now()
        if not self._counters:
            return None
        used = (after - before for before, after in zip(self._last, now, strict=True))
        self._joules, self._last = self._joules + self._fraction() * sum(used), now
        return self._joules

    def _now(self) -> list[float]:
        """What the counters show; a part of the energy would be taken for all if one is lost."""
        try:
            return [counter() for counter in self._counters]
        except Exception:  # the vendors' packages raise errors of their own
            self._counters = []
            return []


def _counters(device: torch.device) -> tuple[str, list[Counter]]:
    """What counts the energy of a device, and its counters; nothing if it is not counted."""
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
    """Address of a device on the bus, but for its function."""
    return (
        f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:"
        f"{properties.pci_device_id:02x}."
    )
