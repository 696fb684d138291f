"""Frontier, OLCF: 8 GCDs (AMD MI250X) and 64 cores a node, Slurm.

Facts: https://docs.olcf.ornl.gov/systems/frontier_user_guide.html, read in its version of
July 2026; the section is beside each.
"""

import getpass

from hydragnn_flow.execution.sites import (
    Limit,
    Node,
    Options,
    Site,
    batch_site,
    check_limits,
    guessed_gcd,
    priority_of,
    slurm_jobs,
)

INTERFACE = "hsn0"  # PyTorch on Frontier, Best Practices: NCCL_SOCKET_IFNAME
FIRST_LINES = (
    # PyTorch on Frontier, batch script; a rocm that was loaded in the shell stays.
    "[[ :$LOADEDMODULES == *:rocm/* ]] || "
    "module load PrgEnv-gnu/8.7.0 cpe/26.03 rocm/7.1.1 craype-accel-amd-gfx90a",
    "module load rccl-net-plugin",  # after rocm (RCCL Network Plugin)
    "export LD_LIBRARY_PATH=${CRAY_LD_LIBRARY_PATH:+$CRAY_LD_LIBRARY_PATH:}$LD_LIBRARY_PATH",
    # PyTorch on Frontier, batch script: MIOpen's cache must not be on a shared file system.
    "export MIOPEN_USER_DB_PATH=/tmp/$USER-miopen",
    "export MIOPEN_CUSTOM_CACHE_DIR=$MIOPEN_USER_DB_PATH",
)
# PyTorch on Frontier, Alternative Rendezvous Protocol: the module rccl-net-plugin relies on
# disable_rdzv_get. Slingshot gives a job of one node no virtual network, which the plugin asks for
# at its start, unless told to (srun, --network).
DIRECTIVES = ("#SBATCH --network=disable_rdzv_get,single_node_vni",)
# Job Priority by Node Count; `extended`: Extended Partition Policy.
LIMITS = {
    "batch": (
        *(Limit(1, 91, 2), Limit(92, 183, 6), Limit(184, 1881, 12)),
        *(Limit(1882, 5644, 12, days=4), Limit(5645, 9472, 12, days=8)),
    ),
    "extended": (Limit(1, 64, 24),),
}
MOST_AGING = 4  # `batch` Partition Policy: jobs of a user that are eligible to run
NODE = Node(
    gcds=tuple(str(gcd) for gcd in range(8)),
    gcd=guessed_gcd("hip", 58),  # 64 GB of HBM each (GPUs)
    # Low-noise mode and `-S 8`: the first core of each L3 region is the system's, 56 are ours.
    cores_per_gcd=7,
    device="hip",
    scratch=f"/mnt/bb/{getpass.getuser()}",  # NVMe Usage: with `-C nvme`
    # Compute Nodes: the L3 region each GCD is attached to, GCD 0 first.
    cores=("49-55", "57-63", "17-23", "25-31", "1-7", "9-15", "33-39", "41-47"),
    cores_of_a_node=56,
    interface=INTERFACE,
    watts=4 * 560.0,  # AMD, MI250X data sheet: peak power of a module, which is two GCDs
)
# A run on it, for tests and documentation.
EXAMPLE = Options(account="ABC123")


def site(options: Options) -> Site:
    """Frontier's batch nodes."""
    run = options.resolved(
        "frontier",
        needs=("account",),
        refuses=("node",),
        nodes=1,
        blocks=1,
        walltime="02:00:00",
        partition="batch",
        interface=INTERFACE,
    )
    if run.partition in LIMITS:
        check_limits("frontier", run, run.partition, LIMITS[run.partition])
    constraint = f"nvme&{run.constraint}" if run.constraint else "nvme"
    provider = slurm_jobs(
        run, gpus_per_node=8, cores_per_node=56, directives=DIRECTIVES, constraint=constraint
    )
    return batch_site(
        "frontier",
        NODE,
        run,
        provider,
        scheduler="slurm",
        first_lines=FIRST_LINES,
        priority=priority_of(run, LIMITS["batch"], MOST_AGING) * (run.partition == "batch"),
    )
