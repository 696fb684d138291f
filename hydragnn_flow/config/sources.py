"""Sources and targets of `data`: formats, files, splits, units and levels.

A format is one file of ``hydragnn_flow.data.sources``, which holds its section of the configuration
and the class that reads it, and one line of `FORMATS`. A user's own format is named as
``module:Class``.
"""

from __future__ import annotations

import inspect
import re
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    SerializeAsAny,
    ValidationError,
    model_validator,
)

from hydragnn_flow.config.base import Section, import_class
from hydragnn_flow.config.domain import did_you_mean
from hydragnn_flow.config.units import conversion, energy_unit

if TYPE_CHECKING:
    from hydragnn_flow.config.network import NetworkConfig

FORMATS: dict[str, str] = {
    "emt_alloys": "hydragnn_flow.data.sources.emt_alloys:EmtSource",
    "ase": "hydragnn_flow.data.sources.ase_files:AseSource",
    "csv": "hydragnn_flow.data.sources.csv_tables:CsvSource",
    "json": "hydragnn_flow.data.sources.json_records:JsonSource",
    "lsms": "hydragnn_flow.data.sources.raw:LsmsSource",
    "cfg": "hydragnn_flow.data.sources.raw:CfgSource",
    "pyg": "hydragnn_flow.data.sources.pyg:PygSource",
    "hydragnn": "hydragnn_flow.data.sources.hydragnn:HydragnnSource",
    "voronoi": "hydragnn_flow.data.sources.voronoi:VoronoiSource",
    "mesh": "hydragnn_flow.data.sources.mesh:MeshSource",
}
"""Section class of each format, as ``module:Class``. Configuration, docs and readers follow from
this table."""

Role = Literal["train", "val", "calibration", "test"]
"""Split that structures of a source are for. Splits for which the source has no structures are
drawn from those for ``train``."""
TRAIN, VALIDATION, TEST = "trainset", "valset", "testset"
"""HydraGNN's names of the training, validation and test split."""
CALIBRATION = "calibrationset"
"""Split used only for the weights and error bars of an ensemble; HydraGNN has none."""
SPLIT_OF_ROLE: dict[Role, str] = {
    "train": TRAIN,
    "val": VALIDATION,
    "calibration": CALIBRATION,
    "test": TEST,
}
"""Name of the split by role of its structures in a source."""
Level = Literal["graph", "node"]


class SourceSection(Section):
    """Base class of the section `data.source` of a run configuration: a format and its keys.

    A subclass adds keys as fields, returns its reader from :meth:`open`, and overrides other
    methods where it differs. Its module is imported to check a configuration, so import torch, ASE
    and the like inside functions. The pytest class
    :class:`hydragnn_flow.testing.sources.SourceSuite` tests subclasses.
    """

    format: str
    """Name of the format, or ``module:Class`` of a section of your own."""

    reads: ClassVar[str] = ""
    """Files that the source reads, for the table in docs/data.md."""
    labels: ClassVar[str] = ""
    """Location of the targets in the files, for the same table."""
    of_atoms: ClassVar[bool] = True
    """True if nodes are atoms, so that structures have compositions."""

    @abstractmethod
    def open(self, folder: Path, seed: int) -> Any:
        """Return the reader of the source's structures, without opening a file.

        The reader is a :class:`hydragnn_flow.data.sources.base.Source`.

        Parameters
        ----------
        folder
            Directory that file names are relative to.
        seed
            Seed of the run, for structures that are generated.

        Raises
        ------
        InputError
            If the section asks for something impossible.
        """

    def check_files(self, folder: Path) -> None:
        """Check quickly that the section's file names match files, before data are read.

        Parameters
        ----------
        folder
            Directory that file names are relative to.

        Raises
        ------
        InputError
            If a name matches nothing; the message names path and key.
        """

    def for_network(self, network: NetworkConfig) -> SourceSection:
        """Return the section, completed by what the source needs to know of the network.

        Parameters
        ----------
        network
            Network that is to be trained on the source.

        Raises
        ------
        ValueError
            If the source cannot provide what the network reads.
        """
        return self

    def check_in_place(self) -> None:
        """Check that training can read the source's files in place (`data.in_place`), uncopied.

        Raises
        ------
        ValueError
            If training cannot read the files in place; the message says why.
        """
        raise ValueError(
            f"the format {self.format} holds no graphs that training could read in place; only "
            "hydragnn does, so leave in_place out"
        )

    @property
    def roles(self) -> tuple[Role, ...]:
        """Splits for which the source has structures of its own: ``train``, and perhaps others.

        Others are ``val``, ``calibration`` and ``test``. Splits that the source does not have are
        drawn from ``train``.
        """
        return ("train",)

    @property
    def target_levels(self) -> dict[str, Level | None] | None:
        """Level (graph or node) of each target by name; None for an unknown level.

        The result is None instead of a dict if the targets are unknown.
        """
        return None

    @property
    def has_groups(self) -> bool:
        """True if the source puts structures in groups, which `split.by: group` keeps together."""
        return getattr(self, "group", None) is not None


