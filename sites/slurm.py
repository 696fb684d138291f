"""A Slurm machine: copy this file, edit the lines at the top, and give the copy to --site.

The values are an example, written for a node like Frontier's (eight GCDs, 64 cores).
"""

import sys
from pathlib import Path

from parsl import Config
from parsl.addresses import address_by_interface
from parsl.executors import HighThroughputExecutor
from parsl.jobs.error_handlers import windowed_error_handler
from parsl.launchers import SrunLauncher
from parsl.providers import SlurmProvider

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import Node, Site
from hydragnn_flow.placement import Gcd

ACCOUNT = "ABC123"  # what sbatch -A takes; None for your default account
PARTITION = "batch"  # what sbatch -p takes
NODES = 4  # nodes a campaign may use at a time
WALLTIME_MINUTES = 120  # of each job; the campaign asks for another when one has ended
LONGEST_SEGMENT_MINUTES = 30  # a node takes nothing new when less than this is left of its job
INTERFACE = "hsn0"  # network interface of this login node that compute nodes reach (`ip addr`)
# Lines that make this environment work on a compute node. The first is enough where the
# environment lies on a file system that the nodes see; add your `module load` lines.
WORKER_INIT = f"""
export PATH={Path(sys.executable).parent}:$PATH
"""

GPUS_PER_NODE: int | None = 8  # what sbatch --gpus-per-node takes; None where nodes have no GPUs
CORES_PER_NODE = 56  # cores that Slurm gives to a job on one node
# Cores of each GCD's worker, GCD after GCD, as your centre's node diagram shows them; these are
# OLCF's for Frontier. "none" leaves it to the system, and is right until you know better.
CPU_AFFINITY = "list:49-55:57-63:17-23:25-31:1-7:9-15:33-39:41-47"
NODE = Node(
    gcds=tuple(str(gcd) for gcd in range(8)),  # GCDs of a node, as the device runtime numbers them
    gcd=Gcd(
        memory_gib=58,  # what a segment may use: leave a tenth of the GCD's memory free
        # First guesses, not measurements: they decide only how the first trials are placed, and
        # every finished trial corrects them.
        flops=1e13,  # fp32 arithmetic a GCD reaches on small layers [1/s]
        bandwidth=1e12,  # memory traffic it reaches [B/s]
        launch_seconds=1e-5,  # time to start one kernel [s]
        process_gib=0.6,  # GPU memory a process takes before it has a model [GiB]
        share=4,  # most trials side by side on one GCD
    ),
    cores_per_gcd=7,
    device="hip",  # "hip" (AMD), "cuda" (NVIDIA), "xpu" (Intel) or "cpu"
)


# Nothing below needs an edit on most machines.


def login_address() -> str:
    """Where workers find the campaign."""
    try:
        return address_by_interface(INTERFACE)
    except OSError as error:
        raise InputError(
            f"{__file__}: INTERFACE = {INTERFACE!r}: {error.strerror}; `ip addr` lists those here"
        ) from error


def parsl_config(directory: Path) -> Config:
    """The pools."""

    def pool(label: str, workers: int, nodes: int, jobs: int) -> HighThroughputExecutor:
        per_node = f" --gpus-per-node={GPUS_PER_NODE}" if GPUS_PER_NODE else ""
        return HighThroughputExecutor(
            label=label,
            address=login_address(),
            encrypted=True,
            max_workers_per_node=workers,
            cores_per_worker=1e-6,  # the number of workers above is what counts
            cpu_affinity=CPU_AFFINITY if label == "gcd" else "none",
            prefetch_capacity=0,
            # A lost node is noticed, and its segments repeated, within these seconds.
            heartbeat_period=15,
            heartbeat_threshold=60,
            drain_period=60 * (WALLTIME_MINUTES - LONGEST_SEGMENT_MINUTES),
            # One job that a node failure ended is no reason to give up; three in a row are.
            block_error_handler=windowed_error_handler,
            provider=SlurmProvider(
                account=ACCOUNT,
                partition=PARTITION,
                nodes_per_block=nodes,
                # Jobs are asked for when there is work for them, and given back when there is none.
                init_blocks=0,
                min_blocks=0,
                max_blocks=jobs,
                walltime=f"{WALLTIME_MINUTES // 60:02d}:{WALLTIME_MINUTES % 60:02d}:00",
                exclusive=True,
                gpus_per_node=GPUS_PER_NODE,
                cmd_timeout=60,
                worker_init=WORKER_INIT,
                # When a node fails the others work on.
                scheduler_options="#SBATCH --no-kill\n#SBATCH --no-requeue",
                # srun does not inherit sbatch's cores: without -c all workers share one.
                launcher=SrunLauncher(
                    overrides=f"--ntasks-per-node=1 -c {CORES_PER_NODE}{per_node}"
                    " --no-kill --kill-on-bad-exit=0"
                ),
            ),
        )

    return Config(
        # The search runs in one job of all nodes, members in a job of one node per wave.
        executors=[pool("gcd", len(NODE.gcds), NODES, 1), pool("node", 1, 1, NODES)],
        run_dir=str(directory),
        strategy="simple",
        max_idletime=20,  # the campaign leaves a pool without work only when it is done with it
    )


def site() -> Site:
    """The machine described above."""
    return Site(name="slurm", nodes=NODES, node=NODE, parsl_config=parsl_config)
