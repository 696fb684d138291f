"""Schema of a run: one YAML file that describes a campaign, but not the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hydragnn_flow.config.base import Section, validate
from hydragnn_flow.config.data import DataConfig
from hydragnn_flow.config.domain import Scalar
from hydragnn_flow.config.network import (
    NetworkConfig,
    load_network,
    network_section,
    read_json,
)
from hydragnn_flow.config.network.architecture import EQUIVARIANT_TRANSFORMER, GPS, with_branches
from hydragnn_flow.config.network.hydragnn_keys import default_weights
from hydragnn_flow.config.objective import CampaignConfig, ObjectiveConfig
from hydragnn_flow.config.origins import StartConfig
from hydragnn_flow.config.remarks import remarks
from hydragnn_flow.config.search import CRITERION, WARM_UP_STEPS, SearchConfig
from hydragnn_flow.config.search_checks import ACCUMULATION, GCDS, RESOURCES, check_search
from hydragnn_flow.config.sources import TargetConfig
from hydragnn_flow.config.units import is_slope
from hydragnn_flow.errors import InputError, lacking
from hydragnn_flow.plain_files import PlainLoader, or_shipped, read_yaml, shipped

_BRANCH = {"type", "architecture"}
"""Keys of a branch of output heads; ``architecture`` holds its layers."""


def network_of_trial(
    network: Mapping[str, Any],
    parameters: Mapping[str, Any],
    data_sets: Sequence[str] = (),
    epochs: int | None = None,
) -> dict[str, Any]:
    """Return a run's `NeuralNetwork` section with the values of a trial's parameters set.

    Parameters
    ----------
    network
        `NeuralNetwork` section of the run, which is not changed.
    parameters
        Values of the trial's parameters by dotted path, as :func:`set_path` takes it. `Resources`
        paths do not belong to a network and are skipped.
    data_sets
        Names of the data sets. Heads that are described once are repeated for the branch of each.
    epochs
        Replacement for `Training.num_epoch`; None to keep it.

    Raises
    ------
    InputError
        If a path does not exist.
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
    """Set one value in nested mappings and lists at a dotted path, in place.

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


def value_at(values: Any, path: str) -> Any:
    """Return the value at a dotted path, as `set_path` reads it; None if there is none.

    It is that of the first item where a path leads to all items of a list.
    """
    for key in path.split("."):
        if isinstance(values, list | tuple) and values:
            values = next(iter(values[int(key) if key.isdecimal() else 0 :]), None)
            if key.isdecimal():
                continue
        if isinstance(values, dict) and values.keys() == _BRANCH and key not in _BRANCH:
            values = values["architecture"]
        values = values.get(key) if isinstance(values, dict) else getattr(values, key, None)
    return values[0] if isinstance(values, list | tuple) and values else values


CriterionName = Literal["mae", "rmse"]
Strategy = Literal["greedy", "top"]


class EnsembleConfig(Section):
    """`ensemble`: the best trials, trained further and calibrated."""

    size: int = Field(default=4, ge=2)
    """Number of members. Trials that a rung ended can become members, too."""
    strategy: Strategy = "greedy"
    """Choice of members by the criterion: the trials that together predict best (``greedy``), or
    the best trials (``top``)."""
    epochs: int = Field(ge=1)
    """Total number of epochs of a member, each as long as an epoch of a trial. The epochs of the
    trial that a member continues are included."""
    start: Literal["checkpoint", "scratch"] = "checkpoint"
    """Initial weights of a member: its trial's checkpoint, or new weights (``scratch``). A second
    member from the same trial always begins with new weights."""
    bootstrap: bool = False
    """Train each member on a bootstrap resample of the training split: as many structures, drawn
    with replacement."""
    criterion: CriterionName = "mae"
    """Error by which epochs, trials and members are judged: mean absolute or root mean square
    error, divided by the same error of a trivial predictor."""
    coverage: float = Field(default=0.9, gt=0, lt=1)
    """Fraction of true values that the predicted intervals are calibrated to contain. The
    split for calibration needs at least ``coverage / (1 - coverage)`` structures."""


class ResourcesConfig(Section):
    """`resources`: GCDs and processes of a trial or member."""

    gcds: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """Number of GCDs of a trial. ``auto`` gives a trial one GCD, and more if GCDs would idle.
    ``search.space`` may vary the number by the path ``Resources.gcds``. Members always use
    ``auto``."""
    batch_per_gcd: bool = False
    """Give each GCD of a member, or of a trial that asks for a number of GCDs, its own batch, and
    scale the learning rate."""


class RunConfig(CampaignConfig):
    """Configuration of a campaign: data, network, search, ensemble, resources."""

    data: DataConfig
    network: dict[str, Any]
    """HydraGNN's JSON, written in this file, or the path of a JSON file relative to this file."""
    search: SearchConfig
    ensemble: EnsembleConfig | None = None
    """Ensemble of the best trials. Leave it out if no objective of the search is a loss or an
    error: trials then have no error to be chosen by."""
    start_from: StartConfig | None = None
    """Trained weights that every trial begins with."""
    resources: ResourcesConfig = ResourcesConfig()
    trackers: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] = ()
    """Packages that get the learning curve of every trial and member while it trains: event files
    below ``tensorboard`` in the run directory; MLflow by `MLFLOW_TRACKING_URI`, or a file
    ``mlflow.db`` there; Weights & Biases, offline unless `WANDB_MODE` says otherwise."""

    @model_validator(mode="after")
    def _with_sources(self) -> RunConfig:
        base = self.network_with({})
        data = self.data.for_network(base)
        if self.start_from is not None:
            self.start_from.check(base, self.search.space)
        for conflict in self._between_sections(base, data):
            raise ValueError(conflict)
        check_search(self.search, self.network_with, self.resources.gcds)
        return self.model_copy(update={"data": data})

    def _between_sections(self, base: NetworkConfig, data: DataConfig) -> Iterator[str]:
        """Yield sentences about sections that do not go together."""
        if base.Architecture.radius is None:
            yield "network: Architecture.radius [Å] is required for the neighbour list"
        yield from _wrong_targets(data, base)
        yield from _wrong_units(data, base)
        yield from _wrong_branches(data, base)
        if data.element_energies and not base.Architecture.enable_interatomic_potential:
            yield (
                "data.element_energies: only potentials have reference energies; remove them, or "
                "set Architecture.enable_interatomic_potential"
            )
        yield from self._wrong_ensemble(base)
        yield from self._wrong_resources(base)

    def _wrong_ensemble(self, base: NetworkConfig) -> Iterator[str]:
        ensemble, search, epochs = self.ensemble, self.search, base.Training.num_epoch
        objectives, budget = " and ".join(search.objectives), search.budget
        if ensemble is None and search.judges_errors:
            yield (
                f"ensemble is missing; give it, with the epochs of its members (a search for "
                f"throughput, seconds or joules alone has none, this one is for {objectives})"
            )
        if ensemble is not None and not search.judges_errors:
            yield (
                f"ensemble: members are chosen by their errors, and a search for {objectives} "
                f"measures none; remove ensemble, or begin search.objectives with {CRITERION}"
            )
        if ensemble is not None and ensemble.size > search.trials:
            yield (
                f"ensemble.size = {ensemble.size} is more than search.trials = {search.trials}; "
                f"lower the one or raise the other"
            )
        if ensemble is not None and ensemble.epochs < epochs:
            yield (
                f"ensemble.epochs = {ensemble.epochs} is less than the trials' "
                f"Training.num_epoch = {epochs}; raise it"
            )
        if budget is None:
            return
        if not search.judges_errors and budget.steps and budget.steps <= WARM_UP_STEPS:
            yield (
                f"search.budget.steps = {budget.steps}: the first {WARM_UP_STEPS} steps of a trial "
                f"are not measured; give more, as {4 * WARM_UP_STEPS}"
            )
        if budget.size < epochs:
            yield (
                f"search.budget.{budget.unit} = {budget.size:g} cannot be divided into the "
                f"Training.num_epoch = {epochs} epochs of a trial; lower num_epoch"
            )

    def _wrong_resources(self, base: NetworkConfig) -> Iterator[str]:
        streamed, training = self.data.mode == "stream", base.Training
        if self.resources.batch_per_gcd and streamed:
            yield (
                "resources.batch_per_gcd: with data.mode = stream every member has one GCD; write "
                "data.mode: random, or remove batch_per_gcd"
            )
        # A member that continues on fewer GCDs computes the rest of its epoch in micro-batches.
        loss = "Training.loss_function_type"
        divides = self.resources.batch_per_gcd and self.ensemble is not None
        if divides and "rmse" in self._values_of(loss, training.loss_function_type):
            yield (
                f"resources.batch_per_gcd: {loss} = 'rmse' takes the root over a whole step, so a "
                f"member could not go on over fewer GCDs; write 'mse' or remove batch_per_gcd"
            )
        key = "Training.task_parallel"
        if True not in self._values_of(key, training.task_parallel):
            return
        if base.branches < 2:
            yield (
                f"network: {key} divides the heads of several data sets among GCDs, and "
                f"Architecture.output_heads has one branch; remove it"
            )
        if streamed:
            yield (
                f"network: {key} lets each GCD compute the graphs of its data sets, and with "
                f"data.mode = stream each reads blocks of all; write data.mode: random, or remove "
                f"it"
            )

    def _values_of(self, path: str, value: Scalar) -> tuple[Scalar, ...]:
        """Return example values of a key of the network in all trials.

        They are ``value``, which the network has, and examples from the domain of ``path`` in the
        search space, if the space contains this path.
        """
        varied = self.search.space.get(path)
        return (value, *(varied.examples() if varied else ()))

    def network_with(self, parameters: Mapping[str, Any]) -> NetworkConfig:
        """Return the validated network with the values of a trial's parameters.

        Parameters
        ----------
        parameters
            Value of each parameter by dotted path.

        Raises
        ------
        InputError
            If a path or its value does not fit HydraGNN's schema.
        """
        # Trials that are judged by their speed alone are only compared at the end.
        epochs = 1 if self.divided_budget and not self.search.judges_errors else None
        names = self.data.branch_names
        return load_network(network_of_trial(self.network, parameters, names, epochs))

    @property
    def encodings(self) -> int:
        """Largest number of positional-encoding columns that a network of the search reads."""
        engine = "Architecture.global_attn_engine"
        examples = self.search.space[engine].examples() if engine in self.search.space else ()
        # The other engine reads none, and does not fit every type.
        asked = [{}, *({engine: value} for value in examples if value == GPS)]
        return max(self.network_with(values).encodings for values in asked)

    def remarks(self) -> list[str]:
        """Return remarks on the configuration: sentences to show before a campaign begins."""
        means_batches = "batch_per_gcd" in self.resources.model_fields_set
        space = self.search.space
        of_network = remarks(self.network, self.network_with, space, means_batches=means_batches)
        return [*self.data.remarks(), *of_network]

    def gcds(self, parameters: Mapping[str, Any]) -> int | None:
        """Return the number of GCDs that a trial asks for; None if the campaign chooses it.

        ``parameters`` are the values of the trial's parameters by dotted path.
        """
        asked = parameters.get(GCDS, self.resources.gcds)
        if asked == "auto":
            return 1 if self.search.times_steps else None
        return int(asked)

    def batches(self, parameters: Mapping[str, Any]) -> int:
        """Return the number of batches in a trial's training step.

        The number is 1, or with ``batch_per_gcd`` the number of GCDs that the trial asks for. It
        stays the same on a machine with fewer GCDs, so that the result does too.
        """
        return (self.gcds(parameters) or 1) if self.resources.batch_per_gcd else 1

    @property
    def criterion(self) -> CriterionName:
        """Error by which epochs, trials and members are judged: ``mae`` or ``rmse``."""
        return "mae" if self.ensemble is None else self.ensemble.criterion

    @property
    def members(self) -> EnsembleConfig:
        """Section `ensemble` with the settings of members; the configuration must have it."""
        assert self.ensemble is not None
        return self.ensemble

    @property
    def ensemble_size(self) -> int:
        """Number of good trials that the search must find: one per member, else just 1."""
        return 1 if self.ensemble is None else self.ensemble.size

    @property
    def num_epoch(self) -> int:
        """Number of epochs of a trial that is not stopped early."""
        return self.network_with({}).Training.num_epoch

    @property
    def divided_budget(self) -> tuple[str, float] | None:
        """Unit and amount of training that a trial's epochs share, such as ``("steps", 1000)``.

        It is None if an epoch is a pass through the training split.
        """
        budget = self.search.budget
        return None if budget is None else (budget.unit, budget.size)

    @property
    def resizes(self) -> bool:
        """True if a segment (job of training) that runs out of memory gets more micro-batches.

        Micro-batches are the parts of a training step that a GCD computes in turn. It is False if
        lack of memory is a result of the trial: the search varies the micro-batches, or is for
        speed.
        """
        divided = self.ensemble is not None and self.resources.batch_per_gcd
        return divided or (ACCUMULATION not in self.search.space and self.search.judges_errors)

    @property
    def rungs(self) -> tuple[int, ...]:
        """Epochs at which trials are judged (rungs)."""
        return self.search.rung_epochs(self.num_epoch)


