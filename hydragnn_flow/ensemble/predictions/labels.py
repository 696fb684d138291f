"""Labels in the components that models predict, and the branch that predicts a structure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Batch

from hydragnn_flow.config.sources import BRANCH, unit_factor
from hydragnn_flow.data import GraphStore, Manifest, Target
from hydragnn_flow.data.reading.split import Split
from hydragnn_flow.data.sources.labels import in_unit, one_hot, shaped, why_missing
from hydragnn_flow.data.sources.structures import Found
from hydragnn_flow.ensemble.predictions.inputs import with_branch
from hydragnn_flow.ensemble.uncertainty.distribution import Floats
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.geometry import STRESS, in_components

_IN_FULL = (0, 5, 4, 5, 1, 3, 4, 3, 2)
"""Index in Voigt's order of each of a tensor's nine components, row by row."""


def keys_of_label(manifest: Manifest, target: str) -> dict[str, float]:
    """Return the keys to look for a target's label in files: those of training, then its name.

    Each has the factor that converts the label to the unit of training, NaN if this differs between
    data sets.
    """
    found: dict[str, float] = {}
    for source in manifest.sources:
        said = (source.get("targets") or {}).get(target, {})
        key = said.get("key") or target
        unit = manifest.targets[target].unit
        factor = unit_factor(target, key, said.get("unit_in_file"), unit)
        found[key] = factor if found.get(key, factor) == factor else np.nan
    by_name = found.pop(target, 1.0)
    return {**found, target: by_name}


def every_label(
    structures: Mapping[str, Found], target: str, described: Target, keys: Mapping[str, float]
) -> Floats | None:
    """Return the true values of a target for all structures, ``[n, d]``.

    The result is None if no structure has a label. A label that is missing is NaN.

    Parameters
    ----------
    structures
        Structures with all values of their files, by their names in error messages.
    target, described
        Name of the target, and its level, dimension and unit in the training data.
    keys
        Possible keys of the label in files, with the factors of :func:`keys_of_label`. The first
        that any structure has is used for all.

    Raises
    ------
    InputError
        If a label is infinite or of another shape.
    """
    # One key for all: structures may have values of several methods.
    has = [k for k in keys if any(one.values.get(k) is not None for one in structures.values())]
    if not has:
        return None
    key = has[0]
    rows = []
    for name, found in structures.items():
        label, wrong = label_of(found, target, described, {key: keys[key]})
        if not wrong and np.isinf(label).any():
            wrong = f"label of {target} is not finite"
        if wrong:
            raise InputError(f"{name}: its {wrong}; correct it or leave the structure out")
        rows.append(label)
    return np.concatenate(rows)


def label_of(
    found: Found, target: str, described: Target, keys: Mapping[str, float]
) -> tuple[Floats, str]:
    """Return a structure's true value of a target ``[n, d]``, and an error message.

    The value is in the form of the training data; n is 1, or the number of atoms for a node target.
    The label is NaN if there is none, or if it has another shape than the ensemble's predictions.
    The error message is empty if nothing is wrong.

    Parameters
    ----------
    found
        Structure with all values of its file.
    target, described
        Name of the target, and its level, dimension and unit in the training data.
    keys
        Possible keys of the label, with the factors of :func:`keys_of_label`; the first that the
        structure has is used.
    """
    of_atoms = described.level == "node"
    n = len(found.atoms) if of_atoms else 1
    unknown = np.full((n, described.dim), np.nan)
    key = next((key for key in keys if found.values.get(key) is not None), None)
    if key is None or why_missing(found.values, target, key, described.classes, ""):
        return unknown, ""
    value = found.values[key]
    if np.isnan(keys[key]):
        return unknown, f"label of {target}, {key!r}, differs in its unit between data sets"
    try:
        if described.classes:
            value = one_hot(value, described.classes, described.level)
        else:
            value = in_unit(value, target, key, keys[key], found.atoms)
        label = shaped(value, described.level, n)
        # Columns of atoms would be mixed up by taking their numbers row by row.
        is_turned = of_atoms and label.ndim == 2 and label.shape[1] > 1 and len(label) != n
        label = np.empty((n, 0)) if is_turned else label.reshape(n, -1)
    except (TypeError, ValueError):
        label = np.empty((n, 0))
    if target == STRESS and (label.shape[1], described.dim) == (6, 9):
        label = label[:, _IN_FULL]
    label = in_components(label, target, described.dim)
    if label.shape == unknown.shape:
        return label, ""
    numbers = "a number" if described.dim == 1 else f"{described.dim} numbers"
    if described.classes:
        numbers = f"one of {', '.join(described.classes)}"
    return unknown, f"label of {target} is not {numbers} per {'atom' if of_atoms else 'structure'}"


@dataclass(frozen=True)
class Branches:
    """Branches of an ensemble's networks; a branch is the heads for one data set."""

    manifest: Manifest
    """Manifest of the store that the members were trained on."""
    several: bool
    """True if the networks have more than one branch."""
    data_set: str | None = None
    """Data set whose branch predicts structures that name no data set; None if not chosen."""

    @property
    def number(self) -> int | None:
        """Number of the branch of :attr:`data_set`; None if no data set was chosen."""
        numbers = {name: number for number, name in self.manifest.data_sets.items()}
        return None if self.data_set is None else numbers[self.data_set]

    def check_has(self, name: str) -> None:
        """Raise an error if there is no branch for a data set called ``name``.

        Raises
        ------
        InputError
            If there is no such data set; the message names the data sets that exist.
        """
        known = self.manifest.data_sets
        if not self.several or name not in known.values():
            told = f"its data sets are {self._names}" if known else "leave the name out"
            raise InputError(f"the ensemble has no branch of a data set {name!r}; {told}")

    def check_known(self, store: GraphStore | None = None) -> None:
        """Raise an error if nothing tells which of several branches is to predict.

        Parameters
        ----------
        store
            Store whose graphs are predicted; None if structures are.

        Raises
        ------
        InputError
            If the graphs name no data set and :attr:`data_set` is None; the message names the data
            sets of the training.
        """
        known = store is not None and self.are_known_to(store)
        if self.several and self.data_set is None and not known:
            where = "" if store is None else f"{store.path}: "
            raise InputError(
                f"{where}the ensemble was trained on several data sets, {self._names}, each with "
                f"energies or labels of its own level; say as which of them to predict, by "
                f"--data-set or Ensemble.of_data_set, or give a store prepared from data sets of "
                f"these names and the key {BRANCH!r}"
            )

    def are_known_to(self, store: GraphStore) -> bool:
        """Return True if each graph of a store names one of the ensemble's data sets.

        This is so if the graphs have branch numbers, and the data sets of store and ensemble have
        the same names in the same order, or no names.
        """
        found = store.manifest
        return BRANCH in found.keys and found.branch_names == self.manifest.branch_names

    def given_to(self, batches: Iterable[Batch], store: GraphStore) -> Iterator[Batch]:
        """Yield batches of a store's graphs, each with the number of the branch that predicts it.

        If graphs do not name a data set of the ensemble, the number is added to them in place.
        """
        branch = None if self.are_known_to(store) else self.number
        for batch in batches:
            yield batch if branch is None else with_branch(batch, branch, batch.num_graphs)

    def data_sets_of(
        self, store: GraphStore, splits: Sequence[Split]
    ) -> NDArray[np.object_] | None:
        """Return the name of the data set whose branch predicts each graph of a store, ``[n]``.

        The result is None if there is only one data set.

        Parameters
        ----------
        store
            Store that the ensemble can predict.
        splits
            Splits of the store, or parts of splits, in order.
        """
        if self.data_set is None or self.are_known_to(store):
            return data_sets_said(splits, self.manifest)
        return np.full(sum(map(len, splits)), self.data_set, dtype=object)

    @property
    def _names(self) -> str:
        return ", ".join(self.manifest.data_sets.values())


def data_sets_said(splits: Sequence[Split], manifest: Manifest) -> NDArray[np.object_] | None:
    """Return the name of the data set that each graph of some splits belongs to, ``[n]``.

    The result is None if there is only one data set, or if the graphs do not name theirs.

    Parameters
    ----------
    splits
        Splits, in order, of a store with the data sets of the training store.
    manifest
        Manifest of the training store.
    """
    said = [split.branch for split in splits] if manifest.data_sets else []
    known = [numbers for numbers in said if numbers is not None]
    if not known:
        return None
    names = [manifest.data_sets.get(n, str(n)) for n in np.concatenate(known).tolist()]
    return np.array(names, dtype=object)
