"""The machine that measured, without its name or its paths."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from results.code import REPOSITORY

# Options that say where to write, which changes no figure.
_PLACES = ("--json", "--scratch")


def machine() -> dict[str, Any]:
    """Processor, number of logical cores, memory [GiB]."""
    processor = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for text in cpuinfo.read_text(encoding="utf-8").splitlines():
            if text.startswith("model name"):
                processor = text.partition(":")[2].strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
    }


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Of Python and of installed packages."""
    return {"Python": platform.python_version(), **{name: version(name) for name in packages}}


def load() -> float:
    """Processes that run or wait to, mean of the last minute."""
    return round(os.getloadavg()[0], 1)


def command(arguments: Sequence[str] | None = None) -> str:
    """The command line of this process, each path in it replaced by its option's name in capitals.

    Options that say where to write are left out.
    """
    program, *given = sys.argv if arguments is None else arguments
    place, folder = Path(program).resolve(), REPOSITORY / "benchmarks"
    script = place.relative_to(folder) if place.is_relative_to(folder) else place.name
    shown, option = [f"python benchmarks/{script}"], ""
    for word in given:
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if name and not equals:
            option = name
            if name not in _PLACES:
                shown.append(name)
            continue
        if (name or option) not in _PLACES:
            if os.sep in value or Path(value).exists():
                value = (name or option or "path").lstrip("-").replace("-", "_").upper()
            shown.append(f"{name}={value}" if name else value)
        option = ""
    return " ".join(shown)
