"""Execution of jobs on a site's GCDs: sites, worker pools, trainer processes and gangs.

Everything that differs between machines is here, so that the driver only sees GCDs and results. A
gang is all ranks (processes) of one job on several GCDs. `Pool` needs Parsl and is imported from
`hydragnn_flow.execution.pools.pool`; workers do without Parsl.
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
