"""Joules, where the device or the processor counts them.

Nothing here is required: a machine without a counter, or one that only root may read, gives None.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

Counter = Callable[[], float]
"""Joules since some moment; only differences mean something."""

_POWERCAP = Path("/sys/class/powercap")
# A processor's counter begins anew every few minutes; a turn between two readings would be lost.
_SECONDS_BETWEEN_READINGS = 10.0


class EnergyMeter:
    """Energy used since the meter was made [J].

    NVIDIA devices are read through NVML (package ``nvidia-ml-py``), AMD ones through AMD SMI
    (package ``amdsmi``, part of ROCm), processors through RAPL; Intel's devices are not counted.
    NVML counts a device, RAPL the sockets with all that runs on them. AMD SMI counts a package: of
    an MI250X each GCD is charged with half of that, whatever runs on the other.

    Parameters
    ----------
    device
        Where the work is done.
    fraction
        Of the energy of these counters that is the work's own, now.
    """

    def __init__(self, device: torch.device, fraction: Callable[[], float] = lambda: 1.0) -> None:
        self._fraction, self._joules = fraction, 0.0
        self._counters = _counters(device)
        self._last = [counter() for counter in self._counters]
        self._read = time.monotonic()

    def poll(self) -> None:
        """Read the counters if that is due: others may begin or end on the device, and no counter
        is to begin anew twice in between.

        To be called at least every minute or so.
        """
        if time.monotonic() - self._read > _SECONDS_BETWEEN_READINGS:
            self.joules()

    def joules(self) -> float | None:
        """Energy so far [J]; None if nothing counts it."""
        self._read = time.monotonic()
        if not self._counters:
            return None
        now = [counter() for counter in self._counters]
        used = (after - before for before, after in zip(self._last, now, strict=True))
        self._joules, self._last = self._joules + self._fraction() * sum(used), now
        return self._joules


def rapl_counters(root: Path = _POWERCAP) -> list[Counter]:
    """A counter for each socket; none if the kernel has none or does not let us read them."""
    counters: list[Counter] = []
    for zone in sorted(root.glob("intel-rapl:[0-9]*")):
        if zone.name.count(":") > 1:  # within a socket, counted in it already
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


def _counters(device: torch.device) -> list[Counter]:
    if device.type == "cpu":
        return rapl_counters()
    if device.type != "cuda":
        return []
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
    found = {
        smi.amdsmi_get_gpu_device_bdf(handle).lower(): handle
        for handle in smi.amdsmi_get_processor_handles()
    }
    places = sorted(found)

    def joules(place: str) -> float:
        count = smi.amdsmi_get_energy_count(found[place])
        return float(count["energy_accumulator"]) * float(count["counter_resolution"]) / 1e6

    counted = []
    for each in places:
        try:
            counted.append(joules(each) > 0)
        except Exception:  # as some versions say of a die that does not count
            counted.append(False)
    mine = next(number for number, each in enumerate(places) if each.startswith(place))
    counter, dies = package_counter(counted, mine)
    return lambda: joules(places[counter]) / dies


def package_counter(counted: Sequence[bool], die: int) -> tuple[int, int]:
    """The die that counts the energy of a die's package, and how many dies the package has.

    On an MI250X the driver lets one of the two dies count the energy of both, and shows 0 for the
    other.

    Parameters
    ----------
    counted
        Of each die of the node, in the order of the bus, whether it counts anything.
    die
        The one asked for.

    Raises
    ------
    ValueError
        If the dies are not packages of equal size in each of which one counts.
    """
    dies, rest = divmod(len(counted), sum(counted) or 1)
    first = die - die % dies
    package = counted[first : first + dies]
    if rest or sum(package) != 1:
        raise ValueError("it is unknown which die counts for which")
    return first + package.index(True), dies
