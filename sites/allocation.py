"""The Slurm job this runs in: its nodes, as they are, for as long as it lasts.

Start the campaign in the shell of `salloc` or in a batch script, not with srun.
"""

import os
import re
import subprocess
import time
from typing import Any

from parsl.launchers import SrunLauncher
from parsl.providers import LocalProvider

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.pools.scheduler import seconds_of
from hydragnn_flow.execution.sites import (
    Options,
    Site,
    batch_site,
    described_node,
    srun_options,
    this_node,
)

# Number of the step in which Slurm runs the shell of salloc, which leaves the nodes to others.
_INTERACTIVE_STEP = "4294967290"


def site(options: Options) -> Site:
    """The nodes of this job."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        raise InputError(
            "site allocation: this is no Slurm job; start in one (salloc), or name another site"
        )
    if os.environ.get("SLURM_STEP_ID", _INTERACTIVE_STEP) != _INTERACTIVE_STEP:
        raise InputError(
            "site allocation: this was started by srun, whose step holds the nodes the workers "
            "need; start it in the shell of salloc or in the batch script itself"
        )
    have = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    nodes = options.nodes or have
    if nodes > have:
        raise InputError(f"site allocation: this job has {have} nodes, not {nodes}; give fewer")
    seconds = seconds_left(job)
    run = options.resolved(
        "allocation",
        refuses=("account", "partition", "qos", "constraint", "walltime"),
        nodes=nodes,
        blocks=1,  # on Slingshot the nodes of a step share a network, and those of two do not
    )
    run = run.model_copy(
        update={"walltime": f"{seconds // 3600:02}:{seconds // 60 % 60:02}:00"}  # what is left
    )
    if run.node:
        node, gpus = described_node(run.node, run.interface), run.node.gpus_per_node
    else:
        node, gpus = this_node(run.interface), int(os.environ.get("SLURM_GPUS_ON_NODE", "0"))
    # As in "64(x2),32": of all nodes. There is no SLURM_CPUS_ON_NODE in the shell of salloc.
    cores = min(map(int, re.findall(r"(\d+)(?:\(|,|$)", os.environ["SLURM_JOB_CPUS_PER_NODE"])))

    def provider(walltime: str, **block: Any) -> LocalProvider:
        del walltime  # the job's own
        step = f"--nodes={run.nodes_per_block} {srun_options(cores, gpus)}"
        return LocalProvider(launcher=SrunLauncher(overrides=step), **block)

    first_lines = (
        f"export SLURM_JOB_END_TIME={int(time.time()) + seconds}",
        # Parsl names the file that starts the workers after this; blocks must not share one.
        "export SLURM_JOB_NAME=block.$$",
    )
    return batch_site("allocation", node, run, provider, scheduler=None, first_lines=first_lines)


def seconds_left(job: str) -> int:
    """Until the job ends [s]."""
    end = int(os.environ.get("SLURM_JOB_END_TIME", "0"))
    if end:
        return max(60, end - int(time.time()))
    # Slurm before 23.02 does not say it in the environment.
    asked = subprocess.run(
        ["squeue", "--noheader", "--format=%L", "--jobs", job],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    left = seconds_of(asked.stdout)
    if left is None:
        raise InputError(
            f"site allocation: squeue does not say how long job {job} has left "
            f"({(asked.stdout or asked.stderr).strip()}); export SLURM_JOB_END_TIME, in seconds of "
            "Unix time"
        )
    return max(60, int(left))
