"""RAPL: energy of the CPU sockets of a node, as the kernel's powercap shows it."""

from __future__ import annotations

from pathlib import Path

from hydragnn_flow.energy_counters.sysfs import Counter, sysfs


def rapl_counters(root: Path | None = None) -> list[Counter]:
    """Open a counter for each socket; empty if the kernel has none or does not let us read them.

    Parameters
    ----------
    root
        Directory of the zones; that of powercap under :func:`sysfs` by default.
    """
    counters: list[Counter] = []
    for zone in sorted((root or sysfs() / "class/powercap").glob("intel-rapl:[0-9]*")):
        if zone.name.count(":") > 1:  # within a socket, counted in it already
            continue
        try:
            counters.append(_RaplZone(zone))
        except (OSError, ValueError):
            return []
    return counters


class _RaplZone:
    """Counter of microjoules that wraps around at a given number; returns joules."""

    def __init__(self, zone: Path) -> None:
        self._file = zone / "energy_uj"
        self._range = int((zone / "max_energy_range_uj").read_text(encoding="utf-8"))
        self._last, self._turns = self._read(), 0

    def __call__(self) -> float:
        now = self._read()
        if now < self._last:
            self._turns += 1
        self._last = now
        return (now + self._turns * self._range) / 1e6

    def _read(self) -> int:
        return int(self._file.read_text(encoding="utf-8"))