def _wrong_targets(data: DataConfig, network: NetworkConfig) -> Iterator[str]:
    architecture, asked = network.Architecture, network.Variables_of_interest
    targets = data.target_levels
    if targets is None:
        return
    if architecture.enable_interatomic_potential:
        outputs = [("energy", "graph", "Architecture.enable_interatomic_potential")]
        if architecture.force_weight > 0:
            outputs.append(("forces", "node", "Architecture.force_weight"))
        if architecture.stress_weight > 0:
            outputs.append(("stress", "graph", "Architecture.stress_weight"))
    else:
        key = "Variables_of_interest.output_names"
        outputs = [(*output, key) for output in zip(asked.output_names, asked.type, strict=True)]
    for name, level, key in outputs:
        if name not in targets:
            yield (
                f"network: {key} needs a target {name!r}, but those of the data are "
                f"{', '.join(targets)}; correct the one or the other"
            )
        elif targets[name] not in (None, level):
            yield (
                f"network: {key} needs {name!r} by {level}, but in the data it is a target by "
                f"{targets[name]}; correct the one or the other"
            )


def _wrong_units(data: DataConfig, network: NetworkConfig) -> Iterator[str]:
    architecture = network.Architecture
    weights = {"forces": architecture.force_weight, "stress": architecture.stress_weight}
    for one in data.data_sets if architecture.enable_interatomic_potential else ():
        targets: Mapping[str, TargetConfig] = getattr(one.source, "targets", None) or {}
        units = {name: target.unit for name, target in targets.items()}
        for name, weight in weights.items():
            power = "³" if name == "stress" else ""
            if (
                weight > 0
                and {name, "energy"} <= units.keys()
                and not is_slope(units[name], units["energy"], by_volume=bool(power))
            ):
                yield (
                    f"data.source.targets.{name}: a potential learns {name} in its energy's unit "
                    f"per Å{power}, {units['energy']}/Å{power}, but the unit is {units[name]!r}; "
                    f"convert one of them"
                )


