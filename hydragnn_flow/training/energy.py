"""Joules, where the device or the processor counts them.

Nothing here is required: a machine without a counter, or one that only root may read, gives None.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

Counter = Callable[[], float]
"""Joules since some moment; only differences mean something."""

_POWERCAP = Path("/sys/class/powercap")
# A processor's counter begins anew every few minutes; a turn that nobody saw would be lost.
_SECONDS_BETWEEN_READINGS = 10.0


class EnergyMeter:
    """Energy used since the meter was made [J].

    NVIDIA devices are read through NVML (package ``nvidia-ml-py``), AMD ones through AMD SMI
    (package ``amdsmi``, part of ROCm), processors through RAPL. NVML counts the board, AMD SMI the
    package (on an MI250X both of its GCDs), RAPL the sockets with all that runs on them.

    Parameters
    ----------
    device
        Where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._counters = _device_counters(device) if device.type == "cuda" else rapl_counters()
        self._begin = [counter() for counter in self._counters]
        self._read = time.monotonic()

    @property
    def available(self) -> bool:
        """Whether anything is counted."""
        return bool(self._counters)

    def poll(self) -> bool:
        """Read the counters where that is due, so that none begins anew twice in between.

        To be called at least every minute or so.

        Returns
        -------
        bool
            False always, so that it can stand before what is asked as often.
        """
        if time.monotonic() - self._read > _SECONDS_BETWEEN_READINGS:
            self.joules()
        return False

    def joules(self) -> float | None:
        """Energy so far [J]; None where nothing counts it."""
        self._read = time.monotonic()
        if not self._counters:
            return None
        now = [counter() for counter in self._counters]
        return sum(after - before for before, after in zip(self._begin, now, strict=True))


def rapl_counters(root: Path = _POWERCAP) -> list[Counter]:
    """A counter for each socket; none where the kernel has none or does not let us read them."""
    counters: list[Counter] = []
    for zone in sorted(root.glob("intel-rapl:[0-9]*")):
        if zone.name.count(":") > 1:  # a part of a socket, counted in it already
            continue
        try:
            counters.append(_RaplZone(zone))
        except (OSError, ValueError):
            return []
    return counters


class _RaplZone:
    """A counter of microjoules that begins anew at a given number."""

    def __init__(self, zone: Path) -> None:
        self._file = zone / "energy_uj"
        self._range = int((zone / "max_energy_range_uj").read_text())
        self._last, self._turns = self._read(), 0

    def __call__(self) -> float:
        now = self._read()
        if now < self._last:
            self._turns += 1
        self._last = now
        return (now + self._turns * self._range) / 1e6

    def _read(self) -> int:
        return int(self._file.read_text())


def _device_counters(device: torch.device) -> list[Counter]:
    read = _amd if torch.version.hip else _nvidia
    try:
        return [read(torch.cuda.get_device_properties(device))]
    except Exception:  # the vendors' packages raise errors of their own, ImportError among them
        return []


def _nvidia(properties: Any) -> Counter:
    nvml = import_module("pynvml")
    nvml.nvmlInit()
    # By its identity: under CUDA_VISIBLE_DEVICES torch counts devices in another way than NVML.
    handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
    nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    return lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3  # from mJ


def _amd(properties: Any) -> Counter:
    smi = import_module("amdsmi")
    smi.amdsmi_init()
    place = (
        f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:"
        f"{properties.pci_device_id:02x}."
    )
    handles = smi.amdsmi_get_processor_handles()
    handle = next(h for h in handles if smi.amdsmi_get_gpu_device_bdf(h).lower().startswith(place))

    def joules() -> float:
        count = smi.amdsmi_get_energy_count(handle)
        return float(count["energy_accumulator"]) * float(count["counter_resolution"]) / 1e6

    joules()
    return joules
