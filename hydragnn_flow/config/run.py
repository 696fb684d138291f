"""Schema of a run: one YAML file that describes a campaign, but not the machine."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from hydragnn_flow.config.base import Section, explain
from hydragnn_flow.config.budget import TrainingBudget
from hydragnn_flow.config.data import DataConfig
from hydragnn_flow.config.network import (
    NetworkConfig,
    fusing_refusal,
    load_network,
    network_section,
    read_json,
)
from hydragnn_flow.config.network.architecture import GPS
from hydragnn_flow.config.search import CRITERION, WARM_UP_STEPS, SearchConfig
from hydragnn_flow.config.search_checks import ACCUMULATION, GCDS, check_search
from hydragnn_flow.config.start_from import StartConfig
from hydragnn_flow.config.trial_network import network_of_trial
from hydragnn_flow.config.warm_start import absolute
from hydragnn_flow.errors import InputError
from hydragnn_flow.plain_files import PlainLoader, read_yaml

CriterionName = Literal["mae", "rmse"]
Strategy = Literal["greedy", "top", "best_of_each_type"]
Aggregation = Literal["weighted", "uniform", "median"]


class EnsembleConfig(Section):
    """`ensemble`: the best trials, trained further and calibrated."""

    size: int = Field(default=4, ge=2)
    """Number of members. Trials that a rung ended can become members, too."""
    strategy: Strategy = "greedy"
    """Choice of members by the criterion: the trials that together predict best (``greedy``), the
    best trials (``top``), or the best of each message-passing type."""
    epochs: int | None = Field(default=None, ge=1)
    """Total epochs of a member, including those of a trial that it continues. Required unless there
    is a ``budget``."""
    budget: TrainingBudget | None = None
    """Total training length of a member instead of ``epochs``, in the unit of ``search.budget``,
    rounded up to whole epochs."""
    start: Literal["checkpoint", "scratch"] = "checkpoint"
    """Initial weights of a member: its trial's checkpoint, or new weights (``scratch``). A second
    member of a trial always begins with new ones."""
    bootstrap: bool = False
    """Train each member on a bootstrap resample of the training split: as many structures, drawn
    with replacement."""
    criterion: CriterionName = "mae"
    """Error by which epochs, trials and members are judged: mean absolute or root mean square,
    relative to that of a trivial predictor."""
    aggregation: Literal["auto", Aggregation] = "auto"
    """Combination of the members' predictions: weighted mean, mean (``uniform``) or median.
    ``auto`` takes equal weights unless others are significantly better. Potentials have no median,
    because forces would not be the gradient of the energy."""
    coverage: float = Field(default=0.9, gt=0, lt=1)
    """Fraction of true values that the predicted intervals are calibrated to contain. The
    calibrating split needs at least ``coverage / (1 - coverage)`` structures."""

    @model_validator(mode="after")
    def _trains_for_a_time(self) -> EnsembleConfig:
        if (self.epochs is None) == (self.budget is None):
            which = "both are" if self.budget else "neither is"
            raise ValueError(f"epochs or budget is needed, and {which} given; give one of them")
        return self


# Paths whose values decide whether a network can be trained fused.
_DECIDE_FUSING = (
    "Architecture.mpnn_type",
    "Architecture.global_attn_engine",
    "Training.Optimizer.type",
    "Training.precision",
)


class ResourcesConfig(Section):
    """`resources`: GCDs and processes of a trial or member."""

    gcds: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """Number of GCDs of a trial. ``auto`` gives it one, and more if GCDs would idle.
    ``search.space`` may vary it by the path ``Resources.gcds``. Members always use ``auto``."""
    batch_per_gcd: bool = False
    """Give each GCD of a member, or of a trial that asks for a number of GCDs, its own batch, and
    scale the learning rate."""
    fused_members: int = Field(default=1, ge=1)
    """Experimental: maximum number of trials or members, of networks too small to fill a GCD, that
    train fused in one process."""


class RunConfig(Section):
    """Configuration of a campaign: data, network, search, ensemble, resources."""

    name: str
    """Name of the run; its directory is ``runs/<name>`` unless the command line says otherwise."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of every random number of the run. Two runs still differ, because the search depends on
    which trials finish first."""
    data: DataConfig
    network: dict[str, Any]
    """HydraGNN's JSON, written in place, or the name of its file relative to this one."""
    search: SearchConfig
    ensemble: EnsembleConfig | None = None
    """Ensemble of the best trials. Leave it out if no objective of the search is a loss or an
    error: trials then have no error to be chosen by."""
    start_from: StartConfig | None = None
    """Trained weights that every trial begins with."""
    resources: ResourcesConfig = ResourcesConfig()

    @field_validator("name")
    @classmethod
    def _is_a_file_name(cls, name: str) -> str:
        return is_file_name(name)

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        base = self.network_with({})
        if base.Architecture.radius is None:
            raise ValueError("network: Architecture.radius [Å] is required for the neighbour list")
        if self.start_from is not None:
            self.start_from.check(base, self.search.space)
        data = self.data.for_network(base)
        _check_targets(data, base)
        _check_branches(data, base)
        self._check_ensemble(base)
        self._check_budgets(base.Training.num_epoch)
        check_search(self.search, self.network_with, self.resources.gcds)
        self._check_batches(base)
        self._check_fused(base)
        self._check_task_parallel(base)
        return self.model_copy(update={"data": data, "search": self._search()})

    def _search(self) -> SearchConfig:
        """Return the search, in which out-of-memory is a result if its remedy is varied."""
        search = self.search
        failures, is_given = search.failures, "out_of_memory" in search.failures.model_fields_set
        divided = self.ensemble is not None and self.resources.batch_per_gcd
        is_searched = ACCUMULATION in search.space or not search.judges_errors
        if is_given or divided or not is_searched:
            return search
        failures = failures.model_copy(update={"out_of_memory": "record"})
        return search.model_copy(update={"failures": failures})

    def _check_ensemble(self, base: NetworkConfig) -> None:
        """Raise an error if the ensemble does not fit the search, or is missing."""
        ensemble, search = self.ensemble, self.search
        objectives = " and ".join(search.objectives)
        if ensemble is None:
            if search.judges_errors:
                raise ValueError(
                    f"ensemble is missing; give it, with the epochs of its members (a search for "
                    f"throughput, seconds or joules alone has none, this one is for {objectives})"
                )
            return
        if not search.judges_errors:
            raise ValueError(
                f"ensemble: members are chosen by their errors, and a search for {objectives} "
                f"measures none; remove ensemble, or begin search.objectives with {CRITERION}"
            )
        if ensemble.size > search.trials:
            raise ValueError(
                f"ensemble.size = {ensemble.size} is more than search.trials = "
                f"{search.trials}; lower the one or raise the other"
            )
        if ensemble.aggregation == "median" and base.Architecture.enable_interatomic_potential:
            raise ValueError(
                "ensemble.aggregation = median: forces would not be the gradient of the energy; "
                "write auto, weighted or uniform"
            )

    def _check_budgets(self, num_epoch: int) -> None:
        """Raise an error for budgets that leave an epoch, a member or a measurement too little."""
        trials = self.search.budget
        steps = None if trials is None else trials.steps
        if not self.search.judges_errors and steps is not None and steps <= WARM_UP_STEPS:
            raise ValueError(
                f"search.budget.steps = {steps}: the first {WARM_UP_STEPS} steps of a trial are "
                f"not measured; give more, as {4 * WARM_UP_STEPS}"
            )
        if trials is not None and trials.unit in ("steps", "samples") and trials.size < num_epoch:
            raise ValueError(
                f"search.budget.{trials.unit} = {trials.size:g} cannot be divided into the "
                f"Training.num_epoch = {num_epoch} epochs of a trial; lower num_epoch"
            )
        if self.ensemble is None:
            return
        members = self.ensemble.budget
        unit = trials.unit if trials is not None else "epochs"
        if members is not None and members.unit != unit:
            raise ValueError(
                f"ensemble.budget is in {members.unit}, but that of trials is in {unit}; write "
                f"ensemble.budget.{unit}, or ensemble.epochs instead"
            )
        if self.member_epochs < num_epoch:
            key, is_of = "ensemble.epochs", "the trials' Training.num_epoch"
            mine, theirs = float(self.member_epochs), float(num_epoch)
            if members is not None and trials is not None:
                key, is_of = f"ensemble.budget.{unit}", f"search.budget.{unit}"
                mine, theirs = members.size, trials.size
            raise ValueError(f"{key} = {mine:g} is less than {is_of} = {theirs:g}; raise it")

    def _check_batches(self, base: NetworkConfig) -> None:
        """Raise an error where a member cannot have a batch per GCD, or not continue without."""
        if not self.resources.batch_per_gcd:
            return
        if self.data.mode == "stream":
            raise ValueError(
                "resources.batch_per_gcd: with data.mode = stream every member has one GCD; write "
                "data.mode: random, or remove batch_per_gcd"
            )
        if self.ensemble is None:
            return
        # A member that continues on fewer GCDs computes the rest of its epoch in micro-batches.
        key = "Training.loss_function_type"
        varied = self.search.space.get(key)
        if "rmse" in (base.Training.loss_function_type, *(varied.examples() if varied else ())):
            raise ValueError(
                f"resources.batch_per_gcd: {key} = 'rmse' takes the root over a whole step, so a "
                f"member could not go on over fewer GCDs; write 'mse' or remove batch_per_gcd"
            )
        if (treatment := self.search.failures.out_of_memory) != "resize":
            raise ValueError(
                f"resources.batch_per_gcd: a batch that is too large for a GCD has to be divided, "
                f"which search.failures.out_of_memory = {treatment} forbids; write resize or "
                f"remove batch_per_gcd"
            )

    def _check_fused(self, base: NetworkConfig) -> None:
        """Raise an error for fused members if no network of the search can be fused."""
        if self.resources.fused_members == 1:
            return
        reason = fusing_refusal(base)
        if self.data.mode == "stream":
            reason = "trainings on a store that is streamed (data.mode) cannot be fused"
        elif self.search.budget is not None and self.search.budget.unit == "seconds":
            reason = "epochs that end by time (search.budget.seconds) cannot be fused"
        elif self.search.times_steps:
            reason = "trials whose speed is an objective (search.objectives) cannot be fused"
        elif any(path in self.search.space for path in _DECIDE_FUSING):
            return  # other networks of the search may be fusable
        if reason:
            raise ValueError(f"resources.fused_members: {reason}; remove it")

    def _check_task_parallel(self, base: NetworkConfig) -> None:
        """Raise an error for task parallelism with one branch or with streamed data."""
        key = "Training.task_parallel"
        varied = self.search.space.get(key)
        if True not in (base.Training.task_parallel, *(varied.examples() if varied else ())):
            return
        if base.branches < 2:
            raise ValueError(
                f"network: {key} divides the heads of several data sets among GCDs, and "
                f"Architecture.output_heads has one branch; remove it"
            )
        if self.data.mode == "stream":
            raise ValueError(
                f"network: {key} lets each GCD compute the graphs of its data sets, and with "
                f"data.mode = stream each reads blocks of all; write data.mode: random, or remove "
                f"it"
            )

    def network_with(self, parameters: Mapping[str, Any]) -> NetworkConfig:
        """Return the validated network with some dotted paths set.

        Raises
        ------
        InputError
            If a path or its value does not fit HydraGNN's schema.
        """
        return load_network(self.network_values(parameters))

    def network_values(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return HydraGNN's JSON with some dotted paths into its `NeuralNetwork` section set.

        See :func:`~hydragnn_flow.config.paths.set_path` for paths. `Resources` paths do not belong
        to a network and are skipped. Heads that are described once are repeated for the branch of
        each data set.
        """
        budget = self.search.budget
        epochs = None if budget is None else budget.epochs
        if self.divided_budget is not None and not self.search.judges_errors:
            epochs = 1  # trials are only compared at the end
        return network_of_trial(self.network, parameters, self.data.branch_names, epochs)

    @property
    def encodings(self) -> int:
        """Largest number of positional encodings that a network of the search reads; 0 for none."""
        engine = "Architecture.global_attn_engine"
        examples = self.search.space[engine].examples() if engine in self.search.space else ()
        # The other engine reads none, and does not fit every type.
        asked = [{}, *({engine: value} for value in examples if value == GPS)]
        return max(self.network_with(values).encodings for values in asked)

    def gcds(self, parameters: Mapping[str, Any]) -> int | None:
        """Return the number of GCDs that a trial asks for; None where the placer chooses."""
        asked = parameters.get(GCDS, self.resources.gcds)
        if asked == "auto":
            return 1 if self.search.times_steps else None
        return int(asked)

    def batches(self, parameters: Mapping[str, Any]) -> int:
        """Return the batches in a trial's step: with ``batch_per_gcd`` one for each GCD asked for.

        A machine with fewer GCDs does not change it, so that the result stays the same.
        """
        return (self.gcds(parameters) or 1) if self.resources.batch_per_gcd else 1

    @property
    def criterion(self) -> CriterionName:
        """Error by which epochs are judged."""
        return "mae" if self.ensemble is None else self.ensemble.criterion

    @property
    def members(self) -> EnsembleConfig:
        """Section `ensemble`, which must be there."""
        assert self.ensemble is not None
        return self.ensemble

    @property
    def ensemble_size(self) -> int:
        """Number of trials that the search must find."""
        return 1 if self.ensemble is None else self.ensemble.size

    @property
    def num_epoch(self) -> int:
        """Epochs of a trial that no rung ends."""
        return self.network_with({}).Training.num_epoch

    @property
    def member_epochs(self) -> int:
        """Total epochs of a member, each as long as a trial's."""
        members, trials = self.members.budget, self.search.budget
        if members is None:
            return int(self.members.epochs or 0)
        if trials is None or members.epochs is not None:
            return int(members.size)
        return math.ceil(round(members.size * self.num_epoch / trials.size, 6))

    @property
    def divided_budget(self) -> tuple[str, float] | None:
        """Unit and size of the budget that a trial's epochs divide; None if they are passes."""
        budget = self.search.budget
        if budget is None or budget.unit == "epochs":
            return None
        return budget.unit, budget.size

    @property
    def rungs(self) -> tuple[int, ...]:
        """Epochs at which trials are judged; some brackets of Hyperband skip some of them."""
        return self.search.rung_epochs(self.num_epoch)


def is_file_name(name: str) -> str:
    """Return the name of a run if a directory can have it; raise a ValueError otherwise."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError("must be made of letters, digits, '.', '_' and '-'")
    return name


def _check_targets(data: DataConfig, network: NetworkConfig) -> None:
    """Raise an error if the data lack outputs of the network, where targets are configured."""
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
            raise ValueError(
                f"network: {key} needs a target {name!r}, but those of the data are "
                f"{', '.join(targets)}; correct the one or the other"
            )
        if targets[name] not in (None, level):
            raise ValueError(
                f"network: {key} needs {name!r} by {level}, but in the data it is a target by "
                f"{targets[name]}; correct the one or the other"
            )


def _check_branches(data: DataConfig, network: NetworkConfig) -> None:
    """Raise an error if the network's branches do not match the data sets."""
    names = data.branch_names
    if names and network.branches != len(names):
        raise ValueError(
            f"network: Architecture.output_heads has {network.branches} branches, but data.sources "
            f"has {len(names)} data sets ({', '.join(names)}); describe the heads once for all of "
            f"them, or give a list with a branch for each"
        )
    if unknown := (network.Training.branch_weights or {}).keys() - set(names):
        raise ValueError(
            f"network: Training.branch_weights names {min(unknown)!r}, but the data sets of "
            f"data.sources are {', '.join(names) or 'not there'}; correct the name"
        )


def load_config(path: str | Path, *, data: str | Path | None = None) -> RunConfig:
    """Read and check a run configuration, but for what is in the run that `start_from` names.

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
    path = Path(path)
    values = read_yaml(path, PlainLoader)
    if isinstance(values.get("search"), dict) and "objective" in values["search"]:
        raise InputError(
            f"{path}: search.objective: a campaign that calls a function has no data and no "
            f"network to plan or prepare; give `hydragnn-flow run`"
        )
    return resolve_config(values, path, data=data)


def resolve_config(
    values: dict[str, Any], source: str | Path, *, data: str | Path | None = None
) -> RunConfig:
    """Validate the values of a run configuration that was read from ``source``.

    File names in it are relative to ``source``.
    """
    values, source = dict(values), Path(source)
    network = values.get("network")
    if isinstance(network, str):
        file = source.parent / network
        if not file.exists():
            raise InputError(f"{source}: network: there is no file {file}; correct the path")
        values["network"] = network_section(read_json(file), file)
        load_network(values["network"], file)
    elif isinstance(network, dict):
        if "Architecture" not in network:
            values["network"] = network_section(network, f"{source}: network")
        load_network(values["network"], f"{source}: network")
    section = values.get("data")
    if isinstance(section, dict):
        section = dict(section)
        if data is not None:
            section["path"] = Path(data).resolve()
        elif isinstance(section.get("path"), str):
            section["path"] = (source.parent / section["path"]).resolve()
        values["data"] = section
    search = values.get("search")
    if isinstance(search, dict) and isinstance(search.get("warm_start"), list):
        values["search"] = {**search, "warm_start": absolute(search["warm_start"], source)}
    start = values.get("start_from")
    if isinstance(start, (str, Path)):
        values["start_from"] = start = {"path": start}
    if isinstance(start, dict) and isinstance(start.get("path"), (str, Path)):
        path = (source.parent / start["path"]).resolve()
        values["start_from"] = {**start, "path": path}
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise explain(error, source) from None
