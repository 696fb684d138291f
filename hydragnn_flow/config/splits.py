"""Division of structures into splits: `data.split`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.sources import SourceSection


class SplitConfig(Section):
    """Fractions of the training input to set aside, drawn by the run's seed."""

    by: Literal["random", "composition", "group"] = "random"
    """Sampling of the splits: ``random``; ``composition``, the same fraction of each composition in
    every split; or ``group``, whole groups that ``source.group`` names."""
    val: float | None = Field(default=None, gt=0, lt=1)
    """Fraction for validation, which chooses epochs and trials. The default is a tenth, or none if
    the source gives a validation set."""
    calibration: float | None = Field(default=None, gt=0, lt=1)
    """Fraction used only for weights and error bars of the ensemble. Without it, and without such a
    set in the source, they are cross-fitted on the validation split."""
    test: float | None = Field(default=None, gt=0, lt=1)
    """Fraction for the final test. Required unless the source gives a test set."""

    def of(self, source: SourceSection) -> SplitConfig:
        """Return the fractions for a source; the default applies if it gives no validation set.

        Raises
        ------
        ValueError
            If the fractions do not fit the source.
        """
        given = source.roles[1:]
        for role in given:
            if getattr(self, role) is not None:
                raise ValueError(f"{role} is a set the source gives; remove the fraction")
        split = self
        if "val" not in given and split.val is None:
            split = split.model_copy(update={"val": 0.1})
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

    def of_one_of_several(self, source: SourceSection) -> SplitConfig:
        """Return the fractions shared by all data sets, for one: without sets that it brings
        itself.

        Raises
        ------
        ValueError
            If the fractions do not fit the source.
        """
        own: dict[str, None] = dict.fromkeys(source.roles[1:])
        shared = self.model_copy(update=own)
        if not any((shared.val, shared.calibration, shared.test)) and {"val", "test"} <= own.keys():
            shared = shared.model_copy(update={"by": "random"})
        return shared.of(source)
