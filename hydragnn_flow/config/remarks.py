"""Remarks on a valid configuration: keys without effect, defaults that apply, meanings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydragnn_flow.config.network import NetworkConfig, unused_keys
from hydragnn_flow.config.network.hydragnn_keys import default_weights
from hydragnn_flow.config.search_checks import NetworkWith, Space, completed
from hydragnn_flow.errors import InputError


def remarks(
    network: Mapping[str, Any], network_with: NetworkWith, space: Space, *, means_batches: bool
) -> list[str]:
    """Return remarks on a valid configuration: sentences to show before a campaign begins.

    They name keys without effect in every network of the search, default loss weights of a
    potential, and positional encodings that make its energy jump. One says that in HydraGNN the
    batch size is that of each rank (process).

    Parameters
    ----------
    network
        Section `network` of the run, as it was written.
    network_with
        Function that takes values by dotted path, and returns the validated network with them.
    space
        Domain of each parameter by dotted path.
    means_batches
        True if `resources` chooses a meaning of the batch size.
    """
    found = []
    unused = unused_keys(network)
    if unused:
        found.append(f"network: keys that change nothing here: {', '.join(unused)}")
    networks = _networks(network_with, space)
    unread = set.intersection(*(one.unread_keys() for one in networks)) - unused.keys()
    if unread:
        listed = ", ".join(sorted(unread))
        found.append(f"network: keys that no network of the search reads: {listed}")
    if weights := default_weights(network["Architecture"]):
        said = " and ".join(f"Architecture.{key} = {weight:g}" for key, weight in weights.items())
        found.append(
            f"network: no weight of the potential is above zero, so that {said} count; write "
            f"weights of your own to change that"
        )
    encoded = any(one.encodings for one in networks)
    if encoded and network["Architecture"].get("enable_interatomic_potential"):
        found.append(
            "network: Architecture.pe_dim: encodings change at once when an edge appears at the "
            "radius, and the potential's energy jumps there; 0 makes it continuous"
        )
    # Such keys show that the file was written for HydraGNN.
    if unused and not means_batches:
        found.append(_meaning_of_batches(network_with({})))
    return found


def _networks(network_with: NetworkWith, space: Space) -> list[NetworkConfig]:
    """Return networks of the search: one for each example value of each parameter.

    The other parameters have their first values. Impossible networks are left out.
    """
    found: list[NetworkConfig] = []
    of_one = ({name: value} for name, domain in space.items() for value in domain.examples())
    for values in ({}, *of_one):
        try:
            found.append(network_with(completed(space, values)))
        except InputError:
            continue
    return found or [network_with({})]


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