def _wrong_branches(data: DataConfig, network: NetworkConfig) -> Iterator[str]:
    names = data.branch_names
    if names and network.branches != len(names):
        yield (
            f"network: Architecture.output_heads has {network.branches} branches, but data.sources "
            f"has {len(names)} data sets ({', '.join(names)}); describe the heads once for all of "
            f"them, or give a list with a branch for each"
        )
    if unknown := (network.Training.branch_weights or {}).keys() - set(names):
        yield (
            f"network: Training.branch_weights names {min(unknown)!r}, but the data sets of "
            f"data.sources are {', '.join(names) or 'not there'}; correct the name"
        )


def shipped_configs() -> dict[str, Path]:
    """Return the paths of the configurations that come with the package, by their name."""
    return {file.stem: file for file in shipped("configs", "*.yaml")}


def load_config(path: str | Path, *, data: str | Path | None = None) -> RunConfig:
    """Read and check a run configuration, without the weights that `start_from` names.

    Parameters
    ----------
    path
        YAML file of the campaign.
    data
        Directory of the source's data files; overrides the file's ``data.path``.

    Raises
    ------
    InputError
        If anything in the file is wrong; the message names file, key and remedy.
    """
    config = load_campaign(path, data=data)
    if isinstance(config, ObjectiveConfig):
        raise InputError(
            f"{path}: search.objective: a campaign that calls a function has no data and no "
            f"network to plan or prepare; give `hydragnn-flow run`"
        )
    return config


