"""Any Slurm machine to whose nodes the store is sent, as it is to those of a large one."""

from dataclasses import replace

from hydragnn_flow import load_site
from hydragnn_flow.execution.site import Options, Site
from hydragnn_flow.execution.sites.batch import Executors


def site(options: Options) -> Site:
    """The generic site, whose nodes get copies of the store however few they are."""
    site = load_site("slurm", **options.model_dump(exclude_none=True))
    assert isinstance(site.parsl_config, Executors)
    return replace(
        site, sends_store=True, parsl_config=replace(site.parsl_config, sends_store=True)
    )
