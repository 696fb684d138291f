"""What a process does with memory that it has freed."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

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
def test_freed_memory_is_kept_for_the_next_step_but_not_for_the_next_segment() -> None:
    """By default a step faults in up to all of its 24 thousand pages again."""
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    faults, used, left = map(float, done.stdout.split())
    assert faults < 100
    assert used > 24 * 2**-8
    assert left < 0.02
