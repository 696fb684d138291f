"""Any Slurm machine whose GCDs are shared by small segments, as those of accelerators are."""

from dataclasses import replace

from hydragnn_flow import load_site
from hydragnn_flow.execution.site import Options, Site


def site(options: Options) -> Site:
    """The generic site with up to four segments on a CPU slot, as if it were a device."""
    slots = load_site("slurm", **options.model_dump(exclude_none=True))
    gcd = replace(slots.node.gcd, most_segments=4, launches=False)
    return replace(slots, node=replace(slots.node, gcd=gcd))
