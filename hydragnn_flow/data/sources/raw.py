"""Sources of HydraGNN's two raw text formats, LSMS and CFG, whose columns a configuration names."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.sources import DIVIDED_BY_ATOMS, Level, Targets
from hydragnn_flow.data.sources.arrays import ATOMIC_NUMBER, node_features
from hydragnn_flow.data.sources.base import Nodes
from hydragnn_flow.data.sources.file_names import FilesSection
from hydragnn_flow.data.sources.structures import Found, StructureSource, points

if TYPE_CHECKING:
    import ase

Quantities = dict[str, NDArray[np.float64]]


class Features(Section):
    """Names and columns of quantities in a raw text file, as in HydraGNN's `Dataset` section.

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
        if not len(set(self.name)) == len(self.name) == len(self.dim) == len(self.column_index):
            raise ValueError("name, dim and column_index need one entry for each quantity")
        return self


class RawSection(FilesSection):
    """Configuration section `data.source` common to HydraGNN's raw text formats, LSMS and CFG."""

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
        _check_names("inputs", self.inputs, of_nodes)
        wanted = [target.key or name for name, target in self.targets.items()]
        _check_names("targets", wanted, (*of_nodes, *of_graphs))
        for name, target in self.targets.items():
            if target.level is not None:
                raise ValueError(f"targets.{name}.level: the feature tells; leave level out")
        return self


class LsmsSource(RawSection):
    """Configuration section `data.source` for files in HydraGNN's LSMS text format.

    A file has graph features on the first line, then a line for each atom. Column 0 of an atom's
    line is its number of protons, columns 2 to 4 are its position. Positions are read in Å, like
    the cutoff, although LSMS itself counts in bohr.
    """

    reads = "HydraGNN's LSMS text format"
    labels = "named columns"

    subtract_protons: str | None = None
    """Node feature from which the number of protons is subtracted. LSMS writes the number of
    electrons of an atom; the difference is the number of electrons that the atom has gained.
    HydraGNN always subtracts from its second node feature."""
    cell: (
        tuple[tuple[float, float, float], tuple[float, float, float], tuple[float, float, float]]
        | None
    ) = None
    """Lattice vectors [Å] of every structure, periodic in all directions. Without them each
    structure is an isolated cluster."""

    @model_validator(mode="after")
    def _known_feature(self) -> LsmsSource:
        if self.subtract_protons is not None:
            _check_names("subtract_protons", [self.subtract_protons], self.node_features.name)
        return self

    def open(self, folder: Path, seed: int) -> LsmsFiles:
        return LsmsFiles(self, folder)


class LsmsFiles(StructureSource[LsmsSource]):
    """Reader of structures in HydraGNN's LSMS text format."""

    def structure(self, file: Path) -> Found:
        header, *lines = file.read_text(encoding="utf-8-sig").splitlines()
        table = np.loadtxt(lines, comments=None, ndmin=2) if lines else np.empty((0, 0))
        if table.shape[1] < 5:
            raise ValueError("it has no atoms with the five columns of the LSMS text format")
        first = _numbers(header)
        if len(first) == table.shape[1] and first[0] in range(1, 119):
            raise ValueError(
                "its first line has the columns of an atom, not the graph features; add their line"
            )
        of_structure = _pick_from_line(self._section.graph_features, header)
        of_atoms = _pick(self._section.node_features, table, "an atom")
        if (name := self._section.subtract_protons) is not None:
            of_atoms[name] = of_atoms[name] - table[:, :1]
        cell = self._section.cell
        atoms = points(table[:, 2:5], None if cell is None else np.array(cell), cell is not None)
        return _found(self._section, atoms, of_atoms, of_structure, file)


class CfgSource(RawSection):
    """Configuration section `data.source` for AtomEye CFG files with HydraGNN's `.bulk` files.

    The file `NAME.bulk` beside `NAME.cfg` has the graph features on its first line. An atom's
    columns are its number of protons, its mass, and the file's auxiliary properties: `c_peratom`,
    `fx`, `fy`, `fz` first, as in HydraGNN, then others in the file's order.
    """

    reads = "AtomEye's CFG files with HydraGNN's `.bulk` files"
    labels = "named columns"

    def open(self, folder: Path, seed: int) -> CfgFiles:
        return CfgFiles(self, folder)


