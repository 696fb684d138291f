"""Reading and validation of `NeuralNetwork`, and engines that build it.

An engine is a library outside this package that builds networks, by a function ``build(network,
manifest)`` that returns a torch module; see :mod:`hydragnn_flow.engines`.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from inspect import isclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from hydragnn_flow.config.base import Section, check_keys, explain, import_class, validate
from hydragnn_flow.config.domain import did_you_mean
from hydragnn_flow.config.network.architecture import GPS, Architecture, CommonArchitecture
from hydragnn_flow.config.network.hydragnn_keys import ENERGY, IGNORED, REFUSED, default_weights
from hydragnn_flow.config.network.training import DDP, Scheduler, Sharding, Training
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import write_json
from hydragnn_flow.plain_files import read_json

ENGINES: dict[str, str] = {"hydragnn": "hydragnn_flow.engines.hydragnn:build"}
"""Build function, as ``module:build``, of each engine that has a short name."""


@lru_cache(maxsize=16)
def engine_of(name: str) -> Any:
    """Return the function by which an engine (external library) builds a network.

    The module of the function is imported.

    Parameters
    ----------
    name
        Key of :data:`ENGINES`, or ``module:build``.

    Raises
    ------
    ValueError
        If there is no such function, or its `options` are not a schema.
    """
    if name not in ENGINES and ":" not in name:
        known = ", ".join(map(repr, ENGINES))
        raise ValueError(
            f"must be one of {known}, or module:build, got {name!r}{did_you_mean(name, ENGINES)}"
        )
    build = import_class(ENGINES.get(name, name))
    if not callable(build):
        raise ValueError(f"{name} cannot be called; name a function build(network, manifest)")
    schema = getattr(build, "options", None)
    if schema is not None and not (isclass(schema) and issubclass(schema, Section)):
        raise ValueError(
            f"{name}.options is no schema: derive it from {Section.__module__}.Section, or remove "
            f"it"
        )
    return build


class EngineArchitecture(CommonArchitecture):
    """`NeuralNetwork.Architecture` of a network that an engine (external library) builds.

    It has keys of the engine's own, and the keys that the store and the loss read.
    """

    model_config = ConfigDict(extra="allow")

    branches: int = Field(default=1, ge=1)
    """Number of branches, one for each data set with its own reference energies, means and spreads.
    By default the number of ``data.sources``."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        fields = cls.model_fields
        own = {key: value for key, value in values.items() if key not in fields}
        # HydraGNN writes null for keys that are not given.
        ours = {k: v for k, v in values.items() if k in fields and v is not None}
        return {**check_keys(cls, ours), **own} | default_weights(ours)

    @property
    def own(self) -> Mapping[str, Any]:
        """Values of the engine's own keys, which only the engine reads, by key."""
        return self.__pydantic_extra__ or {}

    def check(self, engine: str) -> None:
        """Validate the engine's own keys by the engine's schema, if it has one.

        Parameters
        ----------
        engine
            Name of the engine, as for :func:`engine_of`.

        Raises
        ------
        ValueError
            If a key is wrong; the message names the first wrong key.
        """
        schema = getattr(engine_of(engine), "options", None)
        if schema is None:
            return
        try:
            schema.model_validate(dict(self.own))
        except ValidationError as error:
            raise ValueError(str(explain(error, "Architecture"))) from None


