"""Contract of labels: values of a structure to learn, their level, shape, classes and weight."""

from __future__ import annotations

import itertools
import math
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.sources import (
    WEIGHT,
    Level,
    TargetConfig,
    class_key,
    is_virial,
    unit_factor,
)
from hydragnn_flow.data.sources.arrays import Arrays, lookup
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    import ase

    from hydragnn_flow.data.sources.base import Chunk, Record

CONFIG_WEIGHT = "config_weight"
"""MACE's key of a structure's weight, 1 where it is missing."""


class MissingLabel(InputError):
    """Error of a structure without a label, or of weight 0, which is left out."""


def is_missing(value: Any, classes: Collection[str] = ()) -> bool:
    """Return whether a value of a file says that there is none: None, NaN, or a word such as na.

    A word that is one of the target's ``classes`` is no such word, as na is not for sodium.
    """
    if isinstance(value, str):
        is_class = class_key(value) in map(class_key, classes)
        return value.strip().lower() in ("", "na", "n/a", "nan", "none") and not is_class
    return value is None or (isinstance(value, float) and math.isnan(value))


def why_missing(
    values: Mapping[str, Any], name: str, key: str, classes: Collection[str], origin: str
) -> str:
    """Return why a structure has no label of the target ``name``; empty if it has one.

    Parameters
    ----------
    values
        Values of the structure by key in the file.
    name, key, classes
        Name of the target, key of its label, and its classes if it has some.
    origin
        File and position of the structure, with which the sentence begins.
    """
    for weight in (CONFIG_WEIGHT, f"config_{name}_weight"):  # MACE's
        if str(values.get(weight)) in ("0", "0.0"):
            return f"{origin} has {weight} = 0"
    try:
        value = lookup(values, key, origin, "label", f"targets.{name}.key")
    except InputError as error:
        return str(error)
    # One atom without its class leaves out those of all, as NaN does among numbers.
    each = np.ravel(value).tolist() if classes else [value]
    if any(is_missing(one, classes) for one in each):
        shown = value.item() if isinstance(value, np.generic) else value
        return f"{origin} has the label {key!r} = {reprlib.repr(shown)}"
    return ""


def weight_in(values: Mapping[str, Any], key: str, origin: str) -> NDArray[np.float32]:
    """Return a structure's weight under ``key``, float32 [1, 1]; 1 if MACE's is missing.

    Raises
    ------
    MissingLabel, InputError
        If another is missing, and in the cases of :func:`weight_of`.
    """
    if key == CONFIG_WEIGHT and values.get(key) is None:
        return weight_of(1, origin)
    return weight_of(lookup(values, key, origin, "weight", "weight"), origin, key)


def check_weight(keys: Arrays, origin: str) -> None:
    """Check the weight among a graph's arrays, if it has one, by :func:`weight_of`."""
    if WEIGHT in keys:
        weight_of(keys[WEIGHT], origin)


def weight_of(value: Any, origin: str, key: str = WEIGHT) -> NDArray[np.float32]:
    """Return a structure's weight in the training loss, float32 [1, 1].

    Raises
    ------
    MissingLabel
        If the weight is 0; the message begins with ``origin``.
    InputError
        If it is no finite number from 0 on.
    """
    try:
        weight = float(np.asarray(value, np.float64).item())
    except (TypeError, ValueError):
        weight = math.nan
    if weight == 0:
        raise MissingLabel(f"{origin} has the weight 0")
    if not 0 < weight < math.inf:
        raise InputError(
            f"{origin} has the weight {str(value)[:40]}, which is no finite number from 0 on; "
            f"correct {key}"
        )
    return np.array([[weight]], dtype=np.float32)


