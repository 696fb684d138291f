"""Energy counters of a machine: files of the kernel, and counters read by vendors' packages.

Every counter is optional: a machine may have none, or let only root read it. The room does not
import torch, so that the agent of a node can read the same counters as its trainer processes.
"""

from hydragnn_flow.energy_counters.kernel import (
    Counter,
    cray_accelerator,
    cray_counter,
    intel_counter,
    rapl_counters,
)
from hydragnn_flow.energy_counters.node import NodeMeter, Reading
from hydragnn_flow.energy_counters.vendors import amd_counter, nvidia_counter

__all__ = [
    "Counter",
    "NodeMeter",
    "Reading",
    "amd_counter",
    "cray_accelerator",
    "cray_counter",
    "intel_counter",
    "nvidia_counter",
    "rapl_counters",
]
