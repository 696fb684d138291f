"""Checks of a search against the network that it varies, before any trial starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations, islice, product
from typing import Any

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.domain import (
    Parameter,
    Rule,
    Scalar,
    both,
    did_you_mean,
    needed,
    satisfying,
)
from hydragnn_flow.config.network import Architecture, NetworkConfig, unused_keys
from hydragnn_flow.config.network.training import DDP, Optimizer, Sharding, Training
from hydragnn_flow.config.search import CRITERION, LOSSES, SearchConfig
from hydragnn_flow.errors import InputError

Space = Mapping[str, Parameter]
NetworkWith = Callable[[Mapping[str, Any]], NetworkConfig]

# A trial's resources are searched like its network, though they do not belong to it.
RESOURCES = "Resources"
GCDS = f"{RESOURCES}.gcds"
ACCUMULATION = "Training.accumulation_steps"

# The store is built once for all trials from these, so no trial may change them.
_FIXED_BY_THE_STORE = (
    "Architecture.radius",
    "Architecture.max_neighbours",
    "Architecture.truncated_neighbours",
    "Architecture.pe_dim",
)
# Trials are comparable only if they learn the same task for the same time.
_FIXED_BY_THE_RUN = ("Training.num_epoch", "Architecture.enable_interatomic_potential")
_SECTIONS: dict[str, type[Section]] = {
    "Architecture": Architecture,
    "Training": Training,
    "Training.Optimizer": Optimizer,
    "Training.ddp": DDP,
    "Training.sharding": Sharding,
}
# Losses, unlike the errors of single targets, are not comparable across values of these.
_FIXED_BY_THE_LOSS = (
    "Training.loss_function_type",
    "Architecture.energy_weight",
    "Architecture.energy_peratom_weight",
    "Architecture.force_weight",
    "Architecture.stress_weight",
)


def check_search(search: SearchConfig, network_with: NetworkWith, gcds: int | str) -> None:
    """Check that a search fits the network whose keys it varies.

    Parameters
    ----------
    search
        Section `search` of the run.
    network_with
        Function that takes values by dotted path, and returns the validated network with them.
    gcds
        Number of GCDs of a trial, `resources.gcds`; it may be ``auto``.

    Raises
    ------
    ValueError
        If an objective is not an output of the network, or the space or an enqueued configuration
        asks for an impossible network.
    """
    network = network_with({})
    outputs = _outputs(network)
    for objective in search.objectives:
        target = objective.removeprefix("val.")
        if target != objective and target not in outputs:
            hint = did_you_mean(target, outputs) or f"; its outputs are {', '.join(outputs)}"
            raise ValueError(
                f"search.objectives: {objective!r} asks for an output {target!r}, which the "
                f"network does not have{hint}"
            )
    both = {"throughput", "seconds"} <= {*search.objectives}
    if both and not search.judges_errors and GCDS not in search.space:
        raise ValueError(
            f"search.objectives: with as many GCDs for all trials, throughput and seconds say the "
            f"same; remove one, or let search.space vary {GCDS}"
        )
    loss = next((name for name in search.objectives if name in LOSSES), None)
    for name in search.space:
        if name in _FIXED_BY_THE_LOSS and loss is not None:
            raise ValueError(
                f"search.space.{name}: trials could not be compared by {loss}; remove it, or "
                f"write {CRITERION} among search.objectives instead"
            )
    _check_judged_alike(search.space, network)
    check_space(search.space, network_with, search.rules)
    _check_widths(search.space, gcds, network_with)
    for i, values in enumerate(search.enqueue):
        try:
            _first_possible(search.space, search.rules, values, network_with)
        except InputError as error:
            raise ValueError(f"search.enqueue.{i}: {error}") from None


def check_space(space: Space, network_with: NetworkWith, rules: Sequence[Rule] = ()) -> None:
    """Check a search space: validate networks with examples of each parameter and each pair.

    Parameters
    ----------
    space
        Domain of each parameter, by dotted path into the network's JSON.
    network_with
        Function that takes values by dotted path, and returns the validated network with them.
    rules
        Rules that every trial meets; pairs that break one are left out.

    Raises
    ------
    ValueError
        If a parameter must not vary, is read by no network, or makes an impossible one.
    """
    read = {name for name in space if name.partition(".")[0] == RESOURCES}
    for name, parameter in space.items():
        if name.partition(".")[0] == RESOURCES:
            _check_resource(name, parameter)
            continue
        _check_may_vary(name)
        held = {other: values[0] for other, values in needed(space, name).items()}
        for value in parameter.examples():
            try:
                read |= _try(space, rules, {**held, name: value}, network_with)
            except InputError as error:
                raise ValueError(f"search.space.{name}: {error}") from None
    for one, other in combinations([name for name in space if name != GCDS], 2):
        read |= _try_pair(space, rules, one, other, network_with)
    for values in islice(satisfying(space, rules, {}), 20) if rules else ():
        with suppress(InputError):  # a conflict of three values is for the trial to say
            read |= _try(space, rules, values, network_with)
    for name in space:
        if name not in read:
            raise ValueError(f"search.space.{name}: changes nothing here; remove it")


def _check_may_vary(name: str) -> None:
    nested: Any = 0
    for key in reversed(name.split(".")):
        nested = {key: nested}
    if name in unused_keys(nested):
        raise ValueError(f"search.space.{name}: changes nothing here; remove it")
    section, _, key = name.rpartition(".")
    if section.partition(".")[0] not in NetworkConfig.model_fields:
        home = next((home for home, model in _SECTIONS.items() if key in model.model_fields), None)
        hint = f"write {home}.{key}" if home else "begin it with Architecture. or Training."
        raise ValueError(
            f"search.space.{name}: is no path into the network's NeuralNetwork section; {hint}"
        )
    if name in _FIXED_BY_THE_STORE:
        raise ValueError(f"search.space.{name}: the store is built with it; it cannot vary")
    if name in _FIXED_BY_THE_RUN or name.startswith("Variables_of_interest."):
        raise ValueError(f"search.space.{name}: trials could not be compared; remove it")


def _check_resource(name: str, parameter: Parameter) -> None:
    if name != GCDS:
        raise ValueError(
            f"search.space.{name}: the one resource of a trial is {GCDS}; remove it "
            f"(Training.batch_size, precision and accumulation_steps may vary too)"
        )
    values = (*(parameter.choices or ()), *(parameter.int or ()), *(parameter.float or ()))
    if any(type(value) is not int or value < 1 for value in values):
        raise ValueError(
            f"search.space.{name}: must be whole numbers of GCDs from 1 on, as "
            f"{{choices: [1, 2, 4]}}; correct it"
        )


def _check_widths(space: Space, gcds: int | str, network_with: NetworkWith) -> None:
    """Raise an error if a network cannot be sharded over a number of GCDs that trials may have."""
    widths = space[GCDS].examples() if GCDS in space else (gcds,)
    names = [name for name in space if name.startswith("Training.sharding.")]
    for values in product(*(space[name].examples() for name in names)):
        try:
            sharding = network_with(dict(zip(names, values, strict=True))).Training.sharding
        except InputError:  # a trial with these values fails, and says why
            continue
        for width in widths:
            if isinstance(width, int) and sharding.wrong_width(width):
                raise ValueError(f"network: {sharding.wrong_width(width)}")


def _try_pair(
    space: Space, rules: Sequence[Rule], one: str, other: str, network_with: NetworkWith
) -> set[str]:
    """Validate networks with all pairs of examples of two parameters.

    Returns the paths that at least one of these networks reads.
    """
    conditions = both(needed(space, one), needed(space, other))
    if not all(conditions.values()):
        return set()  # never in one trial
    read: set[str] = set()
    held = {name: values[0] for name, values in conditions.items()}
    for first, second in product(space[one].examples(), space[other].examples()):
        if first not in conditions.get(one, (first,)):
            continue
        try:
            read |= _try(space, rules, {**held, one: first, other: second}, network_with)
        except InputError as error:
            raise ValueError(
                f"search.space: {one} = {first!r} does not go with {other} = {second!r}: {error}"
            ) from None
    return read


def _try(
    space: Space, rules: Sequence[Rule], values: Mapping[str, Scalar], network_with: NetworkWith
) -> set[str]:
    """Validate the network with ``values``, and return the paths among them that it reads.

    If that network is impossible, one in which other parameters have values too must be possible.
    Nothing is read if the rules leave the values to no trial.
    """
    if not all(rule.holds(values) for rule in rules):
        return set()
    try:
        network = network_with(values)
    except InputError:
        possible = _first_possible(space, rules, values, network_with)
        if possible is None:
            return set()
        network = possible
    unread = tuple(network.unread_keys())
    return {path for path in values if not path.startswith(unread)}


def _first_possible(
    space: Space, rules: Sequence[Rule], values: Mapping[str, Scalar], network_with: NetworkWith
) -> NetworkConfig | None:
    """Return a network with ``values`` and values of all other parameters; None without a trial.

    Others have their first examples or, if those break a rule, random values that meet the rules.

    Raises
    ------
    InputError
        If no such network is possible.
    """
    whole: Mapping[str, Scalar] = completed(space, values)
    if not all(rule.holds(whole) for rule in rules):
        drawn = [*islice(satisfying(space, rules, values), 20)]
        if not drawn:
            return None
        for whole in drawn:
            with suppress(InputError):
                return network_with(whole)
    return network_with(whole)


def completed(space: Space, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Complete the parameter values of a trial of which only some are given.

    Each parameter that exists in the trial but not in ``values`` gets its first example.
    """
    whole: dict[str, Scalar] = {}
    for name, parameter in space.items():
        if parameter.exists(whole):
            whole[name] = values.get(name, parameter.examples()[0])
    return whole


def _outputs(network: NetworkConfig) -> list[str]:
    architecture = network.Architecture
    if not architecture.enable_interatomic_potential:
        return list(network.Variables_of_interest.output_names)
    weights = {
        "energy": architecture.energy_weight + architecture.energy_peratom_weight,
        "forces": architecture.force_weight,
        "stress": architecture.stress_weight,
    }
    return [name for name, weight in weights.items() if weight > 0]


def _check_judged_alike(space: Space, network: NetworkConfig) -> None:
    """Raise an error if a loss weight switches a target off in some trials only.

    Members are chosen by the criterion over all targets, whatever the objectives are.
    """
    for name in space:
        key = name.removeprefix("Architecture.")
        if name not in _FIXED_BY_THE_LOSS or not key.endswith("_weight"):
            continue
        outputs = []
        for value in space[name].examples():
            if isinstance(value, (int, float)):
                architecture = network.Architecture.model_copy(update={key: value})
                outputs.append(_outputs(network.model_copy(update={"Architecture": architecture})))
        if any(names != outputs[0] for names in outputs):
            raise ValueError(
                f"search.space.{name}: trials without a target could not be compared with others "
                f"by ensemble.criterion; give weights above 0 only"
            )
