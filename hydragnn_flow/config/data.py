"""Where the structures come from and how they are split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from hydragnn_flow.config.base import Section


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


class ExtxyzSource(Section):
    """Extended XYZ files, as ASE reads them."""

    format: Literal["extxyz"]
    train: str
    """File for training and validation."""
    test: str | None = None
    """File for the final test; without it a share of ``train`` is set aside."""
    targets: dict[str, str] = Field(default={"energy": "eV", "forces": "eV/Å"}, min_length=1)
    """Label name in the file -> its unit."""


class MlearnSource(Section):
    """JSON lists of the mlearn benchmark: a pymatgen-style structure and DFT outputs each."""

    format: Literal["mlearn"]
    train: str
    """File for training and validation."""
    test: str | None = None
    """File for the final test; without it a share of ``train`` is set aside."""


Source = Annotated[GeneratedSource | ExtxyzSource | MlearnSource, Field(discriminator="format")]


class SplitConfig(Section):
    """Shares of the structures set aside, drawn at random from the run's seed."""

    val: float = Field(default=0.1, gt=0, lt=1)
    """Share for validation: chooses epochs and trials, and calibrates the error bars."""
    test: float | None = Field(default=None, gt=0, lt=1)
    """Share for the final test; leave out where the source has a test file."""


class DataConfig(Section):
    """One source of labelled structures."""

    source: Source
    path: Path | None = None
    """Directory the source's files are in (`--data` on the command line)."""
    split: SplitConfig = SplitConfig()

    @model_validator(mode="after")
    def _one_test_set(self) -> DataConfig:
        has_file = getattr(self.source, "test", None) is not None
        if has_file and self.split.test is not None:
            raise ValueError("split.test and source.test both name a test set; keep one of them")
        if not has_file and self.split.test is None:
            raise ValueError("there is no test set; give split.test a share such as 0.1")
        if self.split.val + (self.split.test or 0.0) >= 1:
            raise ValueError("split.val and split.test leave nothing to train on")
        return self
