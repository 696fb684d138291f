"""How much memory a process has needed, when it ran out, and what it does with what it freed."""

import ctypes
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hydragnn_flow.training.memory import (
    forget_peak_memory,
    give_back_memory,
    out_of_memory,
    peak_memory_gib,
)

STEPS = """
import resource
import torch
from hydragnn_flow.training.memory import (
    forget_peak_memory, give_back_memory, keep_freed_memory, peak_memory_gib
)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def held():
    return peak_memory_gib(torch.device("cpu"))

keep_freed_memory()
begin = held()
for number in range(8):
    if number == 4:
        before = faults()
    step = [torch.ones(2**20) for _ in range(24)]  # of 4 MiB
    del step
after = faults()
used = held()
give_back_memory()
forget_peak_memory(torch.device("cpu"))
print(after - before, used - begin, held() - begin)
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt"
)
def test_freed_memory_is_kept_for_the_next_step_but_not_for_the_next_segment():
    """By default a step faults in up to all of its 24 thousand pages again."""
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    faults, used, left = map(float, done.stdout.split())
    assert faults < 100
    assert used > 24 * 2**-8
    assert left < 0.02


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: out of memory",
        "HIP error: hipErrorOutOfMemory",
        "HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "miopenStatusAllocFailed",
        "rocblas_status_memory_error",
        "Failed to CUDA malloc 4194304 bytes",
        "Failed to CUDA calloc async 1920 bytes",
        "Failed to CUDA host alloc 65536 bytes",
        "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "UR backend failed. UR backend returns:40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000 bytes.",
    ],
)
def test_lack_of_memory_is_known_by_what_libraries_call_it(said):
    """The reason is the line that says so, wherever it stands."""
    assert out_of_memory(RuntimeError(said)) == said
    assert out_of_memory(RuntimeError(f"NCCL error in: x.cpp:7\nLast error:\n{said}\n")) == said


def test_lack_of_memory_without_a_word_and_other_errors():
    assert out_of_memory(MemoryError()) == "MemoryError"
    assert out_of_memory(torch.OutOfMemoryError("no room")) == "no room"
    for said in ("", "CUDA error: an illegal memory access was encountered", "shared memory"):
        assert out_of_memory(RuntimeError(said)) is None


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_memory_of_any_accelerator_is_measured_and_given_back(monkeypatch, kind):
    """Stood in for: what is asked of torch's module for the device, since none is here."""
    asked: list[Any] = []
    module = SimpleNamespace(
        empty_cache=lambda: asked.append("empty"),
        init=lambda: asked.append("init"),
        reset_peak_memory_stats=lambda device: asked.append(("reset", device)),
        max_memory_reserved=lambda device: 3 * 2**30,
    )
    device = torch.device(kind, 0)
    monkeypatch.setattr(torch, kind, module)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    give_back_memory()
    forget_peak_memory(device)
    assert peak_memory_gib(device) == 3.0
    # The module refuses a device by its number before it has begun.
    assert asked == ["empty", "init", "empty", ("reset", device)]
