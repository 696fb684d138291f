"""Start times and CPU times of processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil


def start_of(pid: int) -> float:
    """Unix time a process was started [s], to a hundredth of a second.

    psutil's `create_time` counts from a time of booting that is rounded to whole seconds.
    """
    # Behind the name, which may have blanks in it, the 20th field counts from booting.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it, and they, have started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """CPU time of those that live, up to now."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def wait_until_unnamed(folder: Path, seconds: float = 30.0) -> None:
    """Wait until no command line of a process names a folder; at most for a time [s]."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        lines = (process.info["cmdline"] for process in psutil.process_iter(["cmdline"]))
        if not any(str(folder) in " ".join(line or ()) for line in lines):
            return
        time.sleep(0.1)
