"""`start_from`: the trained weights that every trial begins with, and the network they are of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.domain import Scalar
from hydragnn_flow.config.network import NetworkConfig, load_network, network_section
from hydragnn_flow.config.network.hydragnn_layers import as_hydragnn_has_it
from hydragnn_flow.config.trial_network import network_of_trial
from hydragnn_flow.errors import InputError
from hydragnn_flow.plain_files import FROM_A_COPY, from_json, read_json, read_yaml, sound

# Files that a trial's, member's or ensemble's folder has; the rooms that write them lie above.
_NETWORK, _MANIFEST, _SUMMARY = "config.json", "manifest.json", "ensemble.json"
_RUN = "run.yaml"
# Keys of `Architecture` that say how a network is trained, not what it computes.
_OF_TRAINING = {
    "dropout",
    "energy_peratom_weight",
    "energy_weight",
    "force_weight",
    "freeze_conv_layers",
    "initial_bias",
    "max_neighbours",
    "statistics",
    "stress_weight",
    "task_weights",
    "truncated_neighbours",
}
_OF_HEADS = {"enable_interatomic_potential", "graph_pooling", "output_heads"}


class StartConfig(Section):
    """`start_from`: trained weights that every trial begins with; a path alone names the rest's
    defaults."""

    path: Path
    """Where they are: the directory of a run or of an exported ensemble, the folder of a trial or
    member, a checkpoint (``.pt``) in one, or a checkpoint of HydraGNN's (``.pk``) beside its
    `config.json`."""
    member: int | None = Field(default=None, ge=0)
    """Member of the ensemble, by number. By default the one with the smallest criterion."""
    heads: Literal["keep", "new"] = "keep"
    """Whether the heads begin with their weights, too (``keep``), or from scratch (``new``), for
    other targets."""
    freeze: Literal["none", "encoder"] | tuple[str, ...] = "none"
    """What is not trained: ``encoder`` is the embedding and the message-passing layers. A list
    names parameters or modules, such as ``encoder.layers.layers.0``."""

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, values: Any) -> Any:
        return {"path": values} if isinstance(values, (str, Path)) else values

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of parameters, or of modules that hold them, that are not trained."""
        if self.freeze == "none":
            return ()
        return ("encoder.embedding", "encoder.layers") if self.freeze == "encoder" else self.freeze


@dataclass(frozen=True)
class Origin:
    """Trained weights, and the network they are of.

    Attributes
    ----------
    file
        The checkpoint, or a trial's folder, whose checkpoint that got furthest is meant.
    network
        `NeuralNetwork` section of the network; of HydraGNN's with the layers that are theirs.
    statistics
        Value of `Architecture.statistics` that makes its layers again.
    data_sets
        Names of the data sets that its branches have learnt, in their order; empty if unknown.
    """

    file: Path
    network: Mapping[str, Any]
    statistics: Mapping[str, Any] | None
    data_sets: tuple[str, ...] = ()

    @property
    def is_hydragnn(self) -> bool:
        """Whether HydraGNN has trained it."""
        return self.file.suffix == ".pk"


def find_origin(start: StartConfig) -> Origin:
    """Find the weights that a campaign starts from; reads none of them.

    Raises
    ------
    InputError
        If the path leads to no weights, or to those of a network that cannot be built here.
    """
    path = start.path
    if not path.exists():
        raise InputError(f"start_from: {path} does not exist; correct the path")
    summary = next(
        (
            folder / _SUMMARY
            for folder in (path / "ensemble", path)
            if path.is_dir() and (folder / _SUMMARY).is_file()
        ),
        None,
    )
    if summary is not None:
        folder = summary.parent / "members" / str(_member(start, summary))
        return _ours(folder, folder / "checkpoint.pt")
    if start.member is not None:
        raise InputError(f"start_from.member: {path} is no ensemble; remove the key")
    if path.is_dir() and (path / _RUN).is_file():
        raise InputError(
            f"start_from: {path} has no finished ensemble; name the folder of one of its trials, "
            f"{path / 'trials'}/NUMBER"
        )
    if path.is_dir():
        return _ours(path, path)
    if path.suffix == ".pk":
        section = _network(path.parent, path)
        return Origin(path, as_hydragnn_has_it(section, path, heads=start.heads), None)
    if path.suffix == ".pt":
        return _ours(path.parent, path)
    raise InputError(
        f"start_from: {path} is no checkpoint; name a .pt of ours, a .pk of HydraGNN's, or a folder"
    )


def _ours(folder: Path, file: Path) -> Origin:
    if (folder / _NETWORK).is_file():
        network = _network(folder, file)
    else:
        network = _network_of_trial(folder)
    given = network["Architecture"].get("statistics")
    values, said = _manifest(folder)
    return Origin(
        file, network, given or _statistics(values, said), tuple(values.get("branch_names", ()))
    )


def _network(folder: Path, file: Path) -> dict[str, Any]:
    beside = folder / _NETWORK
    if not beside.is_file():
        raise InputError(
            f"start_from: {file} has no {_NETWORK} that says its network; put the one it was "
            f"trained with there"
        )
    return network_section(read_json(beside), beside)


def _network_of_trial(folder: Path) -> dict[str, Any]:
    run, ledger = folder.parents[1] / _RUN, folder.parents[1] / "segments.jsonl"
    if not run.is_file() or not ledger.is_file():
        raise InputError(
            f"start_from: {folder} has no {_NETWORK} and is no trial's folder in a run; name the "
            f"directory of a run, or the folder of a trial or member"
        )
    try:
        number = int(folder.name)
        parameters: Any = None
        with ledger.open(encoding="utf-8") as lines:
            for line in lines:
                if f'"number": {number},' in line and '"kind": "trial"' in line:
                    parameters = from_json(line)["parameters"]
        # Not as a configuration, whose sources and samplers would be imported.
        values = read_yaml(run)
        names = [one["name"] for one in values["data"].get("sources") or ()]
        epochs = (values["search"].get("budget") or {}).get("epochs")
        return network_of_trial(values["network"], parameters, names, epochs)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(
            f"start_from: neither {folder} nor the files of its run say the network of a trial "
            f"that has trained; name another"
        ) from None


