"""Peak memory of a process, and the use of memory that it frees."""

from __future__ import annotations

import ctypes
import gc
import re
import resource
import sys
from pathlib import Path
from typing import Any

import torch

_CLEAR_REFS, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
# Larger blocks are mapped one by one: kept, they were found to lie about in pieces that no other
# fits in, eight times what was in use.
_LARGEST_KEPT = 2**25
# Only torch's own allocator raises torch.OutOfMemoryError. Libraries beside it allocate for
# themselves and fail with words of their own: BLAS and DNN libraries of CUDA and ROCm, the
# runtimes of CUDA, HIP and Level Zero, NCCL and RCCL.
_NO_MEMORY = re.compile(
    r"out[ _]of[ _](device[ _]|host[ _])?memory"
    r"|erroroutofmemory|errormemoryallocation|rocblas_status_memory_error"
    r"|alloc_?failed"
    r"|failed to (cuda|hip) (malloc|calloc|host alloc)"
    r"|(can't|cannot) allocate memory"
    # Level Zero says so of memory too, and hardly ever of anything else.
    r"|ur_result_error_out_of_resources|ze_result_error_out_of_resources",
    re.IGNORECASE,
)


def keep_freed_memory() -> None:
    """Have the C library keep freed memory for the next allocation.

    By default glibc gives memory back to the system, and it is faulted in again, as empty pages,
    at each step or not at all, as chance has laid out the heap. Large networks spent up to a third
    of their processor time on it. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, -1)
        mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)


def give_back_memory() -> None:
    """Give back, to the system and to the device, what has been freed and kept."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    if torch.accelerator.is_available():
        _accelerator(torch.accelerator.current_accelerator()).empty_cache()


def forget_peak_memory(device: torch.device) -> None:
    """Begin a new measurement: a warm process remembers the peaks of earlier segments."""
    if device.type != "cpu":
        runtime = _accelerator(device)
        runtime.init()  # a process that has not used it yet is told "Invalid device argument"
        runtime.reset_peak_memory_stats(device)
    elif _CLEAR_REFS.exists():
        _CLEAR_REFS.write_text("5", encoding="utf-8")


def peak_memory_gib(device: torch.device) -> float:
    """Most memory of its own that the process has had since the measurement began [GiB].

    On an accelerator, what torch has allocated there. On a processor, pages that are not a file's:
    those of the libraries and of a store in memory are the node's and not the process's. Linux
    keeps the peak of all pages only; those of files, which hardly ever become fewer, are subtracted
    as they are at the end. So what was read of a store for the first time after the peak is missing
    from the answer. Other systems count everything.
    """
    if device.type != "cpu":
        return float(_accelerator(device).max_memory_allocated(device)) / 2**30
    if _CLEAR_REFS.exists():
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
        fields = [line.split() for line in lines if line.startswith(("Vm", "Rss"))]
        kib = {name: int(value) for name, value, _ in fields}
        own = kib["VmHWM:"] - kib["RssFile:"] - kib["RssShmem:"]
        return max(own, kib["RssAnon:"]) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def out_of_memory(error: BaseException) -> str | None:
    """The line in which an error says that memory ran out; None if it says something else."""
    lines = str(error).splitlines() or [type(error).__name__]
    said = next((line for line in lines if _NO_MEMORY.search(line)), None)
    if said is None and isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        said = lines[0]
    return said


def _accelerator(device: torch.device | None) -> Any:
    """The module of a kind of device, such as ``torch.cuda`` or ``torch.xpu``."""
    return torch.get_device_module(device)
