"""Labels that structures have, with level, components and unit as far as they can be told."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.sources import Level
from hydragnn_flow.config.targets import TargetConfig, good_names
from hydragnn_flow.data.sources.labels import shaped
from hydragnn_flow.data.sources.structures import Found

_UNITS = {
    "energy": "eV",
    "forces": "eV/Å",
    "stress": "eV/Å³",
    "dipole": "e·Å",
    "charges": "e",
    "magmom": "μB",
    "magmoms": "μB",
}
"""Units of results of calculations in ASE; the records of mlearn have the first two."""
_NO_LABELS = {"", "index", "id", "frame", "step", "number", "row", "nsites", "natoms", "num_atoms"}
_NO_LABELS |= {"n_atoms", "nelements", "spacegroup", "spacegroup_number", "spacegroup_kinds"}
_NO_LABELS |= {"free_energy", "tags", "momenta", "initial_magmoms", "initial_charges", "move_mask"}
_LARGEST_VECTOR = 9


@dataclass(frozen=True)
class Label:
    """A quantity that all structures looked at have."""

    name: str
    """For a target."""
    key: str
    """In the files."""
    level: Level
    dim: int
    unit: str
    """Empty if the files do not tell."""


def find_labels(structures: Sequence[Found]) -> tuple[list[Label], dict[str, int]]:
    """Quantities that could be learnt, in the order of the files.

    Numbers of one shape count, others than names and counters: whole numbers that grow by one from
    each structure to the next.

    Returns
    -------
    labels
        Those that every structure has.
    partial
        Keys of others, and how many structures have them.
    """
    found, partial = [], {}
    for key in dict.fromkeys(key for one in structures for key in one.values):
        if key.lower() in _NO_LABELS or key.lower().endswith("_id"):
            continue
        values = [value for one in structures if (value := _label(one, key)) is not None]
        if not values or _is_counter(values):
            continue
        of_atoms = {value.ndim == 2 for value in values}
        dims = {value.shape[-1] for value in values}
        if len(of_atoms) > 1 or len(dims) > 1 or (dim := dims.pop()) > _LARGEST_VECTOR:
            continue
        if len(values) < len(structures):
            partial[key] = len(values)
            continue
        level: Level = "node" if of_atoms.pop() else "graph"
        found.append(Label(_name(key), key, level, dim, _unit(key)))
    return found, partial


def _label(one: Found, key: str) -> NDArray[np.float64] | None:
    value: Any = one.values.get(key)
    if value is None or isinstance(value, (bool, np.bool_)):
        return None
    try:
        array = shaped(value, one.levels.get(key), len(one.atoms))
    except (TypeError, ValueError):
        return None
    fits = array.size > 0 and np.isfinite(array).all()
    return array if fits and (array.ndim == 1 or len(array) == len(one.atoms)) else None


def _is_counter(values: Sequence[NDArray[np.float64]]) -> bool:
    if len(values) < 3 or any(value.shape != (1,) for value in values):
        return False
    return bool((np.diff(np.concatenate(values)) == 1).all())


def _unit(key: str) -> str:
    """What the key says: ASE's own, or one in brackets at its end."""
    brackets = re.search(r"[\[(]\s*([^\])]+?)\s*[\])]\s*$", key)
    return brackets[1] if brackets else _UNITS.get(key, "")


def _name(key: str) -> str:
    """A name that a target may have."""
    bare = re.sub(r"[\[(][^\])]*[\])]\s*$", "", key)
    name = re.sub(r"\W+", "_", bare, flags=re.ASCII).strip("_") or "target"
    try:
        good_names({name: TargetConfig(unit="")})
    except ValueError:
        return f"target_{re.sub('index|batch', '', name)}"
    return name
