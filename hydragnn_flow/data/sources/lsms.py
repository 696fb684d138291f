"""Source of HydraGNN's LSMS text format."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import model_validator

from hydragnn_flow.data.sources.base import Record
from hydragnn_flow.data.sources.raw import RawFiles, RawSection, pick, pick_from_line
from hydragnn_flow.errors import InputError

_PROTONS = slice(0, 1)
_POSITION = slice(2, 5)


class LsmsSource(RawSection):
    """HydraGNN's LSMS text format: graph features on the first line, then a line for each atom.

    Column 0 of an atom's line is its number of protons, columns 2 to 4 are its position. Positions
    are read in Å, like the cutoff, although LSMS itself counts in bohr.
    """

    reads = "HydraGNN's LSMS text format"
    labels = "named columns"

    subtract_protons: str | None = None
    """Node feature from which the number of protons is subtracted. LSMS writes the number of
    electrons of an atom; the difference is the number of electrons that the atom has gained.
    HydraGNN always subtracts from its second node feature."""
    cell: tuple[tuple[float, float, float], ...] | None = None
    """Lattice vectors [Å] of every structure, periodic in all directions. Without them each
    structure is an isolated cluster."""

    @model_validator(mode="after")
    def _sensible(self) -> LsmsSource:
        if self.cell is not None and len(self.cell) != 3:
            raise ValueError("cell needs three lattice vectors")
        name = self.subtract_protons
        if name is not None and name not in self.node_features.name:
            raise ValueError(
                f"subtract_protons names {name!r}, which is not among node_features.name"
            )
        return self

    def open(self, folder: Path, seed: int) -> LsmsFiles:
        return LsmsFiles(self, folder)


class LsmsFiles(RawFiles[LsmsSource]):
    """Structures in HydraGNN's LSMS text format.

    Parameters
    ----------
    section
        Files, columns, inputs and targets.
    folder
        Directory that the file names are relative to.
    """

    def _read(self, path: Path, index: int) -> tuple[Record, Sequence[str]]:
        import ase

        try:
            header, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # NumPy's of empty files, refused below
                table = np.loadtxt(lines, comments=None, ndmin=2)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path} is not in the LSMS text format ({error}); correct or remove it"
            ) from None
        if not table.size or table.shape[1] < _POSITION.stop:
            raise InputError(
                f"{path} has no atoms with the five columns of the LSMS text format at least; "
                "correct or remove it"
            )
        of_structure = pick_from_line(
            self._section.graph_features, header, f"{path}: the first line"
        )
        of_atoms = pick(self._section.node_features, table, f"{path}: an atom")
        if (name := self._section.subtract_protons) is not None:
            of_atoms[name] = of_atoms[name] - table[:, _PROTONS]
        atoms = ase.Atoms(
            numbers=np.zeros(len(table), dtype=int),
            positions=table[:, _POSITION],
            cell=self._section.cell,
            pbc=self._section.cell is not None,
        )
        return self._record(atoms, of_atoms, of_structure, path, index)
