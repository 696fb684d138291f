"""Default device of this machine."""

from __future__ import annotations

import torch

ACCELERATORS = ("cuda", "xpu")
"""Kinds that this package computes on; AMD's are `cuda` to torch. Others lack float64."""


def this_device() -> torch.device:
    """An accelerator that is there, or the CPU.

    A build of torch for a kind of accelerator names it on machines without one, too.
    """
    seen = torch.accelerator.current_accelerator(check_available=True)
    return torch.device(seen.type if seen is not None and seen.type in ACCELERATORS else "cpu")
