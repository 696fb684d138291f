"""Sites, pools on Parsl, what a worker runs, and gangs.

`Pools`, which needs Parsl, is imported from `hydragnn_flow.execution.pools.pools`; workers and
trainer processes do without it.
"""

from hydragnn_flow.execution.fence import check_driver, sole_driver
from hydragnn_flow.execution.site import Node, PoolName, Site, load_site, shipped_sites
from hydragnn_flow.execution.workers.gang import abort, merged
from hydragnn_flow.execution.workers.local_ranks import RankGroup
from hydragnn_flow.execution.workers.worker import run_rank_groups

__all__ = [
    "Node",
    "PoolName",
    "RankGroup",
    "Site",
    "abort",
    "check_driver",
    "load_site",
    "merged",
    "run_rank_groups",
    "shipped_sites",
    "sole_driver",
]