def source_section(values: Any) -> SourceSection:
    """Validate the section `data.source`; its class is the one that the key `format` names.

    Parameters
    ----------
    values
        Values of the section by key. A validated section is returned unchanged.

    Raises
    ------
    ValueError
        If ``values`` is no mapping.
    ValidationError
        If a key is wrong or missing, or there is no such format or class.
    """
    if isinstance(values, SourceSection):
        return values
    if not isinstance(values, dict):
        raise ValueError(f"must be a mapping with a format, got {values!r}")
    if "format" not in values:
        given = ", ".join(map(repr, values)) or "none"
        raise _wrong_format(f"this key is required; given are {given}", values)
    name = values["format"]
    try:
        kind = section_class(name)
    except ValueError as error:
        raise _wrong_format(str(error), name) from None
    return kind.model_validate(values)


def section_class(name: Any) -> type[SourceSection]:
    """Return the class of the section `data.source` for the format ``name``.

    Raises
    ------
    ValueError
        If ``name`` is neither a format nor ``module:Class`` of a `SourceSection`, or the class
        lacks the method `open`.
    """
    if not isinstance(name, str) or (name not in FORMATS and ":" not in name):
        known = ", ".join(map(repr, FORMATS))
        hint = did_you_mean(name, FORMATS) if isinstance(name, str) else ""
        raise ValueError(f"must be one of {known}, or module:Class, got {name!r}{hint}")
    kind = import_class(FORMATS.get(name, name))
    if not (inspect.isclass(kind) and issubclass(kind, SourceSection)):
        raise ValueError(f"{name} is not derived from {SourceSection.__module__}.SourceSection")
    if inspect.isabstract(kind):
        raise ValueError(f"{name} has no method {min(kind.__abstractmethods__)}; write it")
    return kind


def _wrong_format(message: str, value: Any) -> ValidationError:
    context = {"error": ValueError(message)}
    return ValidationError.from_exception_data(
        "source", [{"type": "value_error", "loc": ("format",), "input": value, "ctx": context}]
    )


AnySource = Annotated[SerializeAsAny[SourceSection], PlainValidator(source_section)]
"""Type of a field with the section of a source, whose class is the one that its `format` names."""


BRANCH = "dataset_name"
"""Key, with HydraGNN's name, of the index of a graph's branch of output heads."""

WEIGHT = "loss_weight"
"""Key of the weight of a graph's errors in the training loss; by default 1."""

# Keys that a graph uses for something else, or that PyG treats specially.
_TAKEN = frozenset(
    {"x", "pos", "cell", "pbc", "edge_index", "edge_shifts", "edge_attr", "graph_id", "y", "y_loc"}
    | {"ptr", "face", "num_nodes"}
    | {BRANCH, WEIGHT, "graph_attr", "pe", "rel_pe"}
)
# PyG adds an offset to the values of keys whose names contain one of these words, in a batch.
_TAKEN_WORDS = ("index", "batch")
DIVIDED_BY_ATOMS = "_scaled_num_nodes"
"""Part of a name by which HydraGNN marks a quantity that is divided by the number of atoms."""


def class_key(value: Any) -> str:
    """Return the class that a label names, the same for all spellings: ``1`` for 1.0 and true."""
    text = str(value).strip()
    text = {"true": "1", "yes": "1", "false": "0", "no": "0"}.get(text.lower(), text)
    return text[:-2] if re.fullmatch(r"-?\d+\.0", text) else text


ClassName = Annotated[
    str, BeforeValidator(lambda name: str(name).lower() if isinstance(name, bool) else str(name))
]
"""Type of a field with the name of a class, which may be written as a number, true or false."""


