"""Sources: where structures come from, each format in a file of its own.

A format is one file of ``hydragnn_flow.data.sources``, which holds its section of the configuration
and the class that reads it, and one line of `FORMATS`. A user's own is named as ``module:Class``.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import PlainValidator, SerializeAsAny, ValidationError

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.domain import did_you_mean
from hydragnn_flow.config.user_classes import import_class

if TYPE_CHECKING:
    from hydragnn_flow.config.network import NetworkConfig

FORMATS: dict[str, str] = {
    "emt_alloys": "hydragnn_flow.data.sources.emt_alloys:EmtSource",
    "ase": "hydragnn_flow.data.sources.ase_files:AseSource",
    "csv": "hydragnn_flow.data.sources.csv_tables:CsvSource",
    "json": "hydragnn_flow.data.sources.json_records:JsonSource",
    "lsms": "hydragnn_flow.data.sources.lsms:LsmsSource",
    "cfg": "hydragnn_flow.data.sources.cfg:CfgSource",
    "pyg": "hydragnn_flow.data.sources.pyg:PygSource",
    "hydragnn": "hydragnn_flow.data.sources.hydragnn:HydragnnSource",
    "voronoi": "hydragnn_flow.data.sources.voronoi:VoronoiSource",
    "mesh": "hydragnn_flow.data.sources.mesh:MeshSource",
}
"""Format -> its section. Configuration, docs and readers follow from this table."""

Role = Literal["train", "val", "calibration", "test"]
"""Purpose of structures; ``train`` also gives the splits without structures of their own."""
Level = Literal["graph", "node"]


class SourceSection(Section):
    """Section `data.source` of a run configuration: a format and its keys.

    A subclass adds keys as fields, says by :meth:`open` who reads them, and overrides the other
    methods where their answer is another. Its module is imported to check a configuration: import
    torch, ASE and the like inside functions. pytest's
    :class:`hydragnn_flow.testing.sources.SourceSuite` checks the rest.
    """

    format: str
    """Name of the format, or ``module:Class`` of a section of your own."""

    reads: ClassVar[str] = ""
    """Files that the source reads, for the table in docs/data.md."""
    labels: ClassVar[str] = ""
    """Place of its targets in the files, for the same table."""
    of_atoms: ClassVar[bool] = True
    """Whether nodes are atoms, so that structures have compositions."""

    @abstractmethod
    def open(self, folder: Path, seed: int) -> Any:
        """Make the reader, a :class:`hydragnn_flow.data.sources.Source`; no file is opened yet.

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
        """Check quickly that file names match files, before any is opened.

        Raises
        ------
        InputError
            Naming the path and the key.
        """

    def for_network(self, network: NetworkConfig) -> SourceSection:
        """The same section, with what it needs to know of the network that is to be trained.

        Raises
        ------
        ValueError
            If it cannot serve the network.
        """
        return self

    def check_in_place(self) -> None:
        """Refuse `data.in_place` where training cannot read the files as they are.

        Raises
        ------
        ValueError
            Saying why.
        """
        raise ValueError(
            f"the format {self.format} holds no graphs that training could read in place; only "
            "hydragnn does, so leave in_place out"
        )

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles with structures of their own; a split without is drawn from training."""
        return ("train",)

    @property
    def target_levels(self) -> dict[str, Level | None] | None:
        """Level of each target, None if unknown; None if the targets are unknown."""
        return None

    @property
    def has_groups(self) -> bool:
        """Whether structures come in groups, for `split.by: group`."""
        return getattr(self, "group", None) is not None


def source_section(values: Any) -> SourceSection:
    """Check the section of a source by the class that its format names.

    Raises
    ------
    ValueError
        If there is no such format or class.
    ValidationError
        If a key is wrong.
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
    """The section of a format.

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
"""A section of the class that its format names."""
