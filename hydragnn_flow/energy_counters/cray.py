"""Cray's `pm_counters`: energy of an HPE Cray EX node and its components, ten times a second.

A file such as `accel0_energy` holds ``2869283299 J 7810213855886 us``. HPE's *User Access to
Compute Node Power Data* describes the files: `energy` is the whole node with its accelerators, and
`freshness` increases with every update. (`generation` counts changes of power caps, which do not
matter for energy.)
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from hydragnn_flow.energy_counters.sysfs import Counter, die_of_package, sysfs

_FOLDER = "cray/pm_counters"
# Ten times the interval between two updates [s].
_SECONDS_TO_REFRESH = 1.0


def cray_counter(name: str, root: Path | None = None) -> Counter | None:
    """Open a counter of a node; None if the node does not have it.

    Parameters
    ----------
    name
        Name of the file: `energy`, `cpu_energy`, `accel0_energy`.
    root
        Directory of the kernel's files; :func:`sysfs` by default.
    """
    try:
        return _CrayCounter((root or sysfs()) / _FOLDER / name)
    except (OSError, ValueError):
        return None


def cray_accelerator(address: str, root: Path | None = None) -> Counter | None:
    """Open the counter of one GCD: its share of an accelerator's counter.

    Counters and GCDs are both in the order of PCI addresses: on a node with eight GCDs of four
    MI250X, `accel0_energy` counts the first two. Each is charged with half of it.

    Parameters
    ----------
    address
        PCI address of the GCD, as `0000:c1:00.0`, or the beginning of it.
    root
        Directory of the kernel's files; :func:`sysfs` by default.

    Returns
    -------
    Counter or None
        None if there is no counter, or it is unknown which one counts this GCD.
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
    if not counter():  # a counter that does not count shows 0
        return None
    return lambda: counter() / share


def _alike(address: str, root: Path) -> list[str]:
    """List the PCI addresses of all devices of the same model, in order."""
    devices = sorted((root / "bus/pci/devices").iterdir())
    models = {device.name.lower(): _model(device) for device in devices}
    mine = next(model for name, model in models.items() if name.startswith(address.lower()))
    return [name for name, model in models.items() if model == mine]


def _model(device: Path) -> tuple[str, ...]:
    files = (device / name for name in ("vendor", "device", "class"))
    return tuple(file.read_text("utf-8").strip() if file.exists() else "" for file in files)


class _CrayCounter:
    """Counter of joules that continues when the controller restarts from 0."""

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
