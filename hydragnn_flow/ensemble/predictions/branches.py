"""Branches of an ensemble of several data sets, and which one predicts a structure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Batch

from hydragnn_flow.config.targets import BRANCH
from hydragnn_flow.data import GraphStore, Manifest
from hydragnn_flow.data.reading.split_part import Split
from hydragnn_flow.ensemble.predictions.inputs import with_branch
from hydragnn_flow.errors import InputError


@dataclass(frozen=True)
class Branches:
    """Branches of an ensemble's networks, each at the level of theory of a data set."""

    manifest: Manifest
    """Manifest of the store the members were trained on."""
    several: bool
    """True if the networks have more than one branch."""
    data_set: str | None = None
    """Data set whose branch predicts structures that name no data set."""

    @property
    def number(self) -> int | None:
        """Number of the branch of :attr:`data_set`, or None."""
        numbers = {name: number for number, name in self.manifest.data_sets.items()}
        return None if self.data_set is None else numbers[self.data_set]

    def check_has(self, name: str) -> None:
        """Raise an error for a name that is not a data set with a branch.

        Raises
        ------
        InputError
            If there is no such data set; the message names those there are.
        """
        known = self.manifest.data_sets
        if not self.several or name not in known.values():
            told = f"its data sets are {self._names}" if known else "leave the name out"
            raise InputError(f"the ensemble has no branch of a data set {name!r}; {told}")

    def check_known(self, store: GraphStore | None = None) -> None:
        """Raise an error if it is open which of several branches predicts.

        Parameters
        ----------
        store
            Store to predict; None for structures.

        Raises
        ------
        InputError
            If the graphs name no data set and none was chosen; the message names those there are.
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
        """Return True if graphs of a store name one of the ensemble's data sets.

        Numbers mean the same where the data sets have the same names in the same order, or none of
        them has a name.
        """
        found = store.manifest
        return BRANCH in found.keys and found.branch_names == self.manifest.branch_names

    def given_to(self, batches: Iterable[Batch], store: GraphStore) -> Iterator[Batch]:
        """Yield batches of a store, each graph with the branch that predicts it."""
        branch = None if self.are_known_to(store) else self.number
        for batch in batches:
            yield batch if branch is None else with_branch(batch, branch, batch.num_graphs)

    def data_sets_of(
        self, store: GraphStore, splits: Sequence[Split]
    ) -> NDArray[np.object_] | None:
        """Return the data set at whose level each graph is predicted; None if there is only one.

        Parameters
        ----------
        store
            Store that the ensemble can predict.
        splits
            Splits of that store, or parts of them, in order.
        """
        if self.data_set is None or self.are_known_to(store):
            return data_sets_said(splits, self.manifest)
        return np.full(sum(map(len, splits)), self.data_set, dtype=object)

    @property
    def _names(self) -> str:
        return ", ".join(self.manifest.data_sets.values())


def data_sets_said(splits: Sequence[Split], manifest: Manifest) -> NDArray[np.object_] | None:
    """Return the data set that each graph names; None if there is only one.

    Parameters
    ----------
    splits
        Splits of a store like that of the manifest, in order.
    manifest
        Manifest of the training store.
    """
    said = [split.branch for split in splits] if manifest.data_sets else []
    known = [numbers for numbers in said if numbers is not None]
    if not known:
        return None
    names = [manifest.data_sets.get(n, str(n)) for n in np.concatenate(known).tolist()]
    return np.array(names, dtype=object)
