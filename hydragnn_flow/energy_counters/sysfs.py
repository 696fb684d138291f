"""Directory of the kernel's files, and the type of a counter."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

Counter = Callable[[], float]
"""Function that returns joules since some moment; only differences have a meaning. Raises OSError
or ValueError where it can no longer be read."""


def sysfs() -> Path:
    """Directory of the kernel's files: `/sys`, or the one that the variable `HOST_SYS` names.

    A container hides some of the files. `HOST_SYS` names the directory where the host's are
    mounted, as for gopsutil and Telegraf.
    """
    return Path(os.environ.get("HOST_SYS") or "/sys")


def die_of_package(dies: int, counters: int, die: int) -> tuple[int, int]:
    """Return the counter of a die's package, and the number of dies that share it.

    Parameters
    ----------
    dies, counters
        Number of dies and of counters on the node; both are in the same order.
    die
        Position of the die on the node.

    Raises
    ------
    ValueError
        If the dies do not form packages of equal size with one counter each.
    """
    if not counters or dies % counters:
        raise ValueError(f"it is unknown which of {counters} counters counts which of {dies} dies")
    each = dies // counters
    return die // each, each
