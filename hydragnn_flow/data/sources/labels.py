"""Labels in the shape of their level, checked to be the same targets in every structure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.sources import Level
from hydragnn_flow.config.targets import TargetConfig
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError

# Single precision cannot hold the squares of larger numbers, which losses need.
_LARGEST = 1e18


def shaped(value: Any, level: Level | None, n_atoms: int) -> NDArray[np.float64]:
    """Return a label in the shape of its level: [d] of the structure, [n_atoms, d] of its atoms.

    Parameters
    ----------
    value
        Number, or nested lists of numbers.
    level
        Level of the label. If it is not known, a number, a plain list, and a 3×3 matrix unless
        there are three atoms, belong to the structure; rows of numbers belong to the atoms.
    n_atoms
        Number of atoms of the structure.

    Raises
    ------
    TypeError, ValueError
        If the value does not consist of numbers.
    """
    array = np.asarray(value, dtype=np.float64)
    if level is None:
        of_atoms = array.ndim > 1 and (len(array) == n_atoms or array.shape != (3, 3))
        level = "node" if of_atoms else "graph"
    if level == "graph":
        return array.reshape(-1)
    return array.reshape(len(array), -1) if array.ndim and array.size else array


def check_size(name: str, label: NDArray[np.floating[Any]], origin: str) -> None:
    """Raise an error for a label that is too large for single precision.

    Raises
    ------
    InputError
        If it is too large; the message begins with ``origin``.
    """
    if np.abs(label).max(initial=0.0) > _LARGEST:
        raise InputError(
            f"{origin} has {np.abs(label).max():.3g} in its label {name!r}, which is more than "
            f"single precision can square; correct it, remove the structure, or choose a larger "
            f"unit"
        )


class LabelCheck:
    """Check of labels, structure after structure; the first determines shape and level.

    Parameters
    ----------
    targets
        Description of each target by name.
    """

    def __init__(self, targets: Mapping[str, TargetConfig]) -> None:
        self._targets = targets
        self.found: dict[str, Target] = {}
        """Level, components and unit of each target seen so far."""

    def check(self, labels: Mapping[str, NDArray[np.float64]], n_atoms: int, origin: str) -> None:
        """Check a structure that has a label for every target.

        Raises
        ------
        InputError
            If a label is NaN, infinite or too large for single precision, differs in shape from
            those before it, or belongs to the atoms though its target is extensive. The message
            begins with ``origin``.
        """
        for name, known in self._targets.items():
            label = labels[name]
            if not np.isfinite(label).all():
                raise InputError(
                    f"{origin} has NaN or infinity in its label {name!r}; "
                    "correct or remove the structure"
                )
            check_size(name, label, origin)
            target = _target(label, n_atoms, known)
            if target is not None and target.level == "node" and target.extensive:
                raise InputError(
                    f"{origin} has a label {name!r} for each atom, and only those of whole "
                    f"structures are extensive; remove data.source.targets.{name}.extensive"
                )
            if target is None or self.found.setdefault(name, target) != target:
                raise InputError(
                    f"{origin} has a label {name!r} of shape {list(label.shape)}, which does not "
                    "fit its number of atoms or the structures before it; correct it, or say with "
                    "graph or node whether it belongs to the structure or to each atom in "
                    f"data.source.targets.{name}.level"
                )


def _target(label: NDArray[np.float64], n_atoms: int, known: TargetConfig) -> Target | None:
    extensive = known.is_extensive
    if label.ndim == 1 and label.size:
        return Target(level="graph", dim=len(label), unit=known.unit, extensive=extensive)
    if label.ndim == 2 and len(label) == n_atoms:
        return Target(level="node", dim=label.shape[1], unit=known.unit, extensive=extensive)
    return None
