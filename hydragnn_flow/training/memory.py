"""Memory of a process: its peak, the reuse of freed blocks, and errors of lack of memory."""

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
# Only torch's own allocator raises torch.OutOfMemoryError. Other libraries allocate memory
# themselves and fail with messages of their own: BLAS and DNN libraries of CUDA and ROCm, the
# runtimes of CUDA, HIP and Level Zero, NCCL and RCCL.
_NO_MEMORY = re.compile(
    r"out[ _]of[ _](device[ _]|host[ _])?memory"
    r"|erroroutofmemory|errormemoryallocation|rocblas_status_memory_error"
    r"|alloc_?failed"
    r"|failed to (cuda|hip) (malloc|calloc|host alloc)"
    r"|(can't|cannot) allocate memory"
    # Level Zero reports lack of memory by these, and hardly ever anything else.
    r"|ur_result_error_out_of_resources|ze_result_error_out_of_resources",
    re.IGNORECASE,
)


def keep_freed_memory() -> None:
    """Make the C library keep freed memory for later allocations.

    By default glibc returns memory to the system and has it faulted in again as empty pages.
    Depending on the layout of the heap, that happens at each step or never. Large networks spent up
    to a third of their processor time on it. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-1, -1)  # M_TRIM_THRESHOLD of malloc.h, then M_MMAP_THRESHOLD
        # Larger blocks are mapped one by one. When kept, they fragmented the heap until it was
        # eight times what was in use.
        mallopt(-3, 2**25)


def give_back_memory() -> None:
    """Give memory that this process has freed, but still holds, back to system and accelerator."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    if torch.accelerator.is_available():
        torch.get_device_module(torch.accelerator.current_accelerator()).empty_cache()


def limit_memory(gib: float | None, device: str = "") -> None:
    """Limit what torch reserves on this process's GPU to some memory [GiB]; None for no limit.

    ``device`` is torch's type of the device that is going to compute. Without it, only a GPU that
    this process uses already is limited.
    """
    runtime: Any = torch.cuda
    if device == "cuda" or (not device and runtime.is_initialized()):
        whole = runtime.get_device_properties(0).total_memory / 2**30
        fraction = 1.0 if gib is None else min(max(gib / whole, 0.0), 1.0)
        runtime.set_per_process_memory_fraction(fraction, 0)


def forget_peak_memory(device: torch.device) -> None:
    """Reset this process's peak memory, which otherwise includes that of its earlier jobs."""
    if device.type != "cpu":
        runtime = torch.get_device_module(device)
        runtime.init()  # or an unused runtime fails with "Invalid device argument"
        runtime.empty_cache()
        runtime.reset_peak_memory_stats(device)
    elif _CLEAR_REFS.exists():
        _CLEAR_REFS.write_text("5", encoding="utf-8")


def peak_memory_gib(device: torch.device) -> float:
    """Return the peak of this process's own memory since :func:`forget_peak_memory` [GiB].

    On an accelerator this is what torch has reserved there, as recorded steps keep what they need.
    On a processor it excludes pages of files, since libraries and a store in memory belong to the
    node. Linux records the peak of all pages only, so the file pages present at the end are
    subtracted; they hardly ever become fewer. Parts of a store that were first read after the peak
    make the result too small. Other systems count all pages.
    """
    if device.type != "cpu":
        return float(torch.get_device_module(device).max_memory_reserved(device)) / 2**30
    if _CLEAR_REFS.exists():
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
        fields = [line.split() for line in lines if line.startswith(("Vm", "Rss"))]
        kib = {name: int(value) for name, value, _ in fields}
        own = kib["VmHWM:"] - kib["RssFile:"] - kib["RssShmem:"]
        return max(own, kib["RssAnon:"]) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def out_of_memory(error: BaseException) -> str | None:
    """Return the line of an error's message that reports lack of memory; None for other errors."""
    lines = str(error).splitlines() or [type(error).__name__]
    said = next((line for line in lines if _NO_MEMORY.search(line)), None)
    if said is None and isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        said = lines[0]
    return said
