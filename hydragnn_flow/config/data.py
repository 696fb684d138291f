"""Data of a run: where structures come from, how they are split, stored and read."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.sources import AnySource

Mode = Literal["memory", "random", "stream"]

_DEFAULT_VAL = 0.1


class SplitConfig(Section):
    """Fractions of the training input to set aside, drawn by the run's seed."""

    by: Literal["random", "composition", "group"] = "random"
    """How structures are drawn: ``random``; ``composition``, so that every split has the same
    fraction of each composition; or ``group``, whole groups that ``source.group`` names."""
    val: float | None = Field(default=None, gt=0, lt=1)
    """Fraction for validation, which chooses epochs and trials. The default is a tenth, or none if
    the source gives a validation set."""
    calibration: float | None = Field(default=None, gt=0, lt=1)
    """Fraction that serves nothing but the weights and error bars of the ensemble. Without it and
    without such a set of the source, they come from validation, by cross-fitting."""
    test: float | None = Field(default=None, gt=0, lt=1)
    """Fraction for the final test. Required unless the source gives a test set."""


class DataConfig(Section):
    """One source of labelled structures."""

    source: AnySource
    path: Path | None = None
    """Directory the source's files are in (`--data` on the command line)."""
    split: SplitConfig = Field(default=SplitConfig(), validate_default=True)
    dtypes: Literal["hydragnn", "compact"] = "hydragnn"
    """How the store keeps numbers: ``hydragnn`` each in its own type, ``compact`` integers of nodes
    and edges in the narrowest type that holds them."""
    mode: Mode = "memory"
    """How training reads the store: ``memory`` from memory common to the processes of a node. If
    memory is too small, ``random`` reads single graphs from disk and ``stream`` reads blocks."""

    @field_validator("split")
    @classmethod
    def _one_set_for_each_role(cls, split: SplitConfig, info: ValidationInfo) -> SplitConfig:
        source = info.data.get("source")
        if source is None:  # wrong itself, which is said first
            return split
        given = source.roles[1:]
        for role in given:
            if getattr(split, role) is not None:
                raise ValueError(f"{role} is a set the source gives; remove the fraction")
        if "val" not in given and split.val is None:
            split = split.model_copy(update={"val": _DEFAULT_VAL})
        if "test" not in given and split.test is None:
            raise ValueError(
                "test is needed, as the source gives no test set; give a fraction such as 0.1"
            )
        fractions = (split.val, split.calibration, split.test)
        if sum(filter(None, fractions)) >= 1:
            raise ValueError("the fractions leave nothing to train on; give smaller ones")
        if split.by == "group" and not source.has_groups:
            raise ValueError("by = group needs source.group, the key of each structure's group")
        if split.by == "composition" and not source.of_atoms:
            raise ValueError("by = composition needs structures of atoms; draw at random")
        if split.by != "random" and not any(fractions):
            raise ValueError("by has nothing to draw, as the source gives all splits; remove it")
        return split

    @property
    def folder(self) -> Path:
        """Directory that the source's file names are relative to."""
        return (self.path or Path()).absolute()
