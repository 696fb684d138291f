"""Energy counters of a machine: files of the kernel, and counters read by vendors' packages.

Every counter is optional: a machine may have none, or let only root read it. This module does not
import torch, so that the agent process of a node can read the same counters as its trainers.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

Counter = Callable[[], float]
"""Function that returns energy [J] since some moment; only differences have a meaning. It raises
OSError or ValueError where the counter can no longer be read."""

_CRAY = "cray/pm_counters"


def sysfs() -> Path:
    """Return the directory of the kernel's files (sysfs): `/sys`, or the variable `HOST_SYS`.

    A container hides some of the files. `HOST_SYS` names the directory where the files of the host
    are mounted, as for gopsutil and Telegraf.
    """
    return Path(os.environ.get("HOST_SYS") or "/sys")


def die_of_package(dies: int, counters: int, die: int) -> tuple[int, int]:
    """Return the index of a GPU die's energy counter, and how many dies share that counter.

    Parameters
    ----------
    dies, counters
        Number of GPU dies and of energy counters on the node, numbered in the same order.
    die
        Index of the die on the node, from 0.

    Raises
    ------
    ValueError
        If the dies do not form packages of equal size with one counter each.
    """
    if not counters or dies % counters:
        raise ValueError(f"it is unknown which of {counters} counters counts which of {dies} dies")
    each = dies // counters
    return die // each, each


class _Growing:
    """Counter that keeps growing when its file starts again from 0.

    Parameters
    ----------
    read
        Function that reads the file [J].
    largest
        Value after which the file starts from 0 [J]; by default it may start again at any time.
    """

    def __init__(self, read: Counter, largest: float | None = None) -> None:
        self._read, self._largest = read, largest
        self._before, self._last = 0.0, read()

    def __call__(self) -> float:
        now = self._read()
        if now < self._last:
            self._before += self._last if self._largest is None else self._largest
        self._last = now
        return self._before + now


def cray_counter(name: str) -> Counter | None:
    """Return one of the energy counters [J] of a Cray node; None if the node does not have it.

    Parameters
    ----------
    name
        Name of the counter's file, such as `energy`, `cpu_energy` or `accel0_energy`.
    """
    file = sysfs() / _CRAY / name
    freshness, fresh, since = file.with_name("freshness"), "", 0.0

    def joules() -> float:
        nonlocal fresh, since
        seen, now = freshness.read_text(encoding="utf-8"), time.monotonic()
        if seen != fresh:
            fresh, since = seen, now
        elif now - since > 1.0:  # ten times the interval between two updates [s]
            raise OSError(f"{file}: is no longer updated")
        value, unit, *_ = file.read_text(encoding="utf-8").split()
        if unit != "J":
            raise ValueError(f"{file}: is in {unit}, not J")
        return float(value)

    try:
        return _Growing(joules)
    except (OSError, ValueError):
        return None


def cray_accelerator(address: str) -> Counter | None:
    """Return the energy counter [J] of one GCD (GPU die) on a Cray node.

    The energy is an equal share of that of the accelerator to which the GCD belongs.

    Parameters
    ----------
    address
        PCI address of the GCD, as `0000:c1:00.0`, or the beginning of it.

    Returns
    -------
    Counter or None
        None if there is no counter, or it is unknown which one counts this GCD.
    """
    files = (sysfs() / _CRAY).glob("accel*_energy")
    numbers = sorted(int(m[1]) for f in files if (m := re.fullmatch(r"accel(\d+)_energy", f.name)))
    try:
        dies = _alike(address)
        mine = next(n for n, die in enumerate(dies) if die.startswith(address.lower()))
        number, share = die_of_package(len(dies), len(numbers), mine)
    except (OSError, ValueError, StopIteration):
        return None
    counter = cray_counter(f"accel{numbers[number]}_energy")
    if counter is None or not counter():  # a counter that does not count shows 0
        return None
    return lambda: counter() / share


def _alike(address: str) -> list[str]:
    """Return the PCI addresses, sorted, of all devices of the same model as that at ``address``."""

    def model(device: Path) -> tuple[str, ...]:
        files = (device / name for name in ("vendor", "device", "class"))
        return tuple(file.read_text("utf-8").strip() if file.exists() else "" for file in files)

    devices = sorted((sysfs() / "bus/pci/devices").iterdir())
    models = {device.name.lower(): model(device) for device in devices}
    mine = next(model for name, model in models.items() if name.startswith(address.lower()))
    return [name for name, model in models.items() if model == mine]


def intel_counter(mask: str) -> Counter | None:
    """Return the energy counter [J] of one tile of an Intel GPU.

    A tile without a counter of its own gets an equal share of the energy of its GPU.

    Parameters
    ----------
    mask
        Name of the tile in `ZE_AFFINITY_MASK`: the index of the tile among all tiles, or
        `card.tile`. Indices begin with 0, in the order of PCI addresses.

    Returns
    -------
    Counter or None
        None if the driver shows no energy, or there is no such tile.
    """
    cards = _cards()
    number, _, part = mask.partition(",")[0].partition(".")
    tiles = [(card, tile) for card in cards for tile in range(card[1])]
    try:
        if part:
            card, tile = cards[int(number)], int(part)
        else:
            card, tile = tiles[int(number or 0)]
        energy, share, of_tiles = card
        if of_tiles:
            return _microjoules(of_tiles[tile])
        whole = _microjoules(energy)
    except (IndexError, OSError, ValueError):
        return None
    return lambda: whole() / share


def intel_counters() -> list[Counter]:
    """Return an energy counter for each Intel GPU; an empty list if any cannot be read."""
    try:
        return [_microjoules(energy) for energy, _, _ in _cards()]
    except (OSError, ValueError):
        return []


def rapl_counters() -> list[Counter]:
    """Return an energy counter for each CPU socket; an empty list if any cannot be read."""
    zones = sorted((sysfs() / "class/powercap").glob("intel-rapl:[0-9]*"))
    try:
        return [
            _microjoules(zone / "energy_uj", zone / "max_energy_range_uj")
            for zone in zones
            if zone.name.count(":") == 1  # others lie within a socket, and are counted in it
        ]
    except (OSError, ValueError):
        return []


def _microjoules(file: Path, largest: Path | None = None) -> Counter:
    def joules(file: Path = file) -> float:
        return int(file.read_text(encoding="utf-8")) / 1e6

    return _Growing(joules, None if largest is None else joules(largest))


def _cards() -> list[tuple[Path, int, list[Path]]]:
    """Return (file of the energy, number of tiles, energy files of tiles) for each Intel GPU.

    GPUs are in the order of their PCI addresses. The last list is empty if only the whole GPU has a
    counter.
    """
    folders = [f for f in (sysfs() / "class/drm").glob("card*") if f.name[4:].isdigit()]
    found = []
    for folder in sorted(folders, key=lambda folder: (folder / "device").resolve().name):
        sensors = {
            name.read_text(encoding="utf-8").strip(): name.parent
            for name in (folder / "device/hwmon").glob("hwmon*/name")
        }
        # Counter of the whole card; for older cards xe has only that of the package.
        whole = [
            file
            for driver in ("i915", "xe")
            if driver in sensors
            for number in (1, 2)
            if (file := sensors[driver] / f"energy{number}_input").exists()
        ]
        if not whole:
            continue
        names = sorted(name for name in sensors if name.startswith("i915_gt"))
        of_tiles = [sensors[name] / "energy1_input" for name in names]
        of_tiles = [file for file in of_tiles if file.exists()]
        tiles = [*(folder / "gt").glob("gt[0-9]*")] or [*(folder / "device").glob("tile[0-9]*")]
        found.append((whole[0], max(1, len(of_tiles) or len(tiles)), of_tiles))
    return found


def nvidia_counter(uuid: str) -> Counter:
    """Return the energy counter [J] of the Nvidia GPU with the given UUID (without ``GPU-``).

    Device numbers are not used: under `CUDA_VISIBLE_DEVICES` torch and NVML number devices
    differently.
    """
    nvml = import_module("pynvml")
    nvml.nvmlInit()
    return _nvidia(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))


def nvidia_counters() -> list[Counter]:
    """Return an energy counter for each Nvidia GPU of the node."""
    nvml = import_module("pynvml")
    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
    return [_nvidia(nvml, handle) for handle in handles]


def _nvidia(nvml: Any, handle: Any) -> Counter:
    def joules() -> float:
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3  # from mJ

    joules()
    return joules


def amd_counter(place: str) -> Counter:
    """Return the energy counter of the AMD GPU die whose PCI address starts with ``place``.

    On an MI250X the energy is half of that of the package, whatever runs on the other die: the
    driver lets one of the two dies count the energy of both, and shows 0 for the other.

    Raises
    ------
    ValueError
        If the dies do not form packages of equal size with one counting die each.
    """
    dies = _dies()
    mine = next(number for number, address in enumerate(dies) if address.startswith(place))
    counting = [number for number, counter in enumerate(dies.values()) if _counts(counter)]
    package, share = die_of_package(len(dies), len(counting), mine)
    if [number // share for number in counting] != [*range(len(counting))]:
        raise ValueError("it is unknown which die counts for which")
    counter = [*dies.values()][counting[package]]
    return lambda: counter() / share


def amd_counters() -> list[Counter]:
    """Return an energy counter for each AMD GPU package of the node."""
    return [*filter(_counts, _dies().values())]


def _dies() -> dict[str, Counter]:
    """Return the counter of each AMD die by its PCI address, sorted by address."""
    smi = import_module("amdsmi")
    smi.amdsmi_init()

    def counter(handle: Any) -> Counter:
        def joules() -> float:
            count = smi.amdsmi_get_energy_count(handle)
            return float(count["energy_accumulator"]) * float(count["counter_resolution"]) / 1e6

        return joules

    handles = smi.amdsmi_get_processor_handles()
    found = {smi.amdsmi_get_gpu_device_bdf(handle).lower(): counter(handle) for handle in handles}
    return {address: found[address] for address in sorted(found)}


def _counts(counter: Counter) -> bool:
    try:
        return counter() > 0
    except Exception:  # as some versions say of a die that does not count
        return False


_OF_DEVICES: tuple[tuple[str, Callable[[], list[Counter]]], ...] = (
    ("NVML", nvidia_counters),
    ("AMD SMI", amd_counters),
    ("hwmon", intel_counters),
    ("RAPL", rapl_counters),
)


class Reading(NamedTuple):
    """Energy [J] used by a node since its meter was made, and the time since then [s]."""

    joules: float
    seconds: float
    counters: str
    """Source of the count: `pm_counters`, or `NVML + RAPL`."""


class NodeMeter:
    """Meter of the energy that this node has used since the meter was made [J].

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
        """Return the node's energy [J] and the time [s] since the meter was made.

        The result is None if no counter can be read.
        """
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