class CfgFiles(StructureSource[CfgSource]):
    """Reader of structures in AtomEye's CFG format."""

    suffixes = (".cfg",)

    def beside(self, file: Path) -> list[Path]:
        return [file.with_suffix(".bulk")] if self._section.graph_features.name else []

    def structure(self, file: Path) -> Found:
        from ase.io.cfg import read_cfg

        text = file.read_text(encoding="utf-8-sig")
        unit = re.search(r"^\s*A\s*=\s*(\S+)", text, re.MULTILINE)
        if unit is not None and float(unit[1]) != 1.0:  # ASE ignores it
            raise ValueError(f"lengths in units of {unit[1]} Å; write it with A = 1.0 Angstrom")
        atoms: ase.Atoms = read_cfg(io.StringIO(text))
        own = [k for k in atoms.arrays if k not in ("numbers", "positions", "masses", "momenta")]
        first = [name for name in ("c_peratom", "fx", "fy", "fz") if name in own]
        order = ["numbers", "masses", *first, *(name for name in own if name not in first)]
        columns = [atoms.arrays[name].reshape(len(atoms), -1) for name in order]
        of_atoms = _pick(self._section.node_features, np.concatenate(columns, axis=1), "an atom")
        of_structure: Quantities = {}
        for side in self.beside(file):
            line = side.read_text(encoding="utf-8-sig").partition("\n")[0]
            of_structure = _pick_from_line(self._section.graph_features, line)
        bare = points(atoms.positions, atoms.cell.array, atoms.pbc)
        return _found(self._section, bare, of_atoms, of_structure, file)


def _check_names(key: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raise ValueError if one of ``names`` is not in ``known``; the message begins with ``key``."""
    for name in names:
        if name not in known:
            raise ValueError(f"{key} names {name!r}, which is not among {', '.join(known)}")


def _found(
    section: RawSection,
    atoms: ase.Atoms,
    of_atoms: Mapping[str, NDArray[np.float64]],
    of_structure: Mapping[str, NDArray[np.float64]],
    file: Path,
) -> Found:
    """Return a structure with its node features, and all quantities as possible labels.

    ``of_atoms`` and ``of_structure`` are the quantities by name.
    """
    scaled = {
        name: values / len(atoms) if DIVIDED_BY_ATOMS in name else values
        for name, values in {**of_atoms, **of_structure}.items()
    }
    inputs = {
        ATOMIC_NUMBER if name == "num_of_protons" else name: scaled[name] for name in section.inputs
    }
    x, names = node_features(inputs, list(inputs), len(atoms), str(file))
    levels: dict[str, Level] = dict.fromkeys(of_atoms, "node")
    levels |= dict.fromkeys(of_structure, "graph")
    return Found(atoms, scaled, levels, Nodes(x, names))


def _pick(features: Features, table: NDArray[np.float64], what: str) -> Quantities:
    """Return the named quantities in the columns of a table, [n_rows, dim] each.

    ValueError is raised if a column is missing; its message begins with ``what``.
    """
    found = {}
    for name, dim, first in zip(features.name, features.dim, features.column_index, strict=True):
        if first + dim > table.shape[1]:
            raise ValueError(
                f"{what} has {table.shape[1]} columns of numbers, but {name!r} is said to be in "
                f"column {first + dim - 1}, counted from 0"
            )
        found[name] = table[:, first : first + dim]
    return found


def _pick_from_line(features: Features, line: str) -> Quantities:
    """Return the named quantities in a line, [dim] each."""
    table = np.array([_numbers(line)])
    return {k: row[0] for k, row in _pick(features, table, "the first line").items()}


def _numbers(line: str) -> list[float]:
    """Return the numbers at the beginning of a line; text after them is ignored."""
    numbers: list[float] = []
    for word in line.split():
        try:
            numbers.append(float(word))
        except ValueError:
            break
    return numbers