def load_campaign(
    path: str | Path, *, data: str | Path | None = None
) -> RunConfig | ObjectiveConfig:
    """Read and check the configuration of a campaign for networks or for a user's function.

    Parameters and errors are those of :func:`load_config`.
    """
    path = or_shipped(Path(), path)
    values = read_yaml(path, PlainLoader)
    search = values.get("search")
    if not isinstance(search, dict) or "objective" not in search:
        return resolve_config(values, path, data=data)
    if data is not None:
        raise InputError(f"{path}: search.objective reads its own data; remove --data")
    config: ObjectiveConfig = validate(ObjectiveConfig, _with_paths(values, path), path)
    return config


def resolve_config(
    values: dict[str, Any], source: str | Path, *, data: str | Path | None = None
) -> RunConfig:
    """Validate the content of a run configuration file, and return the configuration.

    Parameters
    ----------
    values
        Content of the file. Paths in it are relative to the folder of the file.
    source
        Path of the file.
    data
        Directory of the source's data files; overrides `data.path`.

    Raises
    ------
    InputError
        If a value is wrong; the message names file, key and remedy.
    """
    source = Path(source)
    values = _with_paths(values, source)
    network = values.get("network")
    if isinstance(network, str):
        file = or_shipped(source.parent, network)
        if not file.exists():
            raise InputError(f"{source}: network: there is no file {file}; correct the path")
        values["network"] = network_section(read_json(file), file)
        load_network(values["network"], file)
    elif isinstance(network, dict):
        if "Architecture" not in network:
            values["network"] = network_section(network, f"{source}: network")
        load_network(values["network"], f"{source}: network")
    if data is not None and isinstance(values.get("data"), dict):
        values["data"] = {**values["data"], "path": Path(data).resolve()}
    config: RunConfig = validate(RunConfig, values, source)
    _check_installed(config, source)
    return config