NETWORK = "config.json"
"""Name of the file, in the folder of a trial or member, with its network as HydraGNN's JSON."""
_Section = TypeVar("_Section", bound=Section)
# Keys of `Training` and its sections that are read only with some values of another key.
_READ_WITH: dict[type[Section], dict[str, tuple[str, tuple[Any, ...]]]] = {
    Training: {
        "patience": ("EarlyStopping", (True,)),
        "nll_beta": ("loss_function_type", ("GaussianNLLLoss",)),
    },
    Scheduler: {
        "factor": ("type", ("ReduceLROnPlateau",)),
        "patience": ("type", ("ReduceLROnPlateau",)),
        "min_lr": ("type", ("ReduceLROnPlateau", "cosine")),
    },
    Sharding: {
        "group": ("strategy", ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2")),
    },
}


class VariablesOfInterest(Section):
    """`NeuralNetwork.Variables_of_interest`: the network's inputs and outputs."""

    input_node_features: tuple[int, ...] = (0,)
    """Columns of the node features that the network reads."""
    output_names: tuple[str, ...] = Field(min_length=1)
    """Name in the store of the target of each output. The target of a potential is `energy`,
    whatever name is given."""
    type: tuple[Literal["graph", "node"], ...]
    """Level of each output."""
    output_dim: tuple[int, ...] | None = None
    """Number of components of each output. By default as in the store."""
    output_index: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Index of each output among the features of graphs or nodes. Read with ``format: hydragnn``
    where a file has no ``y_loc``."""
    graph_feature_dims: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    """Number of components of each graph feature in ``y``. Read with ``output_index``."""
    node_feature_dims: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    """Number of components of each node feature in ``x``. Read with ``output_index``."""

    unused, refused = IGNORED["Variables_of_interest"], REFUSED["Variables_of_interest"]

    def _conflicts(self) -> Iterator[str]:
        if len(self.type) != len(self.output_names):
            yield "type needs one entry ('graph' or 'node') for each of output_names"
        if self.output_index is not None and len(self.output_index) != len(self.output_names):
            yield "output_index needs one entry for each of output_names"


class NetworkConfig(Section):
    """`NeuralNetwork` section of a HydraGNN file, whatever builds the network.

    The builder is this package or an engine, an external library.
    """

    Architecture: CommonArchitecture
    """Layers of the network."""
    Variables_of_interest: VariablesOfInterest
    """Inputs and outputs of the network."""
    Training: Training
    """Loss, optimiser, batches and length of training."""

    unused, refused = IGNORED["NeuralNetwork"], REFUSED["NeuralNetwork"]

    def to_json(self) -> dict[str, Any]:
        """Return the section's given keys as JSON values, which :func:`load_network` accepts."""
        return self.model_dump(mode="json", exclude_unset=True)

    def with_accumulation(self, steps: int) -> NetworkConfig:
        """Return a copy of the section with ``steps`` micro-batches per training step on each GCD.

        Micro-batches are the parts of a step that a GCD computes in turn.
        """
        training = self.Training.model_copy(update={"accumulation_steps": steps})
        return self.model_copy(update={"Training": training})

    @property
    @abstractmethod
    def branches(self) -> int:
        """Number of branches of output heads, one for each data set with its own statistics."""

    @property
    @abstractmethod
    def encodings(self) -> int:
        """Number of columns of positional encodings that the network reads; 0 if it reads none."""

    @property
    def kind(self) -> str:
        """Message-passing type of the network, preceded by the name of its engine if it has one.

        Networks of one kind take the same time for the same work.
        """
        return self.kind_of(str(getattr(self.Architecture, "mpnn_type", "")))

    def kind_of(self, mpnn_type: str) -> str:
        """Return the :attr:`kind` that the network would have with another message-passing type."""
        return mpnn_type

    def effective(self) -> NetworkConfig:
        """Return a copy of the section in which every key without effect has its default value."""
        training = self.Training
        sections = {
            name: None if section is None else _as_read(section)
            for name, section in _sections(training).items()
        }
        if training.is_sharded:
            sections["ddp"] = DDP()
        else:
            sections["Optimizer"] = _reset(training.Optimizer, ["use_zero_redundancy"])
        return self.model_copy(
            update={
                "Architecture": _reset(self.Architecture, self._unread),
                "Training": _as_read(training).model_copy(update=sections),
            }
        )

    def unread_keys(self) -> set[str]:
        """Return the dotted paths of given keys that have no effect, given the other values."""
        training = self.Training
        unread = {
            f"Architecture.{key}" for key in self._unread & self.Architecture.model_fields_set
        }
        places = {f"Training.{name}": section for name, section in _sections(training).items()}
        for place, section in {"Training": training, **places}.items():
            if section is not None:
                unread |= {f"{place}.{key}" for key in _unread(section) & section.model_fields_set}
        if training.is_sharded:
            unread |= {f"Training.ddp.{key}" for key in training.ddp.model_fields_set}
        if training.Optimizer.use_zero_redundancy and not training.is_sharded:
            unread.add("Training.Optimizer.use_zero_redundancy")
        return unread

    @property
    def _unread(self) -> set[str]:
        return set()

    @model_validator(mode="after")
    def _one_energy(self) -> NetworkConfig:
        if not self.Architecture.enable_interatomic_potential:
            return self
        # HydraGNN compares it with the energy whatever its name, which varies among its files.
        energy = self.Variables_of_interest.model_copy(update={"output_names": (ENERGY,)})
        return self.model_copy(update={"Variables_of_interest": energy})

    def _conflicts(self) -> Iterator[str]:
        architecture, asked = self.Architecture, self.Variables_of_interest
        weights = architecture.task_weights
        if weights is not None and len(weights) != len(asked.type):
            yield "Architecture.task_weights needs one weight per output"
        if weights is not None and (min(weights) < 0 or max(weights) <= 0):
            yield "Architecture.task_weights must not be negative, and one above zero"
        if not architecture.enable_interatomic_potential:
            return
        if len(asked.output_names) != 1:
            yield "enable_interatomic_potential takes exactly one output, the energy; forces follow"
        noisy = self.Training.loss_function_type == "GaussianNLLLoss"
        if noisy and architecture.stress_weight > 0:
            yield (
                "Training.loss_function_type = 'GaussianNLLLoss' does not fit "
                "Architecture.stress_weight: atoms have noise of energies and forces, not of the "
                "stress; set stress_weight to 0, or write 'mse', 'mae' or 'smooth_l1'"
            )


class HydraNetwork(NetworkConfig):
    """Section `NeuralNetwork` of a network that this package builds."""

    Architecture: Architecture
    """Layers of the network."""

    @model_validator(mode="after")
    def _zero_shards(self) -> HydraNetwork:
        training = self.Training
        is_asked = training.Optimizer.use_zero_redundancy and not training.task_parallel
        if "sharding" in training.model_fields_set or not is_asked:
            return self
        shards = {"sharding": Sharding(strategy="SHARD_GRAD_OP")}
        return self.model_copy(update={"Training": training.model_copy(update=shards)})

    @property
    def branches(self) -> int:
        return self.Architecture.output_heads.branches

    @property
    def encodings(self) -> int:
        return self.Architecture.encodings

    @property
    def _unread(self) -> set[str]:
        unread = self.Architecture.unread()
        if "graph" not in self.Variables_of_interest.type:
            unread |= {"graph_pooling"}
        return unread

    def _conflicts(self) -> Iterator[str]:
        yield from super()._conflicts()
        for kind in self.Variables_of_interest.type:
            if getattr(self.Architecture.output_heads, kind) is None:
                yield (
                    f"Architecture.output_heads has no {kind!r} head, but "
                    f"Variables_of_interest.type asks for one"
                )


class EngineNetwork(NetworkConfig):
    """Section `NeuralNetwork` of a network that an engine (external library) builds."""

    engine: str = Field(examples=list(ENGINES))
    """Builder of the network: your installed HydraGNN (``hydragnn``), or a function of your own
    (``module:build``). By default this package builds the network."""
    Architecture: EngineArchitecture
    """Keys of the engine, and keys that the store and the loss read."""

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, name: str) -> str:
        engine_of(name)
        return name

    def _conflicts(self) -> Iterator[str]:
        yield from super()._conflicts()
        if self.Training.is_sharded:
            yield (
                f"Training.sharding divides networks that are built here, and engine is "
                f"{self.engine}, whose network may leave weights out of a step or normalise by "
                f"running means; write NO_SHARD"
            )
        if self.Training.task_parallel:
            yield (
                f"Training.task_parallel is for networks that are built here, whose heads are "
                f"known, and engine is {self.engine}; remove it"
            )
        self.Architecture.check(self.engine)

    @property
    def branches(self) -> int:
        return self.Architecture.branches

    @property
    def encodings(self) -> int:
        """Number of columns of positional encodings that HydraGNN's key `pe_dim` asks for.

        It is 0 without the attention `GPS`, which alone reads them.
        """
        own = self.Architecture.own
        asked = own.get("pe_dim") if own.get("global_attn_engine") == GPS else 0
        return asked if isinstance(asked, int) else 0

    def kind_of(self, mpnn_type: str) -> str:
        """Return the :attr:`kind` that the network would have with another message-passing type."""
        return f"{self.engine} {mpnn_type}".rstrip()


