"""This machine: a laptop or workstation, every GPU a GCD, or every CPU core if there is no GPU."""

from hydragnn_flow.execution.sites import Executors, Options, Site, local_processes, this_node


def site(options: Options) -> Site:
    """The machine this runs on."""
    run = options.resolved(
        "local",
        refuses=[name for name in Options.model_fields if name != "heartbeat"],
        heartbeat=3,  # workers of a driver that was killed leave within four times these seconds
    )
    node = this_node()
    return Site(
        name="local",
        nodes=1,
        node=node,
        parsl_config=Executors(node, run, local_processes, lambda: "127.0.0.1"),
    )
