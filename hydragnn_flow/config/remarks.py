"""Remarks on a valid configuration: keys without effect, defaults that apply, meanings."""

from __future__ import annotations

from hydragnn_flow.config.network import NetworkConfig, unused_keys
from hydragnn_flow.config.network.hydragnn_keys import default_weights
from hydragnn_flow.config.run import RunConfig
from hydragnn_flow.config.search_checks import completed
from hydragnn_flow.errors import InputError


def remarks(config: RunConfig) -> list[str]:
    """Return sentences to show once, before a campaign begins.

    They name keys without effect in every network of the search, default weights of a potential,
    positional encodings that make a potential jump, and, if `resources` does not choose a meaning
    of the batch size, that HydraGNN means the batch of each rank (process).
    """
    found = []
    unused = unused_keys(config.network)
    if unused:
        found.append(f"network: keys that change nothing here: {', '.join(unused)}")
    unread = set.intersection(*(network.unread_keys() for network in _networks(config)))
    if unread := unread - unused.keys():
        found.append(f"network: keys that no network of the search reads: {_listed(unread)}")
    if weights := default_weights(config.network["Architecture"]):
        said = " and ".join(f"Architecture.{key} = {weight:g}" for key, weight in weights.items())
        found.append(
            f"network: no weight of the potential is above zero, so that {said} count; write "
            f"weights of your own to change that"
        )
    if config.encodings and config.network["Architecture"].get("enable_interatomic_potential"):
        found.append(
            "network: Architecture.pe_dim: encodings change at once when an edge appears at the "
            "radius, and the potential's energy jumps there; 0 makes it continuous"
        )
    # Such keys show that the file was written for HydraGNN.
    if unused and "batch_per_gcd" not in config.resources.model_fields_set:
        found.append(_meaning_of_batches(config.network_with({})))
    return found


def _networks(config: RunConfig) -> list[NetworkConfig]:
    """Return networks of the search: one for each example value of each parameter.

    The other parameters have their first values. Impossible networks are left out.
    """
    space = config.search.space
    found: list[NetworkConfig] = []
    of_one = ({name: value} for name, domain in space.items() for value in domain.examples())
    for values in ({}, *of_one):
        try:
            found.append(config.network_with(completed(space, values)))
        except InputError:
            continue
    return found or [config.network_with({})]


def _meaning_of_batches(network: NetworkConfig) -> str:
    limits = network.Training.Batching
    if limits is not None and limits.mode == "node_budget":
        key, value, what = "Batching.max_nodes", limits.max_nodes, "atoms"
    else:
        key, value, what = "batch_size", network.Training.batch_size, "graphs"
    return (
        f"network: Training.{key} = {value} is the number of {what} in a step over all GCDs "
        f"together, and HydraGNN's that of each rank; with resources.batch_per_gcd: true each GCD "
        f"of a member has as many, and false says that all together is meant"
    )


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