def shaped(value: Any, level: Level | None, n_atoms: int) -> NDArray[np.float64]:
    """Return a label as float64: [d] if of the whole structure, [n_atoms, d] if of its atoms.

    Parameters
    ----------
    value
        Number, or nested lists of numbers.
    level
        Level of the label, ``graph`` or ``node``. If it is None, a number, a plain list, and a 3×3
        matrix unless there are three atoms, belong to the structure; rows of numbers belong to the
        atoms.
    n_atoms
        Number of atoms of the structure.

    Raises
    ------
    TypeError, ValueError
        If the value does not consist of numbers.
    """
    if np.iscomplexobj(value):
        raise TypeError("complex numbers are no label; convert them")
    array = np.asarray(value, dtype=np.float64)
    if level is None:
        of_atoms = array.ndim > 1 and (len(array) == n_atoms or array.shape != (3, 3))
        level = "node" if of_atoms else "graph"
    if level == "graph":
        return array.reshape(-1)
    return array.reshape(len(array), -1) if array.ndim and array.size else array


def check_size(name: str, label: NDArray[np.floating[Any]], origin: str) -> None:
    """Check that all numbers of a label are small enough for single precision.

    Raises
    ------
    InputError
        If a number is larger than 1e18; the message begins with ``origin``.
    """
    # Single precision cannot hold the squares of larger numbers, which losses need.
    if np.abs(label).max(initial=0.0) > 1e18:
        raise InputError(
            f"{origin} has {np.abs(label).max():.3g} in its label {name!r}, which is more than "
            f"single precision can square; correct it, remove the structure, or choose a larger "
            f"unit"
        )


class Meaning(NamedTuple):
    """Shape of a quantity whose name says what it is."""

    level: Level
    dims: tuple[int, ...]
    """Possible numbers of components."""
    words: str
    """Shape in words."""


MEANINGS: Mapping[str, Meaning] = {
    "energy": Meaning("graph", (1,), "one number of the structure"),
    "forces": Meaning("node", (3,), "three numbers of each atom"),
    "stress": Meaning("graph", (6, 9), "six or nine numbers of the structure"),
}
"""Shape by name of the quantity, of a target or of what a key names."""
LEVELS: Mapping[str, Level] = {
    **{name: meaning.level for name, meaning in MEANINGS.items()},
    **dict.fromkeys(("dipole", "polarizability", "virial", "free_energy"), "graph"),
    **dict.fromkeys(("charges", "magmoms"), "node"),
}
"""Level of labels, by target or key, that may have the shape of another level."""


def level_of(value: Any, names: Sequence[str], n_atoms: int) -> Level | None:
    """Return the level of a label whose shape fits a structure as well as its atoms.

    The result is None if the shape alone tells. Such a label is a list of as many numbers as there
    are atoms, or a 3×3 matrix if there are three. Other structures do not tell: which are known
    depends on the range of structures that a process reads.

    Parameters
    ----------
    value
        Label as the file has it.
    names
        Names of the label, which may tell its level.
    n_atoms
        Number of atoms of the structure.

    Raises
    ------
    ValueError
        If nothing tells the level.
    """
    shape = np.shape(value)
    if n_atoms == 1 or shape not in ((n_atoms,), (n_atoms, 3)) or shape == (n_atoms, 3) != (3, 3):
        return None
    level = next((LEVELS[name] for name in names if name in LEVELS), None)
    if level is None:
        raise ValueError(
            f"has the shape {list(shape)} in a structure of {n_atoms} atoms, and may belong to the "
            f"structure or to its atoms"
        )
    return level


def in_unit(value: Any, name: str, key: str, factor: float, atoms: ase.Atoms) -> Any:
    """Return a label of a file as its target has it: multiplied by ``factor``, its unit's.

    A stress is computed if ``key`` is that of a virial.

    Raises
    ------
    TypeError, ValueError
        If the value is not made of numbers, and in the cases of :func:`stress_of_virial`.
    """
    if is_virial(name, key):
        value = stress_of_virial(value, atoms)
    return value if factor == 1 else np.asarray(value, np.float64) * factor


def stress_of_virial(value: Any, atoms: ase.Atoms) -> NDArray[np.float64]:
    """Return the stress of a structure: minus its virial over the volume of the cell [Å³].

    Raises
    ------
    ValueError
        If the structure is not periodic in three directions.
    """
    if not atoms.pbc.all() or not atoms.cell.volume:
        raise ValueError("gives a stress only in a cell that is periodic in three directions")
    return -np.asarray(value, np.float64) / float(atoms.cell.volume)


