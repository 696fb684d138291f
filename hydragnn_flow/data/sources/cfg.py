"""Source of HydraGNN's CFG format: AtomEye files, each with a file of graph features."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.sources.base import Record
from hydragnn_flow.data.sources.raw import Quantities, RawFiles, RawSection, pick, pick_from_line
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    import ase

# Auxiliary properties that HydraGNN reads, in the order of its numbering.
_FIRST = ("c_peratom", "fx", "fy", "fz")
_NOT_AUXILIARY = ("numbers", "positions", "masses", "momenta")


class CfgSource(RawSection):
    """AtomEye CFG files, with graph features on the first line of a `.bulk` file next to each.

    An atom's columns are its number of protons, its mass, and the file's auxiliary properties:
    `c_peratom`, `fx`, `fy`, `fz` first, as in HydraGNN, then others in the file's order.
    """

    reads = "AtomEye's CFG files with HydraGNN's `.bulk` files"
    labels = "named columns"

    def open(self, folder: Path, seed: int) -> CfgFiles:
        return CfgFiles(self, folder)


class CfgFiles(RawFiles[CfgSource]):
    """Reader of structures in AtomEye's CFG format.

    Parameters
    ----------
    section
        Files, columns, inputs and targets.
    folder
        Directory that the file names are relative to.
    """

    def __init__(self, section: CfgSource, folder: Path) -> None:
        super().__init__(section, folder, suffixes=(".cfg",))

    def _beside(self, path: Path) -> list[Path]:
        return [_bulk(path)] if self._section.graph_features.name else []

    def _read(self, path: Path, index: int) -> tuple[Record, Sequence[str]]:
        import ase

        atoms = _read_cfg(path)
        of_atoms = pick(self._section.node_features, _table(atoms), f"{path}: an atom")
        bare = ase.Atoms(
            numbers=atoms.numbers, positions=atoms.positions, cell=atoms.cell, pbc=atoms.pbc
        )
        return self._record(bare, of_atoms, self._graph_features(path), path, index)

    def _graph_features(self, path: Path) -> Quantities:
        if not self._section.graph_features.name:
            return {}
        side = _bulk(path)
        try:
            line = side.read_text(encoding="utf-8").partition("\n")[0]
        except (OSError, ValueError) as error:
            raise InputError(
                f"{side}, where the graph features of {path.name} should be, cannot be read "
                f"({error}); add it or remove graph_features"
            ) from None
        return pick_from_line(self._section.graph_features, line, f"{side}: the first line")


def _bulk(path: Path) -> Path:
    return path.with_suffix(".bulk")


def _read_cfg(path: Path) -> ase.Atoms:
    from ase.io.cfg import read_cfg

    try:
        text = path.read_text(encoding="utf-8")
        unit = re.search(r"^\s*A\s*=\s*(\S+)", text, re.MULTILINE)
        length = 1.0 if unit is None else float(unit[1])
        atoms: ase.Atoms = read_cfg(io.StringIO(text))
    except Exception as error:  # ASE's parser may raise any exception
        raise InputError(
            f"{path} cannot be read as a CFG file ({error!r}); correct or remove it"
        ) from None
    # ASE ignores the unit.
    if length != 1.0:
        raise InputError(
            f"{path} gives lengths in units of {length:g} Å, which is not supported; "
            "write it with A = 1.0 Angstrom"
        )
    return atoms


def _table(atoms: ase.Atoms) -> NDArray[np.float64]:
    """Return number of protons, mass and auxiliary properties, [n_atoms, n_columns]."""
    own = [name for name in atoms.arrays if name not in _NOT_AUXILIARY]
    names = [
        *(name for name in _FIRST if name in own),
        *(name for name in own if name not in _FIRST),
    ]
    columns = [atoms.arrays[name].reshape(len(atoms), -1) for name in ("numbers", "masses", *names)]
    return np.concatenate(columns, axis=1)
