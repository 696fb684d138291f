"""Where structures come from: a section for each format, told apart by ``format``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.graph_sources import (
    CfgSource,
    FileName,
    FilesSection,
    HydragnnSource,
    LsmsSource,
    MeshSource,
    PygSource,
    VoronoiSource,
)


class GeneratedSource(Section):
    """Random fcc alloys, strained and rattled, labelled by ASE's EMT calculator."""

    format: Literal["emt_alloys"]
    structures: int = Field(default=300, ge=3)
    """How many structures to generate."""
    elements: tuple[Literal["Al", "Cu", "Ag", "Au", "Ni", "Pd", "Pt"], ...] = (
        "Cu",
        "Ni",
        "Pd",
        "Ag",
        "Pt",
        "Au",
    )
    """Chemical elements to draw from (those EMT knows as fcc metals)."""
    atoms: tuple[int, int] = (8, 64)
    """Smallest and largest number of atoms in a cell."""

    @field_validator("elements")
    @classmethod
    def _some_elements(cls, elements: tuple[str, ...]) -> tuple[str, ...]:
        if not elements or len(set(elements)) != len(elements):
            raise ValueError("give at least one element, each once")
        return elements

    @field_validator("atoms")
    @classmethod
    def _ordered(cls, atoms: tuple[int, int]) -> tuple[int, int]:
        if not 8 <= atoms[0] <= atoms[1] <= 64:
            raise ValueError("give [smallest, largest] with 8 <= smallest <= largest <= 64")
        return atoms


class StructureFiles(FilesSection):
    """What all formats of labelled structures in files have in common."""

    group: str | None = Field(default=None, min_length=1)
    """Key whose value is the group of a structure."""
    branches: tuple[FileName, ...] | None = Field(default=None, min_length=1)
    """Patterns of file names, one for each branch of a network with several branches, in their
    order. Each file must match exactly one."""


class AseSource(StructureFiles):
    """Anything ASE reads.

    Labels and groups are looked for in the results of a calculation, in what a file says of a whole
    structure (`Atoms.info`), in its columns (`Atoms.arrays`), and in the key-value pairs and data
    of an ase.db.
    """

    format: Literal["ase"]


class CsvSource(StructureFiles):
    """Tables with a structure in each row; labels and groups are columns."""

    format: Literal["csv"]
    structure: str = Field(min_length=1)
    """Column of the structures: CIF text, or paths of structure files relative to the table."""

    @model_validator(mode="after")
    def _of_structures(self) -> CsvSource:
        for name, target in self.targets.items():
            if target.level == "node":
                raise ValueError(f"targets.{name}.level: a cell holds one number; leave level out")
        return self


class JsonSource(StructureFiles):
    """Lists of records, or tables of columns, index and data, with pymatgen's structure dicts.

    Labels and groups are keys of a record, keys of its `outputs`, or dotted paths.
    """

    format: Literal["json"]
    structure: str = Field(default="structure", min_length=1)
    """Key or column of the structures."""


Source = Annotated[
    GeneratedSource
    | AseSource
    | CsvSource
    | JsonSource
    | LsmsSource
    | CfgSource
    | PygSource
    | HydragnnSource
    | VoronoiSource
    | MeshSource,
    Field(discriminator="format"),
]
"""The formats; each has a class of its own in ``hydragnn_flow.data.sources``."""
