"""Origin of the weights that `start_from` names: found in the files of a run or ensemble.

A configuration that cannot begin with the weights is refused when it is read, without importing
torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn_flow.config.network import (
    NETWORK,
    EngineNetwork,
    NetworkConfig,
    load_network,
    network_section,
)
from hydragnn_flow.config.origins import OF_HEADS, OF_TRAINING, StartConfig
from hydragnn_flow.config.run import network_of_trial
from hydragnn_flow.config.search_checks import NetworkWith, Space, completed
from hydragnn_flow.data.store.manifest import MANIFEST, Manifest, kept_manifest, load_manifest
from hydragnn_flow.ensemble.summary import FOLDER, SUMMARY, member_folder, read_summary
from hydragnn_flow.errors import InputError
from hydragnn_flow.plain_files import read_json, sound
from hydragnn_flow.run_directory import CONFIG, RunDirectory, recorded


@dataclass(frozen=True)
class Origin:
    """Trained weights from which a campaign starts, and the network that they belong to.

    Attributes
    ----------
    path
        Path of the checkpoint, or of a folder whose checkpoint with the most epochs is taken.
    network
        `NeuralNetwork` section of the network.
    statistics
        Value of `Architecture.statistics` with which the network's layers can be built again.
    data_sets
        Names of the data sets of the network's branches (heads of one data set each), in order;
        empty if unknown.
    """

    path: Path
    network: Mapping[str, Any]
    statistics: Mapping[str, Any]
    data_sets: tuple[str, ...] = ()


def network_from(
    start: StartConfig,
    network: Mapping[str, Any],
    network_with: NetworkWith,
    space: Space,
    data_sets: Sequence[str],
) -> dict[str, Any]:
    """Return the `NeuralNetwork` section of a campaign that starts from trained weights.

    Its `Architecture.statistics` is by default that for which the layers of the weights were built.
    The section of an engine (external library that builds networks) stays unchanged.

    Parameters
    ----------
    start
        Section `start_from`, which names the weights.
    network
        `NeuralNetwork` section of the campaign.
    network_with
        Function that takes values by dotted path, and returns the validated network with them.
    space
        Domain of each parameter of the search by dotted path.
    data_sets
        Names of the data sets; empty for a single source.

    Raises
    ------
    InputError
        If :func:`find_origin` finds no weights, or a network of the search differs from that of the
        weights; the message names the first such key.
    """
    if isinstance(network_with({}), EngineNetwork):
        if not start.path.is_file():
            raise InputError(f"start_from: there is no file {start.path}; correct the path")
        return dict(network)
    origin = find_origin(start)
    _check_networks(network_with, space, list(data_sets), start, origin)
    architecture = {"statistics": dict(origin.statistics), **network["Architecture"]}
    return {**network, "Architecture": architecture}


def find_origin(start: StartConfig) -> Origin:
    """Find the weights that `start_from` names, and their network, without reading the weights.

    Raises
    ------
    InputError
        If the path leads to no weights, or to weights of an engine's network.
    """
    path = start.path
    if not path.exists():
        raise InputError(f"start_from: {path} does not exist; correct the path")
    ensemble = next((f for f in (path / FOLDER, path) if (f / SUMMARY).is_file()), None)
    if ensemble is not None:
        folder = member_folder(ensemble, _best_member(ensemble))
        return _of_member(folder, folder)
    if (path / CONFIG).is_file():
        raise InputError(
            f"start_from: {path} has no finished ensemble; name the folder of one of its trials, "
            f"{path / 'trials'}/NUMBER"
        )
    folder = path if path.is_dir() else path.parent
    if path != folder and path.suffix != ".pt":
        raise InputError(f"start_from: {path} is no checkpoint; name a .pt or a folder")
    if (folder / NETWORK).is_file():
        return _of_member(folder, path)
    return _of_trial(folder, path)


def _best_member(ensemble: Path) -> int:
    """Return the number of the member with the smallest criterion; ``ensemble`` is a folder."""
    with sound(ensemble / SUMMARY):
        rows = read_summary(ensemble)["members"]
        errors = {int(row["member"]): float(row["best_val_error"]) for row in rows}
    return min(errors, key=errors.__getitem__)


def _of_member(folder: Path, path: Path) -> Origin:
    """Return the origin of the weights at ``path``, with the network in a member's ``folder``."""
    file = folder / NETWORK
    network = network_section(read_json(file), file)
    return _origin(path, network, _manifest(folder))