def _check_installed(config: RunConfig, source: Path) -> None:
    """Refuse what a campaign cannot use; a finished one is read without the packages."""
    for name in config.trackers:
        if find_spec(name) is None:
            raise InputError(f"{source}: trackers: {lacking(name, 'trackers')}")
    architecture, asked = config.network_with({}).Architecture, set[Any]()
    for key in ("mpnn_type", "global_attn_engine"):
        searched = config.search.space.get(f"Architecture.{key}")
        asked |= {getattr(architecture, key, None), *(searched.choices or () if searched else ())}
    some = asked & {"DimeNet", "MACE", EQUIVARIANT_TRANSFORMER}
    if some and find_spec("e3nn") is None:
        raise InputError(f"{source}: network: {min(some)}: {lacking('e3nn', 'e3nn')}")


def _with_paths(values: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """Return the content of the file ``source`` with absolute paths of data and earlier work.

    Anything but text is left for the schema to refuse.
    """
    values = dict(values)
    if isinstance(values.get("start_from"), (str, Path)):
        values["start_from"] = {"path": values["start_from"]}
    for name, key in (("data", "path"), ("start_from", "path"), ("search", "warm_start")):
        section = values.get(name)
        if isinstance(section, dict) and key in section:
            values[name] = {**section, key: _absolute(section[key], source)}
    return values


def _absolute(names: Any, source: Path) -> Any:
    if isinstance(names, list):
        return [_absolute(name, source) for name in names]
    is_path = isinstance(names, (str, Path))
    return str((source.parent / names).resolve()) if is_path else names