def one_hot(value: Any, classes: Sequence[str], level: Level | None = None) -> NDArray[np.float64]:
    """Convert a label that names classes to 0 and 1: [n_classes], or [n_atoms, n_classes].

    Parameters
    ----------
    value
        Class of the structure, or a list with that of each atom.
    classes
        Names of all classes.
    level
        Level of the label, ``graph`` or ``node``; if it is None, a list belongs to the atoms.

    Raises
    ------
    ValueError
        If the value names another class. The message is the rest of a sentence.
    """
    places = {class_key(name): place for place, name in enumerate(classes)}
    named = [class_key(one) for one in np.asarray(value).reshape(-1).tolist()]
    if others := [name for name in named if name not in places]:
        raise ValueError(f"names the class {others[0]!r}, and not {' or '.join(classes)}")
    rows = np.eye(len(classes))[[places[name] for name in named]]
    if level is None:
        level = "node" if np.ndim(value) else "graph"
    return rows.reshape(-1) if level == "graph" else rows


class LabelCheck:
    """Checker of structures' labels, the values to learn.

    Labels must have the shape and level of those of the first structure.

    Parameters
    ----------
    targets
        Description of each target by name.
    """

    def __init__(self, targets: Mapping[str, TargetConfig]) -> None:
        self._targets = targets
        self.found: dict[str, Target] = {}
        """Level, components and unit of each target seen so far."""

    def take(
        self, values: Mapping[str, Any], levels: Mapping[str, Level], atoms: ase.Atoms, origin: str
    ) -> tuple[dict[str, NDArray[np.float64]], str]:
        """Pick a structure's labels out of the values in its file, and return them after checks.

        Parameters
        ----------
        values
            Values of the structure by key in the file.
        levels
            Level by key, for values whose level the file states.
        atoms
            The structure.
        origin
            File and position of the structure, for error messages.

        Returns
        -------
        tuple
            Labels that the structure has, by target, and why another is missing, as in
            :meth:`check`.

        Raises
        ------
        InputError
            If a label is not made of numbers, or may belong to the structure as well as to its
            atoms, or in the cases of :meth:`check`.
        """
        labels, lacking = {}, ""
        for name, target in self._targets.items():
            key = target.key or name
            if reason := why_missing(values, name, key, target.classes, origin):
                lacking = lacking or reason
                continue
            value = values[key]
            level = target.level or levels.get(key)
            if target.classes:
                labels[name] = self.classes(name, value, origin, level)
                continue
            if isinstance(value, np.ndarray) and value.dtype.kind == "i" and value.shape == (2,):
                raise InputError(
                    f"{origin} has two whole numbers in its label {key!r}, {value.tolist()}, as if "
                    f"it had a decimal comma; write it with a point, or two numbers with points"
                )
            try:
                factor = unit_factor(name, key, target.unit_in_file, target.unit)
                value = in_unit(value, name, key, factor, atoms)
                shaped(value, level, len(atoms))
            except (TypeError, ValueError) as error:
                said = f"is not made of numbers ({reprlib.repr(value)})"
                raise InputError(
                    f"{origin} has a label {key!r} that "
                    f"{error if is_virial(name, key) else said}; correct it or drop the target"
                ) from None
            try:
                level = level or level_of(value, (name, key), len(atoms))
            except ValueError as error:
                raise InputError(
                    f"{origin}: its label {key!r} {error}; write data.source.targets.{name}.level: "
                    f"graph, or node"
                ) from None
            labels[name] = shaped(value, level, len(atoms))
        return self.check(labels, len(atoms), origin, lacking)

    def classes(
        self, name: str, value: Any, origin: str, level: Level | None = None
    ) -> NDArray[np.float64]:
        """Convert the label of the target ``name`` to 0 and 1 by :func:`one_hot`.

        Raises
        ------
        InputError
            If the label names another class; the message begins with ``origin``.
        """
        target = self._targets[name]
        try:
            return one_hot(value, target.classes, level)
        except ValueError as error:
            raise InputError(
                f"{origin}: its label {target.key or name!r} {error}; correct it, or add the class "
                f"to data.source.targets.{name}.classes"
            ) from None

    def check(
        self,
        labels: Mapping[str, NDArray[np.float64]],
        n_atoms: int,
        origin: str,
        lacking: str = "",
    ) -> tuple[dict[str, NDArray[np.float64]], str]:
        """Check the labels of one structure, given by name of the target.

        Returns
        -------
        tuple
            Labels without those that are NaN, by target, and why one is missing: ``lacking``, or
            that it is NaN; empty if none is.

        Raises
        ------
        MissingLabel
            If all labels are missing.
        InputError
            If a label is infinite or too large for single precision, differs in shape from what
            the target's name means or from the label in earlier structures, or belongs to the
            atoms though its target is extensive. The message begins with ``origin``.
        """
        checked = {}
        for name, label in labels.items():
            known = self._targets[name]
            if not np.isfinite(label).all():
                said = (
                    f"{origin} has NaN or infinity in its label {name!r}; "
                    "correct or remove the structure"
                )
                if not np.isnan(label).any():
                    raise InputError(said)
                lacking = lacking or said  # NaN says that there is none
                continue
            check_size(name, label, origin)
            target = _target(label, n_atoms, known)
            if target is not None and target.level == "node" and target.extensive:
                raise InputError(
                    f"{origin} has a label {name!r} for each atom, and only those of whole "
                    f"structures are extensive; remove data.source.targets.{name}.extensive"
                )
            if target is not None and name in MEANINGS:
                level, dims, words = MEANINGS[name]
                if target.level != level or target.dim not in dims:
                    raise InputError(
                        f"{origin} has a label {name!r} of shape {list(label.shape)}, but {name} "
                        f"is {words}; correct it (a decimal comma?) or "
                        f"data.source.targets.{name}.key, or give the target another name"
                    )
            if target is None or self.found.setdefault(name, target) != target:
                raise InputError(
                    f"{origin} has a label {name!r} of shape {list(label.shape)}, which does not "
                    "fit its number of atoms or the structures before it; correct it, or say with "
                    "graph or node whether it belongs to the structure or to each atom in "
                    f"data.source.targets.{name}.level"
                )
            checked[name] = label
        if not checked:
            raise MissingLabel(lacking)
        return checked, lacking

    def complete(self, chunks: Sequence[Chunk], read: Callable[[Chunk], Iterator[Record]]) -> None:
        """Read chunks until all targets are found, so that missing labels have a known shape.

        Those of both ends come first, then those half-way between; of each chunk at first only a
        few structures are read, as labels may be missing in whole files.

        Raises
        ------
        InputError
            If a target has no label in any of the chunks.
        """
        order = dict.fromkeys((0, len(chunks) - 1))
        step = len(chunks)
        while step := step // 2:
            order |= dict.fromkeys(range(len(chunks) - 1, -1, -step))
        spread = [chunks[n] for n in order]
        some = (record for chunk in spread for record in itertools.islice(read(chunk), 4))
        rest = (record for chunk in spread[1:] + spread[:1] for record in read(chunk))
        following, said = itertools.chain(some, rest), ""
        while self.found.keys() < self._targets.keys():
            record = next(following, None)
            if record is None:
                raise InputError(f"all structures of this data set lack a label: {said}")
            said = said or record.lacking
        for name in self._targets:  # in every process the order in which they are packed
            self.found[name] = self.found.pop(name)


def _target(label: NDArray[np.float64], n_atoms: int, known: TargetConfig) -> Target | None:
    about: dict[str, Any] = known.model_dump(include={"unit", "classes"})
    about["extensive"] = known.is_extensive
    if known.classes and label.shape[-1] != len(known.classes):
        return None
    if label.ndim == 1 and label.size:
        return Target(level="graph", dim=len(label), **about)
    if label.ndim == 2 and len(label) == n_atoms:
        return Target(level="node", dim=label.shape[1], **about)
    return None
