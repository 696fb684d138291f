"""Labels of structures, with level, components and unit as far as the files state them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.sources import Level
from hydragnn_flow.config.targets import TargetConfig, good_names
from hydragnn_flow.data.sources.arrays import shaped
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
"""Units of ASE's results of calculations; the first two are also those of mlearn's records."""
_NO_LABELS = {"", "index", "id", "frame", "step", "number", "row", "nsites", "natoms", "num_atoms"}
_NO_LABELS |= {"n_atoms", "nelements", "spacegroup", "spacegroup_number", "spacegroup_kinds"}
_NO_LABELS |= {"free_energy", "tags", "momenta", "initial_magmoms", "initial_charges", "move_mask"}


@dataclass(frozen=True)
class Label:
    """Quantity that all inspected structures have."""

    name: str
    """Name of a target for it."""
    key: str
    """Name in the files."""
    level: Level
    dim: int
    unit: str
    """Unit; empty if the files do not state it."""


def find_labels(structures: Sequence[Found]) -> tuple[list[Label], dict[str, int]]:
    """Return quantities that could be learnt, in the order of the files.

    Numbers of one shape count, except names and counters (whole numbers that grow by one from each
    structure to the next).

    Returns
    -------
    labels
        Quantities that every structure has.
    partial
        Keys of other quantities, and the number of structures that have them.
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
        if len(of_atoms) > 1 or len(dims) > 1 or (dim := dims.pop()) > 9:
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
    """Return the unit of a key: ASE's, or one in brackets at its end."""
    brackets = re.search(r"[\[(]\s*([^\])]+?)\s*[\])]\s*$", key)
    return brackets[1] if brackets else _UNITS.get(key, "")


def _name(key: str) -> str:
    """Return a valid target name for a key."""
    bare = re.sub(r"[\[(][^\])]*[\])]\s*$", "", key)
    name = re.sub(r"\W+", "_", bare, flags=re.ASCII).strip("_") or "target"
    try:
        good_names({name: TargetConfig(unit="")})
    except ValueError:
        return f"target_{re.sub('index|batch', '', name)}"
    return name
