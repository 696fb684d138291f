"""Sites, pools on Parsl, and what a worker runs.

`Pools`, which needs Parsl, is imported from `hydragnn_flow.execution.pools`; workers and lanes do
without it.
"""

from hydragnn_flow.execution.lease import sole_driver
from hydragnn_flow.execution.site import Node, Site, load_site, shipped_sites
from hydragnn_flow.execution.worker import Job, run_bundle, run_wave

__all__ = [
    "Job",
    "Node",
    "Site",
    "load_site",
    "run_bundle",
    "run_wave",
    "shipped_sites",
    "sole_driver",
]
