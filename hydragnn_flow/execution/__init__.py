"""Sites, the pool on Parsl, what a worker runs, and gangs.

All that differs between machines is here, so the driver sees GCDs and results alone. `Pool` needs
Parsl and is imported from `hydragnn_flow.execution.pools.pool`; workers do without it.
"""

from hydragnn_flow.execution.fence import DriverFile, sole_driver
from hydragnn_flow.execution.site import Node, Site, load_site, shipped_sites
from hydragnn_flow.execution.workers.rank import Rank, merged
from hydragnn_flow.execution.workers.worker import run_ranks

__all__ = [
    "DriverFile",
    "Node",
    "Rank",
    "Site",
    "load_site",
    "merged",
    "run_ranks",
    "shipped_sites",
    "sole_driver",
]
