"""Building blocks of site files, and the Parsl configuration of a machine.

Each site file describes one machine. Settings that correct Parsl's defaults on all machines are
here.
"""

from hydragnn_flow.execution.site import (
    Node,
    NodeOptions,
    Options,
    Site,
    described_node,
    guessed_gcd,
)
from hydragnn_flow.execution.sites.batch import (
    Executors,
    Limit,
    batch_site,
    check_limits,
    local_processes,
    lsf_jobs,
    pbs_jobs,
    priority_of,
    slurm_jobs,
    srun_options,
)
from hydragnn_flow.execution.sites.this_node import this_node

__all__ = [
    "Executors",
    "Limit",
    "Node",
    "NodeOptions",
    "Options",
    "Site",
    "batch_site",
    "check_limits",
    "described_node",
    "guessed_gcd",
    "local_processes",
    "lsf_jobs",
    "pbs_jobs",
    "priority_of",
    "slurm_jobs",
    "srun_options",
    "this_node",
]
