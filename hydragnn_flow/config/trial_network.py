"""Network of a trial: the run's network with the parameters of the trial set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydragnn_flow.config.network import with_branches
from hydragnn_flow.config.network.hydragnn_keys import default_weights
from hydragnn_flow.config.search_checks import RESOURCES
from hydragnn_flow.errors import InputError

_BRANCH = {"type", "architecture"}
"""Keys of a branch of output heads; ``architecture`` holds its layers."""


def network_of_trial(
    network: Mapping[str, Any],
    parameters: Mapping[str, Any],
    data_sets: Sequence[str] = (),
    epochs: int | None = None,
) -> dict[str, Any]:
    """Return a `NeuralNetwork` section with the parameters of a trial set.

    Parameters
    ----------
    network
        `NeuralNetwork` section of the run, which is not changed.
    parameters
        Value by dotted path, see :func:`set_path`. `Resources` paths do
        not belong to a network and are skipped.
    data_sets
        Names of the data sets. Heads that are described once are repeated for the branch of each.
    epochs
        Replacement for `Training.num_epoch`, if the budget of the search is in epochs.

    Raises
    ------
    InputError
        If a path leads nowhere.
    """
    section: dict[str, Any] = _copy(with_branches(dict(network), data_sets))
    # Set before the trial's values, or a single weight among them would suppress the defaults.
    architecture = section.get("Architecture")
    if isinstance(architecture, dict):
        architecture.update(default_weights(architecture))
    if epochs is not None:
        section.setdefault("Training", {})["num_epoch"] = epochs
    for path, value in parameters.items():
        if path.partition(".")[0] != RESOURCES:
            set_path(section, path, value)
    return section


def _copy(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _copy(value) for key, value in values.items()}
    return [_copy(value) for value in values] if isinstance(values, list) else values


def set_path(values: dict[str, Any], path: str, value: Any) -> None:
    """Set the value that a dotted path names.

    In a list, a number selects an item, counted from 0, and a name applies to all items. The
    `architecture` of a branch of output heads may be left out, so that a path into heads is the
    same with one branch and with several. A single value set in place of a list fills all its
    items. Missing mappings are created.

    Parameters
    ----------
    values
        Mappings and lists, changed in place.
    path
        Dotted path such as ``Architecture.output_heads.graph.1.dim_headlayers.0``.
    value
        New value at the path.

    Raises
    ------
    InputError
        If the path leads through something that is neither a mapping nor a list, or to an item that
        a list does not have.
    """
    _set(values, path.split("."), value, path)


def _set(place: Any, parts: list[str], value: Any, path: str) -> None:
    key, *rest = parts
    if isinstance(place, list):
        if key.isdecimal():
            if int(key) >= len(place):
                raise InputError(
                    f"network: {path!r} asks for place {key} of a list of {len(place)}, which are "
                    f"counted from 0; name one there is"
                )
            if rest:
                _set(place[int(key)], rest, value, path)
            else:
                place[int(key)] = value
            return
        if not place:
            raise InputError(f"network: {path!r} leads into a list that is empty; fill it")
        for one in place:
            _set(one, parts, value, path)
        return
    if not isinstance(place, dict):
        raise InputError(f"network: {path!r} does not lead into a mapping or a list")
    if place.keys() == _BRANCH and key not in _BRANCH:
        _set(place["architecture"], parts, value, path)
    elif rest:
        _set(place.setdefault(key, {}), rest, value, path)
    else:
        there = place.get(key)
        if isinstance(there, list) and not isinstance(value, list):
            value = [value] * len(there)
        place[key] = value
