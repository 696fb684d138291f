"""Any Slurm machine.

Describe it in a site.yaml (docs/sites.md):

    site: slurm
    account: ABC123
    partition: gpu
    interface: hsn0
    node: {gcds: 4, device: cuda, memory_gib: 36, cores_per_gcd: 16}

or copy this file, fill in the three lines below, and give the copy to --site.
"""

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.sites import (
    NodeOptions,
    Options,
    Site,
    batch_site,
    described_node,
    slurm_jobs,
)

# Description of a node, as NodeOptions(gcds=4, device="cuda", memory_gib=36, cores_per_gcd=16).
NODE: NodeOptions | None = None
# Network interface on which login and compute nodes reach each other (`ip addr`), as "hsn0".
INTERFACE: str | None = None
# Longest time of each batch job.
WALLTIME = "02:00:00"
# A run on such a machine, for tests and documentation.
EXAMPLE = Options(node=NodeOptions(gcds=4, device="cuda", memory_gib=36, cores_per_gcd=16))


def site(options: Options) -> Site:
    """The machine described above, or under `node:` in a site.yaml."""
    run = options.resolved(
        "slurm", nodes=1, blocks=1, walltime=WALLTIME, interface=INTERFACE, node=NODE
    )
    if run.node is None:
        raise InputError(
            "site slurm: does not know your nodes; describe one under `node` in a site.yaml"
        )
    node = described_node(run.node, run.interface)
    provider = slurm_jobs(run, gpus_per_node=run.node.gpus_per_node)
    return batch_site("slurm", node, run, provider, scheduler="slurm")