def _member(start: StartConfig, summary: Path) -> int:
    """Number of the member that is asked for, or of the best one."""
    with sound(summary):
        members = read_json(summary)["members"]
        errors = {int(row["member"]): float(row["best_val_error"]) for row in members}
        best = min(errors, key=errors.__getitem__)
    if start.member is None:
        return best
    if start.member not in errors:
        raise InputError(
            f"start_from.member: {summary.parent} has no member {start.member}; its members are "
            f"{', '.join(map(str, errors))}"
        )
    return start.member


def _manifest(folder: Path) -> tuple[Mapping[str, Any], Path]:
    """Manifest of the data that a trial or member was trained on, and its file.

    It is that of its ensemble, or of its run's store.
    """
    places = [
        above / name
        for above in folder.parents[:2]
        for name in (_MANIFEST, f"store.gs/{_MANIFEST}")
    ]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise InputError(
            f"start_from: {folder} is not in a run or an ensemble, whose {_MANIFEST} says what its "
            f"layers were made for; name it where it was trained, or export the ensemble"
        )
    return read_json(file, FROM_A_COPY), file


def _statistics(values: Mapping[str, Any], file: Path) -> dict[str, Any]:
    with sound(file):
        found = values["statistics"]
        unseen = set(values.get("unseen", ()))
        return {
            "average_neighbours": max(float(found["avg_num_neighbors"]), 1.0),
            "degree_histogram": [int(n) for n in found["degree_histogram"]],
            "elements": [int(z) for z in values["elements"] if z not in unseen],
        }


def with_origin(network: dict[str, Any], origin: Origin) -> dict[str, Any]:
    """A network section whose layers are made as those of the origin were.

    Parameters
    ----------
    network
        `NeuralNetwork` section of a run, unchecked.
    origin
        The weights.
    """
    architecture = dict(network["Architecture"])
    if origin.is_hydragnn:
        theirs = origin.network["Architecture"]
        # The same type by the name that it has in HydraGNN's file.
        if architecture.get("mpnn_type") == theirs["mpnn_type"].rpartition(":")[2]:
            architecture |= {key: theirs[key] for key in ("mpnn_type", "mpnn_options")}
    if origin.statistics is not None:
        architecture.setdefault("statistics", dict(origin.statistics))
    return {**network, "Architecture": architecture}


def check_origin(
    start: StartConfig,
    origin: Origin,
    networks: Iterable[NetworkConfig],
    space: Collection[str],
    data_sets: Sequence[str] = (),
) -> None:
    """Refuse networks that cannot begin with the weights of another.

    Parameters
    ----------
    start, origin
        The weights.
    networks
        Those of a campaign's trials.
    space
        Paths that these differ by.
    data_sets
        Names of those that the branches will learn, in their order.

    Raises
    ------
    InputError
        Naming the first key in which one differs.
    """
    if start.heads == "keep" and origin.data_sets and list(origin.data_sets) != list(data_sets):
        raise InputError(
            f"data.sources: the data sets are {', '.join(data_sets) or 'not named'}, but the "
            f"branches of {origin.file}, which start_from names, have learnt "
            f"{', '.join(origin.data_sets)}; name the same in this order, or write heads: new"
        )
    theirs = _compared(load_network(origin.network, origin.file), start.heads)
    for network in networks:
        ours = _compared(network, start.heads)
        key = next((name for name in theirs if theirs[name] != ours.get(name)), None)
        if key is None:
            continue
        varied = next((name for name in space if f"{name}.".startswith(f"{key}.")), None)
        place = f"network: {key}" if varied is None else f"search.space.{varied}: {key}"
        remedy = "write that" if varied is None else "remove it from the space"
        raise InputError(
            f"{place} is {_shown(ours.get(key))}, but {origin.file}, which start_from names, was "
            f"trained with {_shown(theirs[key])}; {remedy}"
        )


def _compared(network: NetworkConfig, heads: str) -> dict[str, Any]:
    """Keys of a network by which two compute the same with the same weights."""
    network = network.effective()
    architecture = network.Architecture.model_dump(mode="json")
    free = _OF_TRAINING | (_OF_HEADS if heads == "new" else set())
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


def _shown(value: Scalar | list[Any] | dict[str, Any] | None) -> str:
    return "not given" if value is None else repr(value)


def resolve_start(values: dict[str, Any], source: Path) -> dict[str, Any]:
    """Values of a run configuration with the path of `start_from` made absolute, and a network
    whose layers are made as those of the origin were.

    What is wrong with the section itself is left for the schema to refuse.

    Raises
    ------
    InputError
        As :func:`find_origin`.
    """
    given = values.get("start_from")
    section = {"path": given} if isinstance(given, (str, Path)) else given
    if not isinstance(section, dict) or not isinstance(section.get("path"), (str, Path)):
        return values
    section = {**section, "path": str((source.parent / section["path"]).resolve())}
    values = {**values, "start_from": section}
    try:
        start = StartConfig.model_validate(section)
    except ValidationError:
        return values
    network = values.get("network")
    if isinstance(network, dict) and isinstance(network.get("Architecture"), dict):
        try:
            values["network"] = with_origin(network, find_origin(start))
        except InputError as error:
            raise InputError(f"{source}: {error}") from None
    return values
