"""Perlmutter's GPU nodes, NERSC: 4 NVIDIA A100 (40 GB) and 64 cores a node, Slurm.

Facts: https://docs.nersc.gov/systems/perlmutter/architecture/ and, where it says so, others.
"""

from hydragnn_flow.execution.sites import Node, Options, Site, batch_site, guessed_gcd, slurm_jobs

INTERFACE = "hsn0"  # Globus Compute's example of a Perlmutter endpoint
NODE = Node(
    gcds=tuple(str(gpu) for gpu in range(4)),
    gcd=guessed_gcd("cuda", 36),  # System Specifications: 40 GB each
    cores_per_gcd=16,  # one EPYC 7763 of 64 cores
    device="cuda",
    # Not on NERSC's pages: as users publish what `nvidia-smi topo -m` prints on these nodes, GPU 0
    # hangs on NUMA domain 3, GPU 3 on domain 0.
    cores=("48-63,112-127", "32-47,96-111", "16-31,80-95", "0-15,64-79"),
    cores_of_a_node=64,
    interface=INTERFACE,
    watts=4 * 400.0,  # NVIDIA, A100 data sheet: maximum TDP of the SXM version
)
# A run on it, for tests and documentation.
EXAMPLE = Options(account="ABC123")


def site(options: Options) -> Site:
    """Perlmutter's GPU nodes."""
    run = options.resolved(
        "perlmutter",
        needs=("account",),
        refuses=("node", "partition"),  # the constraint chooses the partition
        nodes=1,
        blocks=1,
        walltime="02:00:00",
        qos="regular",  # https://docs.nersc.gov/jobs/policy/: without one a job lands in `debug`
        interface=INTERFACE,
    )
    constraint = f"gpu&{run.constraint}" if run.constraint else "gpu"
    # -c counts hardware threads, two a core. NERSC's own job of NCCL on two nodes has no --network,
    # its module `pytorch` brings the plugin, and Slurm's jobs inherit the modules of the shell
    # (github.com/NERSC/nersc-dl-multigpu, submit_batch_modules.sh and outputs/).
    provider = slurm_jobs(run, gpus_per_node=4, cores_per_node=128, constraint=constraint)
    return batch_site("perlmutter", NODE, run, provider, scheduler="slurm")
