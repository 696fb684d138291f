"""What every source of structures hands over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import ase
import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many are done, and of how many."""


@dataclass(frozen=True)
class Labelled:
    """A structure with its labels."""

    atoms: ase.Atoms
    """Positions and cell in Å."""
    targets: dict[str, NDArray[np.float64]]
    """Labels: [d] for one of the whole structure, [n_atoms, d] for one of each atom."""
    origin: str
    """The file it comes from, as the user named it."""
    index: int
    """Its position there, from 0."""

    def __str__(self) -> str:
        return f"{self.origin}: structure {self.index}"


def check_labels(structures: Sequence[Labelled], units: Mapping[str, str]) -> dict[str, Target]:
    """Check every structure and say what its targets are.

    Parameters
    ----------
    structures
        At least one.
    units
        Unit of each target, by name.

    Returns
    -------
    dict
        Level, components and unit of each target.

    Raises
    ------
    InputError
        Naming file, structure and target, where a label is missing, is NaN or infinite, or differs
        in shape from that of the first structure.
    """
    targets: dict[str, Target] = {}
    for structure in structures:
        for name, unit in units.items():
            label = structure.targets.get(name)
            if label is None:
                have = ", ".join(structure.targets) or "none"
                raise InputError(
                    f"{structure} has no label {name!r} (it has: {have}); "
                    "add the label, remove the structure, or drop the target"
                )
            if not np.isfinite(label).all():
                raise InputError(
                    f"{structure} has NaN or infinity in its label {name!r}; "
                    "correct or remove the structure"
                )
            found = _target(label, len(structure.atoms), unit)
            if found is None or targets.setdefault(name, found) != found:
                raise InputError(
                    f"{structure} has a label {name!r} of shape {list(label.shape)}, which does "
                    "not fit its number of atoms or the structures before it; correct it"
                )
    return targets


def _target(label: NDArray[np.float64], n_atoms: int, unit: str) -> Target | None:
    if label.ndim == 1:
        return Target(level="graph", dim=len(label), unit=unit)
    if label.ndim == 2 and len(label) == n_atoms:
        return Target(level="node", dim=label.shape[1], unit=unit)
    return None
