"""Energy counters of a machine: the kernel's files, and what the vendors' packages read.

Nothing here is required: a machine without a counter, or one that only root may read, has none.
None of it imports torch, so that the agent of a node can read what its trainer processes read.
"""

from hydragnn_flow.energy_counters.cray import cray_accelerator, cray_counter
from hydragnn_flow.energy_counters.intel import intel_counter
from hydragnn_flow.energy_counters.node import NodeMeter, Reading
from hydragnn_flow.energy_counters.rapl import rapl_counters
from hydragnn_flow.energy_counters.sysfs import Counter
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