def _sections(training: Training) -> dict[str, Section | None]:
    """Return the sections inside `Training` by key; None for a section that is not given."""
    return {name: getattr(training, name) for name in ("Optimizer", "Scheduler", "sharding", "ddp")}


def _as_read(section: _Section) -> _Section:
    """Return a section in which every key without effect has its default value."""
    return _reset(section, _unread(section))


def _unread(section: Section) -> set[str]:
    conditions = _READ_WITH.get(type(section), {}).items()
    return {k for k, (key, read) in conditions if getattr(section, key) not in read}


def _reset(section: _Section, keys: Iterable[str]) -> _Section:
    fields = type(section).model_fields
    return section.model_copy(update={key: fields[key].default for key in keys})


def network_section(values: Mapping[str, Any], source: object) -> dict[str, Any]:
    """Return the `NeuralNetwork` section of a HydraGNN configuration, before validation.

    The sections `Verbosity`, `Dataset` and `Visualization` steer HydraGNN's own drivers; here the
    run configuration takes their place.

    Parameters
    ----------
    values
        Content of the HydraGNN file.
    source
        Name of the file, for errors.

    Raises
    ------
    InputError
        If the section is missing or no mapping, or there is an unknown key beside it.
    """
    if "NeuralNetwork" not in values:
        raise InputError(f"{source}: the key 'NeuralNetwork' is required, as in a HydraGNN file")
    for key in values:
        if key not in {"NeuralNetwork", "Verbosity", "Dataset", "Visualization"}:
            raise InputError(f"{source}: unknown key {key!r} beside 'NeuralNetwork'; remove it")
    section = values["NeuralNetwork"]
    if not isinstance(section, Mapping):
        raise InputError(f"{source}: NeuralNetwork must be a mapping of sections")
    return dict(section)