class TargetConfig(Section):
    """Target of a source: a labelled quantity that networks can learn, with its unit.

    Instead of a mapping, the unit alone is accepted too. A target of classes has no unit.
    """

    unit: str
    """Unit of the values. Required unless there are ``classes``."""
    unit_in_file: str | None = Field(default=None, min_length=1)
    """Unit of the values in the file if they are to be converted to ``unit``: of energies, forces,
    stresses or virials. By default it is ``unit``."""
    classes: tuple[ClassName, ...] = ()
    """Classes (categories) that the label names, such as ``[insulator, metal]``: text, whole
    numbers, or true and false, which are also 1 and 0. A network learns their probabilities."""
    key: str | None = Field(default=None, min_length=1)
    """Name of the label in the file; by default the name of the target."""
    level: Literal["graph", "node"] | None = None
    """``graph`` for one label per structure, ``node`` for one per atom. Needed only if the label's
    shape is misleading."""
    extensive: bool | None = None
    """True if a structure's value is a sum over its atoms; its error is then given per atom. By
    default only the target `energy` is extensive, unless its unit is one per atom."""

    @model_validator(mode="before")
    @classmethod
    def _unit_alone(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"unit": value}
        if isinstance(value, dict) and value.get("classes"):
            return {"unit": "", "extensive": False} | value
        if not isinstance(value, (dict, cls)):
            raise ValueError(f"give the unit, or unit and key, got {value!r}")
        return value

    def _conflicts(self) -> Iterator[str]:
        if self.extensive and self.level == "node":
            yield "extensive applies to targets of structures, and this one is of atoms; remove it"
        if not self.classes:
            return
        if self.unit or self.unit_in_file or self.extensive:
            yield "classes have no unit and are no sum over atoms; remove units and extensive"
        if len(set(map(class_key, self.classes))) < max(len(self.classes), 2):
            named = ", ".join(self.classes)
            yield f"classes must be two or more that differ, got {named}; correct them"

    @property
    def is_extensive(self) -> bool | None:
        """True if the target is a sum over atoms, False if it is not, None if not configured.

        It is False if ``key`` has HydraGNN's mark of quantities that are divided by the number of
        atoms, `DIVIDED_BY_ATOMS`; otherwise it is the value of ``extensive``.
        """
        return False if DIVIDED_BY_ATOMS in (self.key or "") else self.extensive


def is_virial(name: str, key: str) -> bool:
    """Return True if the label ``key`` in a file is a virial, from which the target is computed.

    The target is a stress: minus the virial over the volume, the sign that ASE and MACE give it.
    """
    return name == "stress" and "virial" in key.lower() and "stress" not in key.lower()


def unit_factor(name: str, key: str, unit_in_file: str | None, unit: str) -> float:
    """Return what labels of the target ``name`` under ``key`` are multiplied by: 1 by default.

    Raises
    ------
    ValueError
        If the unit in the file cannot be converted to that of the target.
    """
    if unit_in_file is None:
        return 1.0
    per_volume = "/Å³" if is_virial(name, key) else ""
    factor = conversion(unit_in_file + per_volume, unit)
    if factor is None:
        raise ValueError(
            f"{name}: unit_in_file {unit_in_file!r} of the label {key!r} cannot be converted to "
            f"{unit!r}; write units of one kind, of energies, forces or stresses, or convert it"
        )
    return factor


def is_taken(name: str) -> bool:
    """Return True if ``name`` cannot name a target, because graphs use it for something else."""
    return name in _TAKEN or any(word in name for word in _TAKEN_WORDS)


def good_names(targets: dict[str, TargetConfig]) -> dict[str, TargetConfig]:
    """Check that no target has a name that graphs use for something else; return the targets.

    Raises
    ------
    ValueError
        If a target's name or `extensive` is wrong; the message names the first.
    """
    for name, target in targets.items():
        taken = is_taken(name)
        if taken or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
            wrong = "means something else in a graph" if taken else "is not letters, digits and '_'"
            key = target.key or name
            raise ValueError(
                f"the name {name!r} {wrong}; choose another, with the file's name as its key: "
                f"my_target: {{unit: {target.unit!r}, key: {key!r}}}"
            )
        unit_factor(name, target.key or name, target.unit_in_file, target.unit)
        if (
            is_virial(name, target.key or name)
            and not target.unit_in_file
            and energy_unit(target.unit.rpartition("/")[0]) is None
        ):
            raise ValueError(
                f"{name} is computed from a virial, {target.key!r}, over the volume, but its unit "
                f"is {target.unit!r}; write the unit of the stress, as eV/Å³ of a virial in eV, or "
                f"give the key of a stress"
            )
        if target.extensive and DIVIDED_BY_ATOMS in (target.key or name):
            raise ValueError(
                f"{name} cannot be extensive: {target.key or name!r} is divided by the number of "
                f"atoms; remove extensive"
            )
    return targets


Targets = Annotated[dict[str, TargetConfig], Field(min_length=1), AfterValidator(good_names)]
"""Description of each target, by name."""
