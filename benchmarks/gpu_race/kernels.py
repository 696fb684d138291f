"""Kernels of a training step on a device: their number, and their time together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from hydragnn_flow.models.cost import _VIEWS

_ACTIVITIES = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}


@dataclass(frozen=True)
class Kernels:
    """Of one step, on average."""

    launches: float
    """Kernels and copies; on a CPU torch's innermost operations."""
    seconds: float
    """In kernels and copies [s]."""
    costliest: dict[str, float]
    """Seconds of the kernels that take most, by name [s]."""


def kernels_of(step: Callable[[], object], steps: int, device: torch.device) -> Kernels:
    """Profile some steps."""
    activities = [ProfilerActivity.CPU]
    if device.type in _ACTIVITIES:
        activities.append(_ACTIVITIES[device.type])
    with profile(activities=activities) as found:
        for _ in range(steps):
            step()
        if device.type != "cpu":
            torch.get_device_module(device).synchronize(device)
    spent: defaultdict[str, float] = defaultdict(float)
    launches = 0
    for event in found.events() or []:
        if (seconds := _seconds(event, device)) is not None:
            launches += 1
            spent[event.name] += seconds
    costliest = sorted(spent, key=lambda name: spent[name], reverse=True)[:12]
    by_name = {name[:80]: spent[name] / steps for name in costliest}
    return Kernels(launches / steps, sum(spent.values()) / steps, by_name)


def _seconds(event: Any, device: torch.device) -> float | None:
    """Time of a kernel [s]; None for other events."""
    if device.type == "cpu":
        library, _, name = event.name.partition("::")
        moves_data = library == "aten" and name not in _VIEWS and not event.cpu_children
        return 1e-6 * float(event.self_cpu_time_total) if moves_data else None
    # What the host has marked is shown on the device as well.
    is_mark = getattr(event, "is_user_annotation", False) or "#" in event.name
    if is_mark or event.device_type.name == "CPU":
        return None
    return 1e-6 * float(event.time_range.elapsed_us())