def load_network(
    network: NetworkConfig | Mapping[str, Any] | str | Path, source: object = "network"
) -> NetworkConfig:
    """Read and validate a network configuration of HydraGNN; return it as a typed section.

    Parameters
    ----------
    network
        Path of a HydraGNN JSON file, the content of such a file, its `NeuralNetwork` section, or an
        already validated configuration.
    source
        Name of the configuration in errors, if it is not a path.

    Raises
    ------
    InputError
        If a key is unknown, missing, of the wrong type, or cannot be honoured.
    """
    if isinstance(network, NetworkConfig):
        return network
    if isinstance(network, (str, os.PathLike)):
        source = network
        network = read_json(Path(network))
    if not isinstance(network, Mapping):
        raise InputError(f"{source}: must hold a mapping, as HydraGNN's JSON does")
    section = network if "Architecture" in network else network_section(network, source)
    kind = EngineNetwork if "engine" in section else HydraNetwork
    config: NetworkConfig = validate(kind, dict(section), source)
    return config


def write_network(folder: str | Path, network: dict[str, Any]) -> None:
    """Write a network's configuration as HydraGNN's JSON into the folder of a trial or member.

    An existing file stays as it is.

    Parameters
    ----------
    folder
        Folder of the trial or member; made if it is missing.
    network
        `NeuralNetwork` section of the network, as plain values.
    """
    file = Path(folder) / NETWORK
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        write_json(file, {"NeuralNetwork": network})
