"""A search space against the network it varies: what no trial could use is refused at the door."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from hydragnn_flow.config.network import NetworkConfig
from hydragnn_flow.config.search import Parameter, Scalar
from hydragnn_flow.errors import InputError

Space = Mapping[str, Parameter]
NetworkWith = Callable[[Mapping[str, Any]], NetworkConfig]

# The store is built once for all trials from these, so no trial may change them.
_FIXED_BY_THE_STORE = ("Architecture.radius", "Architecture.max_neighbours")
# Trials are compared by their validation loss, which must mean the same for all of them.
_FIXED_BY_THE_RUN = (
    "Training.num_epoch",
    "Training.loss_function_type",
    "Training.huber_delta",
    "Architecture.enable_interatomic_potential",
    "Architecture.energy_weight",
    "Architecture.energy_peratom_weight",
    "Architecture.force_weight",
    "Architecture.stress_weight",
)


def check_space(space: Space, network_with: NetworkWith) -> None:
    """Try the networks a search may ask for: each parameter's examples, and those of each pair.

    Parameters
    ----------
    space
        Dotted path into the network's JSON -> its domain.
    network_with
        The network with some of these paths set, checked.

    Raises
    ------
    ValueError
        If a parameter must not vary, changes nothing, or makes a network that cannot be.
    """
    useful: set[str] = set()
    for name, parameter in space.items():
        if name in _FIXED_BY_THE_STORE:
            raise ValueError(f"search.space.{name}: the store is built with it; it cannot vary")
        if name in _FIXED_BY_THE_RUN or name.startswith("Variables_of_interest."):
            raise ValueError(f"search.space.{name}: trials could not be compared; remove it")
        held = {other: values[0] for other, values in _needed(space, name).items()}
        networks = []
        for value in parameter.examples():
            try:
                networks.append(network_with({**held, name: value}).effective())
            except InputError as error:
                raise ValueError(f"search.space.{name}: {error}") from None
        if _differ(networks) or len(set(parameter.examples())) == 1:
            useful.add(name)
    for one, other in combinations(space, 2):
        useful |= _try_pair(space, one, other, network_with)
    for name in space:
        if name not in useful:
            raise ValueError(f"search.space.{name}: changes nothing here; remove it")


def _try_pair(space: Space, one: str, other: str, network_with: NetworkWith) -> set[str]:
    """Try the examples of two parameters together; those of them that changed something."""
    needed = _both(_needed(space, one), _needed(space, other))
    held = {name: values[0] for name, values in needed.items() if values}
    if len(held) < len(needed):
        return set()  # never in one trial
    rows: dict[Scalar, list[NetworkConfig]] = defaultdict(list)
    columns: dict[Scalar, list[NetworkConfig]] = defaultdict(list)
    for first, second in product(space[one].examples(), space[other].examples()):
        if first not in needed.get(one, (first,)):
            continue
        try:
            network = network_with({**held, one: first, other: second}).effective()
        except InputError as error:
            raise ValueError(
                f"search.space: {one} = {first!r} does not go with {other} = {second!r}: {error}"
            ) from None
        rows[first].append(network)
        columns[second].append(network)
    changed = {one} if any(_differ(networks) for networks in columns.values()) else set()
    return changed | ({other} if any(_differ(networks) for networks in rows.values()) else set())


def _differ(networks: Sequence[NetworkConfig]) -> bool:
    return any(network != networks[0] for network in networks)


def _needed(space: Space, name: str) -> dict[str, tuple[Scalar, ...]]:
    """Values other parameters must have for this one to exist."""
    needed: dict[str, tuple[Scalar, ...]] = {}
    for other, values in space[name].when.items():
        needed = _both(_both(needed, _needed(space, other)), {other: values})
    return needed


def _both(
    one: Mapping[str, tuple[Scalar, ...]], other: Mapping[str, tuple[Scalar, ...]]
) -> dict[str, tuple[Scalar, ...]]:
    """What both ask for; no value where they contradict each other."""
    shared = {
        name: tuple(value for value in one[name] if value in other[name])
        for name in one
        if name in other
    }
    return {**one, **other, **shared}
