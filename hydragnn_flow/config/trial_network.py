"""Network of a trial: the run's network with the parameters of the trial set."""

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
    """Return a `NeuralNetwork` section with the parameters of a trial set.

    Parameters
    ----------
    network
        `NeuralNetwork` section of the run, which is not changed.
    parameters
        Value by dotted path, see :func:`~hydragnn_flow.config.paths.set_path`. `Resources` paths do
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
