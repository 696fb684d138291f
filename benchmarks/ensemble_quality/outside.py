"""Structures outside the training range, made of given ones, and which of them are flagged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.geometry import find_mic
from numpy.random import Generator
from numpy.typing import NDArray

from hydragnn_flow import Ensemble, GraphStore

Structure = Any  # ase.Atoms, which has no types for most of what it does

_NEW = ("Al", "C", "N", "Pb")
_BASES = 200


@dataclass(frozen=True)
class Flags:
    """Structures that an ensemble flags as unlike its training data."""

    set: str
    test: int
    test_flagged: int
    outside: int
    flagged: int


def flags(name: str, run: Path, times: int) -> Flags:
    """Flags of a run's test split and of structures outside, each kind so many times."""
    ensemble = Ensemble.load(run)
    store = GraphStore.open(run / "store.gs")
    test = ensemble.predict(store, split="testset").graphs["flagged"]
    bases = [atoms_of(graph) for graph, _ in zip(store["testset"], range(_BASES), strict=False)]
    structures = [*outside(bases, np.random.default_rng(0), times)]
    flagged = ensemble.predict(structures).graphs["flagged"]
    return Flags(name, len(test), int(test.sum()), len(flagged), int(flagged.sum()))


def atoms_of(graph: Any) -> Atoms:
    return Atoms(
        graph.x[:, 0].int().tolist(),
        graph.pos.double().numpy(),
        cell=graph.cell.double().numpy(),
        pbc=graph.pbc.bool().tolist(),
    )


def outside(given: Sequence[Atoms], rng: Generator, times: int) -> Iterator[Structure]:
    """Structures of each kind, so many times, each made of a structure drawn for it."""
    seen = {symbol for atoms in given for symbol in atoms.symbols}
    new = [symbol for symbol in _NEW if symbol not in seen]
    kinds: list[Callable[[Structure], Structure]] = [
        *(partial(scaled, factor=factor) for factor in (0.8, 0.85, 0.9, 1.1, 1.2, 1.4)),
        *(partial(without, rng=rng, n=n) for n in (1, 2, 4)),
        *(partial(_cluster, n=n) for n in (1, 4, 13)),
        partial(_close, rng=rng),
        partial(_with, rng=rng, symbol=new[0]),
    ]
    if given[0].pbc.all():
        kinds.append(partial(slab, rng=rng))
    for make in kinds:
        for _ in range(times):
            yield make(copy_of(given[int(rng.integers(len(given)))]))


def copy_of(atoms: Structure) -> Structure:
    return atoms.copy()


def scaled(atoms: Structure, factor: float) -> Structure:
    atoms.positions *= factor
    atoms.set_cell(atoms.cell.array * factor)
    return atoms


def without(atoms: Structure, rng: Generator, n: int) -> Structure:
    """Neighbouring atoms are missing; in a cell of 16 atoms or more if it is periodic."""
    if atoms.pbc.all() and len(atoms) < 16:
        atoms *= (3, 3, 3) if len(atoms) < 8 else (2, 2, 1)
    _, lengths = _from(atoms, int(rng.integers(len(atoms))))
    del atoms[np.argsort(lengths)[:n]]
    return atoms


def slab(atoms: Structure, rng: Generator) -> Structure:
    atoms.wrap()
    axis = int(rng.integers(3))
    cell = atoms.cell.array.copy()
    cell[axis] *= 1 + 12 / np.linalg.norm(cell[axis])
    atoms.set_cell(cell)
    return atoms


def _cluster(atoms: Structure, n: int) -> Structure:
    if atoms.pbc.all():
        atoms *= (2, 2, 2)
    nearest = np.argsort(np.linalg.norm(atoms.positions - atoms.positions.mean(axis=0), axis=1))[:n]
    return Atoms(atoms.numbers[nearest], atoms.positions[nearest])


def _close(atoms: Structure, rng: Generator) -> Structure:
    """An atom at half the distance of its nearest neighbour or less."""
    moved = int(rng.integers(len(atoms)))
    vectors, lengths = _from(atoms, moved)
    lengths[moved] = np.inf
    atoms.positions[moved] += vectors[lengths.argmin()] * rng.uniform(0.5, 0.8)
    return atoms


def _with(atoms: Structure, rng: Generator, symbol: str) -> Structure:
    atoms.symbols[int(rng.integers(len(atoms)))] = symbol
    return atoms


def _from(atoms: Structure, one: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Vectors and distances from an atom to all."""
    find: Any = find_mic
    vectors, lengths = find(atoms.positions - atoms.positions[one], atoms.cell, atoms.pbc)
    return vectors, np.asarray(lengths)
