"""Structures outside of training data, with energies by the method of the training data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.calculators.calculator import Calculator
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.calculators.tersoff import Tersoff, TersoffParameters
from numpy.random import Generator
from numpy.typing import NDArray

from ensemble_quality.outside import atoms_of, copy_of, scaled, slab, without
from hydragnn_flow import GraphStore

GROUPS = ("Elastic", "Surface")
"""Groups of mlearn that are left out of training in turn."""
# Si of Tersoff, Phys. Rev. B 38, 9902 (1988), in the order of TersoffParameters.
_SILICON = (
    *(3.0, 1.0, 0.0, 1.0039e5, 16.217, -0.59825, 0.78734, 1.1e-6),
    *(1.73222, 471.18, 2.85, 0.15, 2.4799, 1830.8),
)
_STRUCTURES = 8
emt: Any = EMT
kept: Any = SinglePointCalculator  # ASE has no types for these

Outside = tuple[list[Atoms], list[str], NDArray[np.float64]]
Structure = Any  # ase.Atoms, which has no types for most of what it does


def alloys(run: Path) -> Outside:
    """Return structures outside of the alloys that a run of the quickstart has learnt."""
    test = GraphStore.open(run / "store.gs")["testset"]
    bases = [atoms for atoms in map(atoms_of, test) if len(atoms) <= 32]
    elements = sorted({symbol for atoms in bases for symbol in atoms.symbols})

    def of_elements(rng: Generator, structure: str) -> Structure:
        """A cell of two elements in a phase, with the mean of their volumes."""
        first, second = rng.choice(elements, 2, replace=False)
        volume = np.mean([copy_of(bulk(symbol)).get_volume() for symbol in (first, second)])
        atoms = copy_of(bulk(first, structure, a=1.0, covera=1.633)) * (2, 2, 2)
        size = (volume * len(atoms) / atoms.get_volume()) ** (1 / 3)
        atoms.set_cell(atoms.cell.array * size, scale_atoms=True)
        atoms.symbols[1::2] = second
        atoms.rattle(0.05, rng=rng)
        return atoms

    def pure(rng: Generator) -> Structure:
        atoms = copy_of(bulk(rng.choice(elements), cubic=True))
        atoms.rattle(0.05, rng=rng)
        return atoms

    more = {kind: partial(of_elements, structure=kind) for kind in ("bcc", "hcp", "sc")}
    return _labelled(_kinds(bases, {"one element": pure, **more}), emt())


def silicon(folder: Path, seed: int) -> tuple[dict[str, Any], Outside]:
    """Write 160 cells of silicon to a folder; return its section `data` and structures outside."""
    rng = np.random.default_rng(seed)
    cells = [_cell(rng) for _ in range(160)]
    tersoff = Tersoff({("Si", "Si", "Si"): TersoffParameters(*_SILICON)})
    for atoms in cells:
        atoms.calc = tersoff
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        atoms.calc = kept(atoms, energy=energy, forces=forces)
    ase.io.write(folder / "cells.extxyz", cells)
    data = _data({"format": "ase", "train": "cells.extxyz"}, test=0.15)

    def phase(rng: Generator, structure: str) -> Structure:
        atoms = bulk("Si", structure, a={"fcc": 3.9, "bcc": 3.1, "sc": 2.5}[structure])
        atoms = copy_of(atoms) * (2, 2, 2)
        atoms.rattle(0.05, rng=rng)
        return atoms

    more = {structure: partial(phase, structure=structure) for structure in ("fcc", "bcc", "sc")}
    return data, _labelled(_kinds(cells, more), tersoff)


def left_out(
    element: str, group: str, mlearn: Path, folder: Path
) -> tuple[dict[str, Any], Outside]:
    """Write a set of mlearn without a group to a folder; return `data` and the group."""
    outside: list[dict[str, Any]] = []
    for part in ("training", "test"):
        name = f"{element}_{part}.json"
        content = json.loads((mlearn / name).read_text(encoding="utf-8"))
        outside += [one for one in content if one["group"] == group]
        kept = [one for one in content if one["group"] != group]
        (folder / name).write_text(json.dumps(kept), encoding="utf-8")
    structures = [_of_pymatgen(one["structure"]) for one in outside]
    energies = np.array([one["outputs"]["energy"] for one in outside])
    files = {part.removesuffix("ing"): f"{element}_{part}.json" for part in ("training", "test")}
    return _data({"format": "json", **files}), (structures, [group] * len(structures), energies)


def _data(source: dict[str, str], **split: float) -> dict[str, Any]:
    """The section `data` of files with energies and forces."""
    targets = {"energy": "eV", "forces": "eV/Å"}
    return {"source": {**source, "targets": targets}, "split": {"val": 0.15, **split}}


def _of_pymatgen(structure: dict[str, Any]) -> Atoms:
    sites = structure["sites"]
    return Atoms(
        [site["species"][0]["element"] for site in sites],
        cell=structure["lattice"]["matrix"],
        scaled_positions=[site["abc"] for site in sites],
        pbc=True,
    )


def _cell(rng: Generator) -> Structure:
    """Eight atoms of silicon, strained by up to 3 % and warm."""
    atoms: Structure = bulk("Si", cubic=True)
    strain = 1 + rng.uniform(-0.03, 0.03, (3, 1))
    atoms.set_cell(atoms.cell.array * strain, scale_atoms=True)
    atoms.rattle(0.08, rng=rng)
    return atoms


def _kinds(
    bases: Sequence[Structure], more: Mapping[str, Callable[[Generator], Structure]]
) -> Iterator[tuple[str, Structure]]:
    """Yield structures outside, and their kinds: made of ``bases``, then of ``more``."""
    rng = np.random.default_rng(0)

    def base() -> Structure:
        return copy_of(bases[int(rng.integers(len(bases)))])

    for factor in (0.85, 0.9, 0.95, 1.05, 1.1, 1.15):
        for _ in range(_STRUCTURES):
            yield f"cell × {factor}", scaled(base(), factor)
    for size in (0.05, 0.1, 0.2, 0.4):
        for _ in range(_STRUCTURES):
            atoms = base()
            atoms.rattle(size, rng=rng)
            yield f"rattled {size} Å", atoms
    for _ in range(_STRUCTURES):
        yield "surface", slab(base(), rng)
        yield "vacancy", without(base(), rng, 1)
        for kind, make in more.items():
            yield kind, make(rng)


def _labelled(kinds: Iterator[tuple[str, Structure]], calculator: Calculator) -> Outside:
    names, structures, energies = [], [], []
    for kind, atoms in kinds:
        atoms.calc = calculator
        energies.append(atoms.get_potential_energy())
        atoms.calc = None
        names.append(kind)
        structures.append(atoms)
    return structures, names, np.array(energies)
