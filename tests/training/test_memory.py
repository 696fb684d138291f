"""What a process does with memory that it has freed."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

ROUNDS = """
import resource, sys
import torch
from hydragnn_flow.training.memory import forget_peak_memory, keep_freed_memory, peak_memory_gib

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "keep":
    keep_freed_memory()
for number in range(8):
    if number == 4:
        before = faults()
    step = [torch.ones(2**20) for _ in range(24)]  # of 4 MiB
    del step
after = faults()
forget_peak_memory(torch.device("cpu"))
print(after - before, peak_memory_gib(torch.device("cpu")))
"""


def rounds(what: str) -> tuple[int, float]:
    """Pages faulted in by four steps that free all they took, and what is held afterwards [GiB]."""
    done = subprocess.run(
        [sys.executable, "-c", ROUNDS, what], capture_output=True, text=True, check=True
    )
    faults, held = done.stdout.split()
    return int(faults), float(held)


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt"
)
def test_freed_memory_is_kept_within_a_segment_and_no_longer() -> None:
    kept, returned = rounds("keep"), rounds("return")
    assert kept[0] < 0.1 * returned[0]
    assert kept[1] < returned[1] + 0.03
