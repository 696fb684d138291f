"""What HydraGNN's two raw text formats have in common: columns that a configuration names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import ase
import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.graph_sources import Features, RawSection
from hydragnn_flow.config.targets import DIVIDED_BY_ATOMS
from hydragnn_flow.data.sources.base import Labelled, Record
from hydragnn_flow.data.sources.features import ATOMIC_NUMBER, node_features
from hydragnn_flow.data.sources.graph_files import GraphFiles
from hydragnn_flow.errors import InputError

# HydraGNN's name for the chemical element.
_PROTONS = "num_of_protons"

Quantities = dict[str, NDArray[np.float64]]
AnyRaw = TypeVar("AnyRaw", bound=RawSection)


class RawFiles(GraphFiles[AnyRaw]):
    """A source of text files, one structure each."""

    def _record(
        self,
        atoms: ase.Atoms,
        of_atoms: Mapping[str, NDArray[np.float64]],
        of_structure: Mapping[str, NDArray[np.float64]],
        path: Path,
        index: int,
    ) -> tuple[Record, list[str]]:
        """Choose inputs and targets.

        Parameters
        ----------
        atoms
            Positions, cell and periodic directions.
        of_atoms, of_structure
            All named quantities, [n_atoms, dim] and [dim].
        """
        origin = str(path)
        scaled = {
            name: values / len(atoms) if DIVIDED_BY_ATOMS in name else values
            for name, values in {**of_atoms, **of_structure}.items()
        }
        inputs = {
            ATOMIC_NUMBER if name == _PROTONS else name: scaled[name]
            for name in self._section.inputs
        }
        x, names = node_features(inputs, list(inputs), len(atoms), origin)
        targets = {
            name: scaled[target.key or name] for name, target in self._section.targets.items()
        }
        self._labels.check(targets, len(atoms), origin)
        return Labelled(atoms, targets, origin, index, x=x), names


def pick(features: Features, table: NDArray[np.float64], where: str) -> Quantities:
    """The named columns of a table, [n_rows, dim] each.

    Raises
    ------
    InputError
        Beginning with ``where``, for a column the table has not got.
    """
    found = {}
    for name, dim, first in zip(features.name, features.dim, features.column_index, strict=True):
        if first + dim > table.shape[1]:
            raise InputError(
                f"{where} has {table.shape[1]} columns of numbers, but {name!r} is said to be in "
                f"column {first + dim - 1}, counted from 0; correct its column_index or dim"
            )
        found[name] = table[:, first : first + dim]
    return found


def pick_from_line(features: Features, line: str, where: str) -> Quantities:
    """The named columns of one line, [dim] each; what follows its numbers is a comment."""
    numbers = np.array([list(_leading_numbers(line))], dtype=np.float64)
    return {name: row[0] for name, row in pick(features, numbers, where).items()}


def _leading_numbers(line: str) -> Iterator[float]:
    for word in line.split():
        try:
            yield float(word)
        except ValueError:
            return
