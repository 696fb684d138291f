"""Targets of a source: units of the labels, and their keys in the files."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    model_validator,
)

from hydragnn_flow.config.base import Section

BRANCH = "dataset_name"
"""HydraGNN's name of the key that holds the number of a graph's branch of output heads."""

# Keys that a graph uses for something else, or that PyG treats specially.
_TAKEN = frozenset(
    {"x", "pos", "cell", "pbc", "edge_index", "edge_shifts", "edge_attr", "graph_id", "y", "y_loc"}
    | {"ptr", "face", "num_nodes"}
    | {BRANCH, "graph_attr", "pe", "rel_pe"}
)
# PyG adds numbers of nodes or graphs to keys with one of these in their names.
_TAKEN_WORDS = ("index", "batch")
DIVIDED_BY_ATOMS = "_scaled_num_nodes"
"""HydraGNN's mark in the name of a quantity that is divided by the number of atoms."""


class TargetConfig(Section):
    """Target of a source; a bare unit is enough."""

    unit: str
    """Unit of the numbers in the file."""
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
        if not isinstance(value, (dict, cls)):
            raise ValueError(f"give the unit, or unit and key, got {value!r}")
        return value

    @model_validator(mode="after")
    def _extensive_by_structure(self) -> TargetConfig:
        if self.extensive and self.level == "node":
            raise ValueError(
                "extensive applies to targets of structures, and this one is of atoms; remove it"
            )
        return self

    @property
    def is_extensive(self) -> bool | None:
        """Value of ``extensive``, or False if the key has HydraGNN's mark; None if unknown."""
        return False if DIVIDED_BY_ATOMS in (self.key or "") else self.extensive


def is_taken(name: str) -> bool:
    """Return True if graphs use the name of a key for something else."""
    return name in _TAKEN or any(word in name for word in _TAKEN_WORDS)


def good_names(targets: dict[str, TargetConfig]) -> dict[str, TargetConfig]:
    """Return the targets after checking that graphs do not use their names for something else.

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
        if target.extensive and DIVIDED_BY_ATOMS in (target.key or name):
            raise ValueError(
                f"{name} cannot be extensive: {target.key or name!r} is divided by the number of "
                f"atoms; remove extensive"
            )
    return targets


Targets = Annotated[dict[str, TargetConfig], Field(min_length=1), AfterValidator(good_names)]
"""Description of each target, by name."""
