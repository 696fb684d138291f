"""Trees of files as the kernel shows them, which count what a test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def zone(root: Path, name: str, energy: int, largest: int = 1_000_000_000) -> Path:
    """A zone of powercap, in microjoules."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "energy_uj").write_text(f"{energy}\n")
    (folder / "max_energy_range_uj").write_text(f"{largest}\n")
    return folder


def pci(root: Path, address: str, vendor: str = "0x1002", device: str = "0x7408") -> None:
    """A device on the bus; an MI250X's die by default."""
    folder = root / "bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, value in (("vendor", vendor), ("device", device), ("class", "0x038000")):
        (folder / name).write_text(f"{value}\n")


class PmCounters:
    """Cray's counters of a node, in a directory of the kernel's files."""

    def __init__(self, root: Path, joules: Mapping[str, int]) -> None:
        self.folder = root / "cray/pm_counters"
        self.folder.mkdir(parents=True)
        self.joules, self._updates = dict(joules), 0
        self._lock = threading.Lock()
        self.set()

    def set(self, **joules: int) -> None:
        """Show other numbers, as an update does."""
        with self._lock:
            self.joules |= joules
            self._updates += 1
            for name, value in self.joules.items():
                self._put(name, f"{value} J {100_000 * self._updates} us")
            self._put("freshness", str(self._updates))

    @contextmanager
    def running(self, watts: Mapping[str, float]) -> Iterator[None]:
        """Have the counters go on, ten times a second, as a machine with such a power does."""
        stop, began, before = threading.Event(), time.monotonic(), dict(self.joules)

        def run() -> None:
            while not stop.wait(0.1):
                seconds = time.monotonic() - began
                self.set(**{name: int(before[name] + w * seconds) for name, w in watts.items()})

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _put(self, name: str, text: str) -> None:
        # The kernel's files are whole whenever they are read.
        new = self.folder / f".{name}"
        new.write_text(f"{text}\n")
        new.replace(self.folder / name)
