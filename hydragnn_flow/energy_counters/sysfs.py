"""Where the kernel's files are, and how they count."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

Counter = Callable[[], float]
"""Joules since some moment; only differences mean something. Raises OSError or ValueError where it
can no longer be read."""


def sysfs() -> Path:
    """Directory of the kernel's files: `/sys`, or what the variable `HOST_SYS` names.

    A container hides some of them. Whoever binds the host's to another place says so by this
    variable, as for gopsutil and Telegraf.
    """
    return Path(os.environ.get("HOST_SYS") or "/sys")


def die_of_package(dies: int, counters: int, die: int) -> tuple[int, int]:
    """The counter of a die's package, and the number of dies that share it.

    Parameters
    ----------
    dies, counters
        Of the node; dies and counters are in one order.
    die
        The one asked for.

    Raises
    ------
    ValueError
        If the dies are not packages of equal size, one for each counter.
    """
    if not counters or dies % counters:
        raise ValueError(f"it is unknown which of {counters} counters counts which of {dies} dies")
    each = dies // counters
    return die // each, each