def _of_trial(folder: Path, path: Path) -> Origin:
    """Return the origin of the weights at ``path`` of the trial in ``folder``.

    The network follows from the files of the trial's run.
    """
    run = RunDirectory(folder.parents[1])
    number = int(folder.name) if folder.name.isdecimal() else -1
    if not (run.path / CONFIG).is_file() or run.trial(number) != folder.resolve():
        raise InputError(
            f"start_from: {folder} has no {NETWORK} and is no trial's folder in a run; name the "
            f"directory of a run, or the folder of a trial or member"
        )
    results = list(run.results(of_trials={number}))
    # Not as a configuration, whose sources and samplers would be imported.
    values = recorded(run.path)
    try:
        names = [one["name"] for one in values["data"].get("sources") or ()]
        network = network_of_trial(values["network"], results[-1].parameters, names)
    except (AttributeError, IndexError, KeyError, TypeError):
        raise InputError(
            f"start_from: neither {folder} nor the files of its run say the network of a trial "
            f"that has trained; name another"
        ) from None
    return _origin(path, network, _manifest(folder))


def _manifest(folder: Path) -> Manifest:
    """Read the manifest of the data that the trial or member in ``folder`` was trained on."""
    for above in folder.parents[:2]:
        if (above / MANIFEST).is_file():
            return kept_manifest(above / MANIFEST)
        store = RunDirectory(above).store
        if store.is_dir():
            return load_manifest(store)
    raise InputError(
        f"start_from: {folder} is not in a run or an ensemble, whose {MANIFEST} says what its "
        f"layers were made for; name it where it was trained, or export the ensemble"
    )


def _origin(path: Path, network: Mapping[str, Any], manifest: Manifest) -> Origin:
    if "engine" in network:
        raise InputError(
            f"start_from: {path} is of a network that the engine {network['engine']} has built, "
            f"which knows its weights alone; name one that is built here"
        )
    found = manifest.statistics
    statistics = network["Architecture"].get("statistics") or {
        "average_neighbours": max(found.avg_num_neighbors, 1.0),
        "degree_histogram": list(found.degree_histogram),
        "elements": [z for z in manifest.elements if z not in manifest.unseen],
    }
    return Origin(path, network, statistics, tuple(manifest.branch_names))


def _check_networks(
    network_with: NetworkWith,
    space: Space,
    data_sets: list[str],
    start: StartConfig,
    origin: Origin,
) -> None:
    """Raise InputError if a trial's network cannot begin with the weights of ``origin``."""
    if start.heads == "keep" and origin.data_sets and list(origin.data_sets) != data_sets:
        raise InputError(
            f"data.sources: the data sets are {', '.join(data_sets) or 'not named'}, but the "
            f"branches of {origin.path}, which start_from names, have learnt "
            f"{', '.join(origin.data_sets)}; name the same in this order, or write heads: new"
        )
    theirs = _compared(load_network(origin.network, origin.path), start.heads)
    tried = [completed(space, {k: value}) for k, p in space.items() for value in p.examples()]
    for parameters in [{}, *tried]:
        ours = _compared(network_with(parameters), start.heads)
        key = next((name for name in theirs if theirs[name] != ours.get(name)), None)
        if key is None:
            continue
        varied = next((name for name in space if f"{name}.".startswith(f"{key}.")), None)
        place = f"network: {key}" if varied is None else f"search.space.{varied}: {key}"
        remedy = "write that" if varied is None else "remove it from the space"
        raise InputError(
            f"{place} is {_shown(ours.get(key))}, but {origin.path}, which start_from names, was "
            f"trained with {_shown(theirs[key])}; {remedy}"
        )


def _compared(network: NetworkConfig, heads: str) -> dict[str, Any]:
    """Return the values, by key, that must agree for two networks to share weights.

    ``heads`` is `keep`, or `new` if only the encoders share weights.
    """
    network = network.effective()
    architecture = network.Architecture.model_dump(mode="json")
    free = OF_TRAINING | (OF_HEADS if heads == "new" else set())
    values = {
        f"Architecture.{key}": value for key, value in architecture.items() if key not in free
    }
    asked = network.Variables_of_interest
    values["Variables_of_interest.input_node_features"] = list(asked.input_node_features)
    if heads == "keep":
        values["Variables_of_interest.output_names"] = list(asked.output_names)
        values["Variables_of_interest.type"] = list(asked.type)
        noise = network.Training.loss_function_type == "GaussianNLLLoss"
        values["Training.loss_function_type = 'GaussianNLLLoss'"] = noise
    return values


def _shown(value: object) -> str:
    return "not given" if value is None else repr(value)
