"""Source of generated structures: random fcc alloys labelled by effective medium theory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray
from pydantic import Field, field_validator

from hydragnn_flow.config.sources import Level, SourceSection, TargetConfig
from hydragnn_flow.data.sources.base import Chunk, Record
from hydragnn_flow.data.sources.file_names import ranges
from hydragnn_flow.data.sources.labels import LabelCheck
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    import ase

_UNITS = {"energy": "eV", "forces": "eV/Å"}

_PER_CHUNK = 64
"""Number of structures in a chunk, about a second of EMT."""


class EmtSource(SourceSection):
    """Configuration section `data.source` for fcc alloys, labelled by ASE's EMT calculator.

    The alloys are generated at random, strained and rattled.
    """

    reads = "nothing; it generates alloys"
    labels = "energy and forces by ASE's EMT"

    structures: int = Field(default=300, ge=3)
    """Number of structures to generate."""
    elements: tuple[Literal["Al", "Cu", "Ag", "Au", "Ni", "Pd", "Pt"], ...] = (
        "Cu",
        "Ni",
        "Pd",
        "Ag",
        "Pt",
        "Au",
    )
    """Chemical elements to draw from (those that EMT knows as fcc metals)."""
    atoms: tuple[int, int] = (8, 64)
    """Smallest and largest number of atoms in a cell."""

    @field_validator("elements")
    @classmethod
    def _each_once(cls, elements: tuple[str, ...]) -> tuple[str, ...]:
        if not elements or len(set(elements)) != len(elements):
            raise ValueError("give at least one element, each once")
        return elements

    @field_validator("atoms")
    @classmethod
    def _ordered(cls, atoms: tuple[int, int]) -> tuple[int, int]:
        if not 8 <= atoms[0] <= atoms[1] <= 64:
            raise ValueError("give [smallest, largest] with 8 <= smallest <= largest <= 64")
        return atoms

    def open(self, folder: Path, seed: int) -> EmtAlloys:
        return EmtAlloys(self, seed)

    @property
    def target_levels(self) -> dict[str, Level | None]:
        """Level of each target: ``graph`` for the energy, ``node`` for the forces on atoms."""
        return {"energy": "graph", "forces": "node"}


class EmtAlloys:
    """Generator of random fcc alloys, labelled by ASE's EMT calculator.

    Each alloy is a supercell of the cubic fcc cell: random species in a random composition of two
    to all elements, the mean lattice constant of its elements (Vegard's law, from ASE's reference
    data), a random homogeneous strain and random displacements.

    Parameters
    ----------
    config
        Section with the number of structures, their elements and sizes.
    seed
        Seed of all structures; structure ``i`` does not depend on the number of structures.

    Raises
    ------
    InputError
        If no supercell has a number of atoms within ``config.atoms``.
    """

    node_features = ("atomic_number",)

    def __init__(self, config: EmtSource, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._labels = LabelCheck({name: TargetConfig(unit=unit) for name, unit in _UNITS.items()})
        self.found_targets: Mapping[str, Target] = self._labels.found
        self._supercells = _supercells(*config.atoms)
        if not self._supercells:
            raise InputError(
                "data.source.atoms: no supercell of cubic cells of 4 atoms has between "
                f"{config.atoms[0]} and {config.atoms[1]} atoms; widen the range"
            )

    def files(self) -> list[Path]:
        return []

    def chunks(self) -> list[Chunk]:
        n = self._config.structures
        return [Chunk("train", "", start, stop, 0) for start, stop in ranges(n, _PER_CHUNK, n)]

    def read(self, chunk: Chunk) -> Iterator[Record]:
        for i in range(chunk.start, chunk.stop):
            rng = default_rng(SeedSequence(self._seed, spawn_key=(0, i)))
            atoms = _random_alloy(rng, self._config.elements, self._supercells)
            labels = _label(atoms)
            origin = f"{self._config.format}: structure {i}"
            self._labels.check(labels, len(atoms), origin)
            yield Record(atoms, labels, origin, chunk.first + i)


def _label(atoms: ase.Atoms) -> dict[str, NDArray[np.float64]]:
    from ase.calculators.emt import EMT

    make_calculator: Any = EMT  # ASE has no types for it
    calculator = make_calculator()
    calculator.calculate(atoms, ["energy", "forces"])
    return {
        "energy": np.array([calculator.results["energy"]]),
        "forces": np.array(calculator.results["forces"]),
    }


def _supercells(smallest: int, largest: int) -> list[tuple[int, int, int]]:
    """Return repeats (a >= b >= c) of the cubic fcc cell, for ``smallest`` to ``largest`` atoms.

    The repeats a and c differ by two at most, which excludes needles.
    """
    every = itertools.product(range(1, largest // 4 + 1), repeat=3)
    return [
        (a, b, c)
        for a, b, c in every
        if c + 2 >= a >= b >= c and smallest <= 4 * a * b * c <= largest
    ]


def _random_alloy(
    rng: Generator, elements: Sequence[str], supercells: Sequence[tuple[int, int, int]]
) -> ase.Atoms:
    import ase
    from ase.build import bulk

    repeats = supercells[int(rng.integers(len(supercells)))]
    n_elements = rng.integers(min(2, len(elements)), len(elements) + 1)
    chosen = rng.choice(np.array(elements), size=n_elements, replace=False)
    fractions = rng.dirichlet(np.ones(n_elements))
    n_atoms = 4 * int(np.prod(repeats))
    species = rng.choice(chosen, size=n_atoms, p=fractions)

    lattice_constant = float(np.mean([_lattice_constant(symbol) for symbol in species]))
    ideal: ase.Atoms = bulk("Cu", "fcc", a=lattice_constant, cubic=True) * repeats
    noise = rng.normal(scale=0.02, size=(3, 3))
    deformation = np.eye(3) + (noise + noise.T) / 2
    # Å; the upper end is beyond room temperature.
    displacements = rng.normal(scale=rng.uniform(0.02, 0.15), size=(n_atoms, 3))
    return ase.Atoms(
        [str(symbol) for symbol in species],
        positions=ideal.positions @ deformation + displacements,
        cell=ideal.cell.array @ deformation,
        pbc=True,
    )


def _lattice_constant(symbol: str) -> float:
    """Return the experimental lattice constant of an fcc element [Å] from ASE."""
    from ase.data import atomic_numbers, reference_states

    reference: Any = reference_states[atomic_numbers[symbol]]
    return float(reference["a"])
