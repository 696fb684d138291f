"""Any Slurm machine, on which a GCD has one segment at a time."""

from dataclasses import replace

from hydragnn_flow import load_site
from hydragnn_flow.execution.sites.options import Options
from hydragnn_flow.execution.sites.site import Site


def site(options: Options) -> Site:
    """The generic site with GCDs that are not shared."""
    shared = load_site("slurm", **options.model_dump(exclude_none=True))
    gcd = replace(shared.node.gcd, share=1)
    return replace(shared, node=replace(shared.node, gcd=gcd))
