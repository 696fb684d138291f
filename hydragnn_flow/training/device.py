"""Devices that this machine can compute on."""

from __future__ import annotations

import torch

from hydragnn_flow.errors import InputError

ACCELERATORS = ("cuda", "xpu")
"""Kinds of accelerators that are supported; AMD's are `cuda` to torch. Others lack float64."""


def this_device() -> torch.device:
    """Return this machine's accelerator, or the CPU if it has none.

    A build of torch for an accelerator names its kind even on machines without one.
    """
    seen = torch.accelerator.current_accelerator(check_available=True)
    return torch.device(seen.type if seen is not None and seen.type in ACCELERATORS else "cpu")


def usable_device(name: str | torch.device) -> torch.device:
    """Return a device by torch's name after checking that it can be used.

    Raises
    ------
    InputError
        If this machine has no such device.
    """
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"device {name}: cannot be used ({reason}); name one that this machine has, such as cpu"
        ) from None
