"""Base of HydraGNN's two raw text formats, whose columns a configuration names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.targets import DIVIDED_BY_ATOMS, Targets
from hydragnn_flow.data.sources.base import Labelled, Record
from hydragnn_flow.data.sources.features import ATOMIC_NUMBER, node_features
from hydragnn_flow.data.sources.file_names import FilesSection
from hydragnn_flow.data.sources.graph_files import GraphFiles
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    import ase

# HydraGNN's name for the chemical element.
_PROTONS = "num_of_protons"

Quantities = dict[str, NDArray[np.float64]]


class Features(Section):
    """Columns of a raw file, as HydraGNN's `Dataset` section names them.

    As in HydraGNN, a quantity with `_scaled_num_nodes` in its name is divided by the number of
    atoms.
    """

    name: tuple[str, ...] = ()
    """Names of the quantities."""
    dim: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Number of columns of each quantity."""
    column_index: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """First column of each quantity, counted from 0."""

    @model_validator(mode="after")
    def _alike(self) -> Features:
        if not len(self.name) == len(self.dim) == len(self.column_index):
            raise ValueError("name, dim and column_index need one entry for each quantity")
        if len(set(self.name)) != len(self.name):
            raise ValueError("name each quantity once")
        return self


class RawSection(FilesSection):
    """Text files of columns, one structure in each."""

    node_features: Features
    """Columns of the atoms."""
    graph_features: Features = Features()
    """Columns of the whole structure."""
    inputs: tuple[str, ...] = Field(min_length=1)
    """Node features that become columns of `x`. `num_of_protons`, HydraGNN's name for it, and
    `atomic_number` choose the chemical element."""
    targets: Targets
    """Node and graph features to learn, by name of the target: the unit, or the unit and, as key,
    the name of the feature."""

    @model_validator(mode="after")
    def _known_names(self) -> RawSection:
        of_nodes, of_graphs = self.node_features.name, self.graph_features.name
        if both := set(of_nodes) & set(of_graphs):
            raise ValueError(f"node_features and graph_features both name {min(both)!r}; rename")
        for name in self.inputs:
            if name not in of_nodes:
                raise ValueError(f"inputs names {name!r}, which is not among node_features.name")
        for name, target in self.targets.items():
            if (feature := target.key or name) not in (*of_nodes, *of_graphs):
                raise ValueError(
                    f"targets names {feature!r}, which is not among node_features.name or "
                    "graph_features.name"
                )
            if target.level is not None:
                raise ValueError(f"targets.{name}.level: the feature tells; leave level out")
        return self


AnyRaw = TypeVar("AnyRaw", bound=RawSection)


class RawFiles(GraphFiles[AnyRaw]):
    """Source of text files, one structure in each."""

    def _record(
        self,
        atoms: ase.Atoms,
        of_atoms: Mapping[str, NDArray[np.float64]],
        of_structure: Mapping[str, NDArray[np.float64]],
        path: Path,
        index: int,
    ) -> tuple[Record, list[str]]:
        """Return inputs and targets of a structure from all named quantities."""
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
    """Return the named columns of a table, [n_rows, dim] each.

    Raises
    ------
    InputError
        If the table lacks a column; the message begins with ``where``.
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
    """Return the named columns of one line, [dim] each; text after its numbers is a comment."""
    numbers = np.array([list(_leading_numbers(line))], dtype=np.float64)
    return {name: row[0] for name, row in pick(features, numbers, where).items()}


def _leading_numbers(line: str) -> Iterator[float]:
    for word in line.split():
        try:
            yield float(word)
        except ValueError:
            return
