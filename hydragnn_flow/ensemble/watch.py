"""Watch over relaxations and dynamics: record uncertain structures, or stop there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.filters import Filter

from hydragnn_flow.ensemble.predictions.table import extended_xyz
from hydragnn_flow.errors import InputError, UncertaintyExceeded
from hydragnn_flow.files import AppendOnly, is_there

_WRITTEN = ("energy", "free_energy", "forces", "stress")


class UncertaintyWatch:
    """Observer of a relaxation or molecular dynamics of ASE, for its ``attach``.

    Parameters
    ----------
    dynamics
        Relaxation or dynamics whose atoms have an :class:`EnsembleCalculator`.
    forces_std
        Threshold of the standard deviation of any atom's force [eV/Å]: the root of the sum of its
        components' variances, which does not depend on the frame.
    energy_std_per_atom
        Threshold of the standard deviation of the energy, divided by the number of atoms [eV].
    file
        Extended XYZ to which structures beyond a threshold are appended: momenta, energy, forces
        and stress, `energy_std`, `forces_std` and the `step`.
    stop
        True to end the dynamics at the first structure beyond a threshold.

    Raises
    ------
    InputError
        If there is nothing to watch or to do, if the dynamics has several structures (as a band
        has), if a threshold is not above zero, if the atoms' calculator does not provide the
        deviation, or if ``file`` cannot be made or exists and is not extended XYZ.

    Examples
    --------
    >>> dynamics = VelocityVerlet(atoms, 2 * units.fs)
    >>> watch = UncertaintyWatch(dynamics, forces_std=0.3, file="unsure.extxyz", stop=True)
    >>> dynamics.attach(watch, interval=10)
    """

    def __init__(
        self,
        dynamics: Any,
        *,
        forces_std: float | None = None,
        energy_std_per_atom: float | None = None,
        file: str | Path | None = None,
        stop: bool = False,
    ) -> None:
        self._dynamics = dynamics
        self._atoms = _atoms_of(dynamics)
        given = {"forces_std": forces_std, "energy_std": energy_std_per_atom}
        self._limits = {name: limit for name, limit in given.items() if limit is not None}
        if not self._limits or not all(limit > 0 for limit in self._limits.values()):
            raise InputError(
                f"thresholds to watch are {self._limits or 'missing'}; give forces_std, "
                f"energy_std_per_atom or both, above zero"
            )
        if file is None and not stop:
            raise InputError("there is nothing to do at the thresholds; give file, stop or both")
        known = getattr(self._atoms.calc, "implemented_properties", ())
        for name in self._limits:
            if name not in known:
                raise InputError(
                    f"the calculator of the watched atoms has no {name}; give them an "
                    f"EnsembleCalculator of an ensemble with labels of {name.removesuffix('_std')}"
                )
        self._file = None if file is None else Path(file)
        if self._file is not None:
            _make_ready(self._file)
        self._stop = stop
        self.steps: list[int] = []
        """Steps of the dynamics that were beyond a threshold."""

    def __call__(self) -> None:
        """Check the present structure; the dynamics calls this.

        Raises
        ------
        UncertaintyExceeded
            If the structure is beyond a threshold and the dynamics is to stop there.
        OSError
            If the structure cannot be written to disk.
        """
        reason = self._reason()
        if reason is None:
            return
        self.steps.append(self._dynamics.nsteps)
        if self._file is not None:
            AppendOnly(self._file).append(self._frame().encode())
        if self._stop:
            where = "" if self._file is None else f"; the structure is in {self._file}"
            raise UncertaintyExceeded(f"step {self._dynamics.nsteps}: {reason}{where}")

    def _reason(self) -> str | None:
        """Return a sentence on the quantity beyond its threshold; None if there is none."""
        for name, limit in self._limits.items():
            values = self._atoms.calc.get_property(name, self._atoms)
            if name == "forces_std":
                values = np.linalg.norm(values, axis=1)
                worst = int(values.argmax())
                what, unit = f"force on atom {worst} ({self._atoms.symbols[worst]})", "eV/Å"
            else:
                values = values / len(self._atoms)
                what, unit = "energy", "eV per atom"
            found = np.max(values)
            if not found <= limit:
                return f"the {what} has a standard deviation of {found:.3g} {unit}, above {limit:g}"
        return None

    def _frame(self) -> str:
        results = self._atoms.calc.results
        frame = self._atoms.copy()
        known = {name: results[name] for name in _WRITTEN if name in results}
        for name in known:  # labels of the initial structure
            frame.info.pop(name, None)
            frame.arrays.pop(name, None)
        frame.calc = SinglePointCalculator(frame, **known)
        frame.info["step"] = self._dynamics.nsteps
        if "energy_std" in results:
            frame.info["energy_std"] = float(results["energy_std"])
        if "forces_std" in results:
            frame.arrays["forces_std"] = results["forces_std"]
        return extended_xyz([frame])


def _atoms_of(dynamics: Any) -> Atoms:
    """Return the atoms of a dynamics, inside any filters of its cell."""
    atoms: Any = getattr(dynamics, "atoms", None)
    while isinstance(atoms, Filter):
        atoms = atoms.atoms
    if not isinstance(atoms, Atoms):
        raise InputError(
            f"{type(dynamics).__name__} is no relaxation or dynamics of one structure; watch one "
            f"that is"
        )
    return atoms


def _make_ready(file: Path) -> None:
    """Truncate a structure half written before a crash; refuse files of another format."""
    if file.is_dir() or not file.parent.is_dir():
        raise InputError(f"{file}: is no file in a directory that is there; name another")
    if not is_there(file):
        return
    with file.open("rb+") as frames:
        whole = 0
        while count := frames.readline():
            known = count.strip().isdigit()
            rest = [frames.readline() for _ in range(int(count) + 1)] if known else [b""]
            if rest[-1].endswith(b"\n"):
                whole = frames.tell()
            elif known and whole:
                frames.truncate(whole)
                return
            else:
                raise InputError(f"{file}: is no extended XYZ; delete it or name another file")
