"""Aurora, ALCF: 12 tiles (Intel Data Center GPU Max) and 104 cores a node, PBS Pro.

Facts: https://docs.alcf.anl.gov/aurora/, read in its version of August 2026; the page is beside
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

INTERFACE = "hsn0"  # Workflows, Parsl
# Workflows, Parsl; the campaign's files must be on these file systems.
DIRECTIVES = ("#PBS -l filesystems=home:flare", "#PBS -l place=scatter")
FIRST_LINES = (
    "module load frameworks",  # PyTorch on Aurora; PBS passes none of the shell's to jobs
    # oneCCL, minimal set; the rest of it is for ranks that mpiexec starts (execution/binding.py).
    "export FI_MR_CACHE_MONITOR=userfaultfd",
    "export TMPDIR=/tmp",  # Workflows, Parsl, Known Issues: sockets have too long a name elsewhere
)
# Running Jobs, Queues; `prod` routes to small, medium and large.
LIMITS = {
    "debug": (Limit(1, 2, 1),),
    "debug-scaling": (Limit(2, 256, 1),),
    "prod": (Limit(256, 1024, 12), Limit(1025, 1999, 18), Limit(2000, 10624, 24)),
    "capacity": (Limit(1, 16, 168),),
}
NODE = Node(
    # PyTorch on Aurora: with ZE_FLAT_DEVICE_HIERARCHY=FLAT each tile is a device.
    gcds=tuple(str(tile) for tile in range(12)),
    gcd=guessed_gcd("xpu", 58),  # Machine Overview: 768 GiB a node, 64 a tile
    cores_per_gcd=8,
    device="xpu",
    # Workflows, Parsl; cores 0 and 52, with their second threads, are the system's (Running Jobs).
    cores=(
        "1-8,105-112",
        "9-16,113-120",
        "17-24,121-128",
        "25-32,129-136",
        "33-40,137-144",
        "41-48,145-152",
        "53-60,157-164",
        "61-68,165-172",
        "69-76,173-180",
        "77-84,181-188",
        "85-92,189-196",
        "93-100,197-204",
    ),
    cores_of_a_node=102,
    interface=INTERFACE,
    watts=6 * 600.0,  # Intel, Data Center GPU Max 1550, specifications: TDP of two tiles
)
# A run on it, for tests and documentation.
EXAMPLE = Options(account="ABC123", partition="debug")


def site(options: Options) -> Site:
    """Aurora's compute nodes."""
    run = options.resolved(
        "aurora",
        needs=("account", "partition"),
        refuses=("node", "qos", "constraint"),
        nodes=1,
        blocks=1,
        walltime="01:00:00",
        interface=INTERFACE,
    )
    if run.partition in LIMITS:
        check_limits("aurora", run, run.partition, LIMITS[run.partition])
    provider = pbs_jobs(run, cpus_per_node=208, directives=DIRECTIVES)
    return batch_site("aurora", NODE, run, provider, scheduler="pbs", first_lines=FIRST_LINES)
