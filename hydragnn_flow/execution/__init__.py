"""Sites, pools on Parsl, what a worker runs, and gangs.

`Pools`, which needs Parsl, is imported from `hydragnn_flow.execution.pools.pools`; workers and
lanes do without it.
"""

from hydragnn_flow.execution.lease import check_driver, sole_driver
from hydragnn_flow.execution.site import Node, PoolName, Site, load_site, shipped_sites
from hydragnn_flow.execution.workers.gang import abort, whole
from hydragnn_flow.execution.workers.part import Job
from hydragnn_flow.execution.workers.worker import run_jobs

__all__ = [
    "Job",
    "Node",
    "PoolName",
    "Site",
    "abort",
    "check_driver",
    "load_site",
    "run_jobs",
    "shipped_sites",
    "sole_driver",
    "whole",
]
