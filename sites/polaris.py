"""Polaris, ALCF: 4 NVIDIA A100 (40 GB) and 32 cores a node, PBS Pro.

Facts: https://docs.alcf.anl.gov/polaris/, read in its version of August 2026; the page is beside
each.
"""

from hydragnn_flow.execution.sites import (
    Limit,
    Node,
    Options,
    Site,
    batch_site,
    check_limits,
    guessed_gcd,
    pbs_jobs,
)

INTERFACE = "hsn0"  # Globus Compute's example of a Polaris endpoint
# Workflows, Parsl; the campaign's files must be on these file systems.
DIRECTIVES = ("#PBS -l filesystems=home:eagle", "#PBS -l place=scatter")
FIRST_LINES = (
    # Python, Polaris; PBS passes none of the shell's modules to jobs.
    "module use /soft/modulefiles; module load conda; conda activate base",
    # NCCL: the plugin of aws-ofi-nccl, without which nodes exchange data by sockets. NCCL_NET is
    # left out: with it ranks end where the plugin does not start, and none of a node need it.
    "export NCCL_NET_GDR_LEVEL=PHB NCCL_CROSS_NIC=1 NCCL_COLLNET_ENABLE=1",
    "export LD_LIBRARY_PATH=/soft/libraries/hwloc/lib:$LD_LIBRARY_PATH",
    "export LD_LIBRARY_PATH=/soft/libraries/aws-ofi-nccl/v1.9.1-aws/lib:$LD_LIBRARY_PATH",
    "export FI_CXI_DISABLE_HOST_REGISTER=1 FI_MR_CACHE_MONITOR=userfaultfd",
    "export FI_CXI_DEFAULT_CQ_SIZE=131072",
    "export TMPDIR=/tmp",  # Workflows, Parsl, Known Issues: sockets have too long a name elsewhere
)
# Running Jobs, Queues; `prod` routes to small, medium and large.
LIMITS = {
    "debug": (Limit(1, 2, 1),),
    "debug-scaling": (Limit(1, 10, 1),),
    "prod": (Limit(10, 24, 3), Limit(25, 99, 6), Limit(100, 496, 24)),
    "preemptable": (Limit(1, 10, 72),),
    "capacity": (Limit(1, 4, 168),),
}
NODE = Node(
    gcds=tuple(str(gpu) for gpu in range(4)),
    gcd=guessed_gcd("cuda", 36),  # Machine Overview: 40 GiB each
    cores_per_gcd=8,
    device="cuda",
    scratch="/local/scratch",  # File Systems and Storage: SSDs of the node
    # Machine Overview, Device Affinity: GPU 0 hangs on the last NUMA domain.
    cores=("24-31,56-63", "16-23,48-55", "8-15,40-47", "0-7,32-39"),
    cores_of_a_node=32,
    interface=INTERFACE,
    watts=4 * 400.0,  # NVIDIA, A100 data sheet: maximum TDP of the SXM version
)
# A run on it, for tests and documentation.
EXAMPLE = Options(account="ABC123", partition="debug")


def site(options: Options) -> Site:
    """Polaris's compute nodes."""
    run = options.resolved(
        "polaris",
        needs=("account", "partition"),
        refuses=("node", "qos", "constraint"),
        nodes=1,
        blocks=1,
        walltime="01:00:00",
        interface=INTERFACE,
    )
    if run.partition in LIMITS:
        check_limits("polaris", run, run.partition, LIMITS[run.partition])
    provider = pbs_jobs(run, cpus_per_node=64, directives=DIRECTIVES, select_options="ngpus=4")
    return batch_site("polaris", NODE, run, provider, scheduler="pbs", first_lines=FIRST_LINES)
