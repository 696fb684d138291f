"""Devices of this machine."""

from __future__ import annotations

import torch

from hydragnn_flow.errors import InputError

ACCELERATORS = ("cuda", "xpu")
"""Kinds that this package computes on; AMD's are `cuda` to torch. Others lack float64."""


def this_device() -> torch.device:
    """An accelerator that is there, or the CPU.

    A build of torch for a kind of accelerator names it on machines without one, too.
    """
    seen = torch.accelerator.current_accelerator(check_available=True)
    return torch.device(seen.type if seen is not None and seen.type in ACCELERATORS else "cpu")


def usable_device(name: str | torch.device) -> torch.device:
    """A device by torch's name.

    Raises
    ------
    InputError
        If this machine has none of that name.
    """
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"device {name}: cannot be used ({reason}); name one that this machine has, such as cpu"
        ) from None
