"""How much memory a process has needed."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

_CLEAR_REFS, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def forget_peak_memory(device: torch.device) -> None:
    """Begin a new measurement: a warm process remembers the peaks of earlier segments."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    elif _CLEAR_REFS.exists():
        _CLEAR_REFS.write_text("5")


def peak_memory_gib(device: torch.device) -> float:
    """Most memory of its own that the process has had since the measurement began [GiB].

    Pages of files, the libraries and a store in memory among them, are the node's and not the
    process's. Linux keeps the peak of all pages only; those of files, which hardly ever become
    fewer, are subtracted as they are at the end. So what was read of a store for the first time
    after the peak is missing from the answer. Other systems count everything.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    if _CLEAR_REFS.exists():
        lines = _STATUS.read_text().splitlines()
        fields = [line.split() for line in lines if line.startswith(("Vm", "Rss"))]
        kib = {name: int(value) for name, value, _ in fields}
        own = kib["VmHWM:"] - kib["RssFile:"] - kib["RssShmem:"]
        return max(own, kib["RssAnon:"]) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
