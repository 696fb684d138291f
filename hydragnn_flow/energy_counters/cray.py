"""Cray's `pm_counters`: energy of a node of HPE Cray EX and of its parts, ten times a second.

A file such as `accel0_energy` holds ``2869283299 J 7810213855886 us``. The files and their meaning
are described in HPE's *User Access to Compute Node Power Data*: `energy` is the whole node, with
its accelerators; `freshness` increases with every update. (`generation` tells of changed power
caps, which say nothing of energy.)
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from hydragnn_flow.energy_counters.sysfs import Counter, die_of_package, sysfs

_FOLDER = "cray/pm_counters"
# Between two updates there is a tenth of this [s].
_SECONDS_TO_REFRESH = 1.0


def cray_counter(name: str, root: Path | None = None) -> Counter | None:
    """A counter of a node; None if it has none.

    Parameters
    ----------
    name
        Of the file: `energy`, `cpu_energy`, `accel0_energy`.
    root
        Directory of the kernel's files; the machine's if not given.
    """
    try:
        return _CrayCounter((root or sysfs()) / _FOLDER / name)
    except (OSError, ValueError):
        return None


def cray_accelerator(address: str, root: Path | None = None) -> Counter | None:
    """The part of an accelerator's counter that one of its GCDs is charged with.

    The counters are in the order of the bus, as the GCDs are: on a node with eight GCDs of four
    MI250X, `accel0_energy` counts the first two. Each is charged with half of it.

    Parameters
    ----------
    address
        The GCD's on the bus, as `0000:c1:00.0`, or the beginning of it.
    root
        Directory of the kernel's files; the machine's if not given.

    Returns
    -------
    Counter or None
        None if there is none, or it is unknown which of them counts this GCD.
    """
    root = root or sysfs()
    files = (root / _FOLDER).glob("accel*_energy")
    numbers = sorted(int(m[1]) for f in files if (m := re.fullmatch(r"accel(\d+)_energy", f.name)))
    try:
        dies = _alike(address, root)
        mine = next(n for n, die in enumerate(dies) if die.startswith(address.lower()))
        number, share = die_of_package(len(dies), len(numbers), mine)
        counter = _CrayCounter(root / _FOLDER / f"accel{numbers[number]}_energy")
    except (OSError, ValueError, StopIteration):
        return None
    if not counter():  # as where nothing is counted
        return None
    return lambda: counter() / share


def _alike(address: str, root: Path) -> list[str]:
    """Addresses of all devices of the same model, in the order of the bus."""
    devices = sorted((root / "bus/pci/devices").iterdir())
    models = {device.name.lower(): _model(device) for device in devices}
    mine = next(model for name, model in models.items() if name.startswith(address.lower()))
    return [name for name, model in models.items() if model == mine]


def _model(device: Path) -> tuple[str, ...]:
    files = (device / name for name in ("vendor", "device", "class"))
    return tuple(file.read_text("utf-8").strip() if file.exists() else "" for file in files)


class _CrayCounter:
    """A counter of joules, which begins anew where its controller does."""

    def __init__(self, file: Path) -> None:
        self._file, self._fresh_file = file, file.with_name("freshness")
        self._before = 0.0
        self._fresh, self._when = self._fresh_file.read_text(encoding="utf-8"), time.monotonic()
        self._last = self._read()

    def __call__(self) -> float:
        fresh, when = self._fresh_file.read_text(encoding="utf-8"), time.monotonic()
        if fresh != self._fresh:
            self._fresh, self._when = fresh, when
        elif when - self._when > _SECONDS_TO_REFRESH:
            raise OSError(f"{self._file}: is no longer updated")
        now = self._read()
        if now < self._last:
            self._before += self._last
        self._last = now
        return self._before + now

    def _read(self) -> float:
        joules, unit, *_ = self._file.read_text(encoding="utf-8").split()
        if unit != "J":
            raise ValueError(f"{self._file}: is in {unit}, not J")
        return float(joules)
