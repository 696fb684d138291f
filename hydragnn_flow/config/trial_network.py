"""Networks of trials: that of the run with the values of the search put into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydragnn_flow.config.network import with_branches
from hydragnn_flow.config.network.hydragnn_keys import default_weights
from hydragnn_flow.config.paths import set_path
from hydragnn_flow.config.search_checks import RESOURCES


def network_of_trial(
    network: Mapping[str, Any],
    parameters: Mapping[str, Any],
    data_sets: Sequence[str] = (),
    epochs: int | None = None,
) -> dict[str, Any]:
    """A `NeuralNetwork` section with the values of a trial.

    Parameters
    ----------
    network
        The section of the run, which is not changed.
    parameters
        Dotted path -> value; :func:`~hydragnn_flow.config.paths.set_path` says what paths are.
        `Resources` do not belong to a network and are passed over.
    data_sets
        Names of the data sets: heads that are described once are those of the branch of each.
    epochs
        In place of `Training.num_epoch`, where the budget of the search says them.

    Raises
    ------
    InputError
        If a path leads nowhere.
    """
    section: dict[str, Any] = _copy(with_branches(dict(network), data_sets))
    # Here, or a trial that is given one weight would not have those that the others begin with.
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
