"""ASE calculator of an ensemble, and a watch that records or stops at uncertain structures."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import CalculationFailed, Calculator, all_changes
from ase.calculators.singlepoint import SinglePointCalculator
from ase.filters import Filter
from ase.outputs import Properties, all_outputs
from ase.stress import voigt_6_to_full_3x3_stress
from torch import Tensor, nn

from hydragnn_flow.config.units import conversion
from hydragnn_flow.ensemble.applicability import extrapolation_of
from hydragnn_flow.ensemble.ensemble import Ensemble
from hydragnn_flow.ensemble.predictions.inputs import graph_inputs
from hydragnn_flow.ensemble.predictions.table import DISAGREEMENT, extended_xyz
from hydragnn_flow.ensemble.uncertainty.distribution import Floats, StructureFacts, combine
from hydragnn_flow.errors import InputError, UncertaintyExceeded
from hydragnn_flow.files import AppendOnly, is_there
from hydragnn_flow.models.geometry import STRESS
from hydragnn_flow.models.potential import Potential
from hydragnn_flow.training.distributed import usable_device
from hydragnn_flow.training.loading import moved
from hydragnn_flow.training.predict import join_members

_PROPERTIES = ("energy", "forces", STRESS)


class EnsembleCalculator(Calculator):
    """ASE calculator over an ensemble of interatomic potentials.

    Energy, forces and stress are the ensemble's means, equal to those of :meth:`Ensemble.predict`.
    Forces and stress are slopes of that energy, so dynamics conserve it. The stress needs no labels
    of stresses; it is absent where a structure is not periodic in all three directions.

    In addition to ASE's own properties, `results` holds

    - calibrated standard deviations of the targets that the training data have: ``energy_std``
      [eV], ``forces_std`` [n_atoms, 3] eV/Å, ``stress_std`` [6] eV/Å³;
    - the members' predictions, in the names and shapes of MACECalculator: ``energy_comm``
      [n_members] eV, ``forces_comm`` [n_members, n_atoms, 3] eV/Å, ``stress_comm``
      [n_members, 3, 3] eV/Å³;
    - ``note``, how the structure differs from the training data, in words, ``flagged``, true if
      it does, and ``disagreement``, that of :meth:`.Applicability.disagreement`;
    - the members' variances ``energy_var``, ``forces_var`` [n_atoms, 3] and ``stress_var`` [3, 3],
      not calibrated: all members have equal weight, and the sum of squares is divided by the number
      of members.

    Parameters
    ----------
    ensemble
        Ensemble of potentials. The calculator keeps a copy of its networks.
    device
        Device of the networks, by torch's name.
    energy_units_to_eV
        Factor that converts energies of the training data to eV. If None, it follows from the unit
        that the training data state.

    Raises
    ------
    InputError
        If the ensemble's members are not potentials or need more than structures, if the unit of
        its energies is unknown, or if there is no such device.

    Examples
    --------
    >>> atoms.calc = EnsembleCalculator(Ensemble.load("runs/quickstart"))
    >>> atoms.get_potential_energy(), atoms.calc.results["energy_std"]
    """

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        device: str | torch.device = "cpu",
        energy_units_to_eV: float | None = None,
    ) -> None:
        super().__init__()
        _check_potential(ensemble)
        ensemble.check_reads_structures()
        self.ignored_changes = {"initial_charges", "initial_magmoms"}  # no network reads them
        self.ensemble = ensemble
        self._factor = _in_ev(ensemble) if energy_units_to_eV is None else energy_units_to_eV
        if not 0 < self._factor < math.inf:
            raise InputError(
                f"energy_units_to_eV is {energy_units_to_eV}; give the number of eV in the unit of "
                f"the training data"
            )
        self._device = usable_device(device)
        self._models = [_with_stress(model).to(self._device) for model in ensemble.models]
        deviations = [f"{name}_std" for name in _PROPERTIES if name in ensemble.calibrations]
        committee = [f"{name}_{what}" for name in _PROPERTIES for what in ("comm", "var")]
        self.implemented_properties = [
            *_PROPERTIES,
            "free_energy",
            *deviations,
            *committee,
            "note",
            "flagged",
        ]
        if ensemble.applicability.deviations:
            self.implemented_properties.append(DISAGREEMENT)

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """Return the names of the properties of ``atoms`` that changed since the last calculation.

        `info` is among them only if a value that the networks read from it has changed.
        """
        changes: list[str] = super().check_state(atoms, tol)
        before: dict[str, Any] = {} if self.atoms is None else self.atoms.info
        now: dict[str, Any] = atoms.info
        names = graph_inputs(self.ensemble.manifest)
        nothing = np.nan  # unequal even to itself
        if any(not np.array_equal(before.get(k, nothing), now.get(k, nothing)) for k in names):
            changes.append("info")
        return changes

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] | None = None,
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Compute all properties of a structure; ASE calls this after any change of the structure.

        Raises
        ------
        InputError
            If the structure has an element that the ensemble was not trained on, or cannot be a
            graph.
        CalculationFailed
            If an energy, force or stress is not finite.
        """
        self.results = {}  # drops results of the last structure, in case this one is refused
        super().calculate(atoms, properties, system_changes)
        structure = self.atoms
        assert structure is not None
        batch = moved(self.ensemble.batch_of(structure), self._device)
        with torch.no_grad():
            outputs = [model(batch) for model in self._models]
        members = join_members(
            [{name: _array(values) for name, values in found.items()} for found in outputs]
        )
        notes = self.ensemble.applicability.compare(batch)
        beyond = extrapolation_of(members, self.ensemble.weights)
        only = StructureFacts(np.array([len(structure)]), extrapolation=beyond)
        (note,), (disagreement,) = self.ensemble.remarks(notes, members, only)
        self.results = self._results(members, only)
        self.results |= {"note": note, "flagged": bool(note), DISAGREEMENT: float(disagreement)}

    def export_properties(self) -> Properties:
        """Return the results that ASE defines, since `Atoms.get_properties` accepts no others."""
        return Properties({name: v for name, v in self.results.items() if name in all_outputs})

    def _results(self, members: dict[str, Floats], structures: StructureFacts) -> dict[str, Any]:
        """Return all results by name, in eV and Å, except the note.

        ``members`` are every member's outputs in the units of the training data, and ``structures``
        the properties of the one structure.
        """
        predicted = self.ensemble.distributions(members, structures)
        results: dict[str, Any] = {}
        for name in _PROPERTIES:
            committee = self._factor * _of_one(name, members[name])
            mean, _ = combine(committee, self.ensemble.weights)
            if name == STRESS:
                if np.isnan(mean).all():
                    continue  # not periodic in three directions
                committee = np.array([voigt_6_to_full_3x3_stress(member) for member in committee])
            if not np.isfinite(mean).all():
                raise CalculationFailed(f"the ensemble's {name} of this structure is not finite")
            results |= {name: mean, f"{name}_comm": committee, f"{name}_var": committee.var(axis=0)}
            if name in predicted:
                results[f"{name}_std"] = self._factor * _of_one(name, predicted[name].std)
        results["free_energy"] = results["energy"]
        return results


def _check_potential(ensemble: Ensemble) -> None:
    if all(isinstance(model, Potential) for model in ensemble.models):
        return
    predicts = ", ".join(ensemble.calibrations)
    raise InputError(
        f"the ensemble predicts {predicts} and is no interatomic potential; train one on "
        f"energies and forces (Architecture.enable_interatomic_potential), or call the ensemble's "
        f"predict"
    )


def _in_ev(ensemble: Ensemble) -> float:
    unit = ensemble.manifest.targets["energy"].unit
    factor = conversion(unit, "eV")
    if factor is None:
        raise InputError(
            f"the ensemble's energies are in {unit or 'unknown units'}, and ASE's are in eV; say "
            f"how many eV that is with energy_units_to_eV"
        )
    return factor


def _with_stress(model: nn.Module) -> nn.Module:
    """Return a copy of a potential that also computes the stress.

    The stress is a slope of the energy, so the potential need not be trained on stresses.
    """
    copied = copy.deepcopy(model).eval()
    assert isinstance(copied, Potential)
    copied.stress = True
    return copied


def _array(values: Tensor) -> Floats:
    return values.cpu().numpy().astype(np.float64)


def _of_one(name: str, values: Floats) -> Floats:
    """Return values [..., n, d] of the property ``name`` of one structure in ASE's shape."""
    if name == "forces":
        return values
    return np.asarray(values[..., 0, 0] if name == "energy" else values[..., 0, :])


_WRITTEN = ("energy", "free_energy", "forces", "stress")


class UncertaintyWatch:
    """Observer of an ASE relaxation or molecular dynamics that watches for uncertain structures.

    Attach it to the dynamics. It writes each structure whose uncertainty is beyond a threshold to a
    file, or stops the dynamics there, or both.

    Parameters
    ----------
    dynamics
        Relaxation or dynamics whose atoms have an :class:`EnsembleCalculator`.
    disagreement
        Threshold of the members' disagreement, see :meth:`.Applicability.disagreement`. If no
        threshold at all is given, it is 1, above which structures are flagged.
    forces_std
        Threshold of the standard deviation of any atom's force [eV/Å]: the root of the sum of its
        components' variances, which rotations do not change.
    energy_std_per_atom
        Threshold of the standard deviation of the energy, divided by the number of atoms [eV].
    file
        Extended XYZ to which structures beyond a threshold are appended: momenta, energy, forces
        and stress, `energy_std`, `forces_std`, `disagreement` and the `step`.
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
    >>> watch = UncertaintyWatch(dynamics, file="unsure.extxyz", stop=True)
    >>> dynamics.attach(watch, interval=10)
    """

    def __init__(
        self,
        dynamics: Any,
        *,
        disagreement: float | None = None,
        forces_std: float | None = None,
        energy_std_per_atom: float | None = None,
        file: str | Path | None = None,
        stop: bool = False,
    ) -> None:
        self._dynamics = dynamics
        self._atoms = _atoms_of(dynamics)
        given = {
            DISAGREEMENT: disagreement,
            "forces_std": forces_std,
            "energy_std": energy_std_per_atom,
        }
        limits = {name: limit for name, limit in given.items() if limit is not None}
        self._limits = limits or {DISAGREEMENT: 1.0}
        if not all(limit > 0 for limit in self._limits.values()):
            raise InputError(f"thresholds to watch are {limits}; give values above zero")
        if file is None and not stop:
            raise InputError("there is nothing to do at the thresholds; give file, stop or both")
        known = getattr(self._atoms.calc, "implemented_properties", ())
        for name in self._limits:
            if name not in known:
                of = "a range of disagreement in its calibration"
                if name != DISAGREEMENT:
                    of = f"labels of {name.removesuffix('_std')}"
                raise InputError(
                    f"the calculator of the watched atoms has no {name}; give them an "
                    f"EnsembleCalculator of an ensemble with {of}"
                )
        self._file = None if file is None else Path(file)
        if self._file is not None:
            _make_ready(self._file)
        self._stop = stop
        self.steps: list[int] = []
        """Numbers of the steps whose structures were beyond a threshold."""

    def __call__(self) -> None:
        """Check the present structure, and record it if it is beyond a threshold.

        The dynamics calls this.

        Raises
        ------
        UncertaintyExceeded
            If the structure is beyond a threshold and ``stop`` is true.
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
        """Return a sentence on the first quantity beyond its threshold; None if none is beyond."""
        for name, limit in self._limits.items():
            values = self._atoms.calc.get_property(name, self._atoms)
            if name == "forces_std":
                values = np.linalg.norm(values, axis=1)
                worst = int(values.argmax())
                atom = f"atom {worst} ({self._atoms.symbols[worst]})"
                what, unit = f"the force on {atom} has a standard deviation of", " eV/Å"
            elif name == "energy_std":
                values = values / len(self._atoms)
                what, unit = "the energy has a standard deviation of", " eV per atom"
            else:
                what, unit = "the members' disagreement is", ""
            found = np.max(values)
            if not found <= limit:
                return f"{what} {found:.3g}{unit}, above {limit:g}"
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
        for name in ("energy_std", DISAGREEMENT):
            if name in results:
                frame.info[name] = float(results[name])
        if "forces_std" in results:
            frame.arrays["forces_std"] = results["forces_std"]
        return extended_xyz([frame])


def _atoms_of(dynamics: Any) -> Atoms:
    """Return the atoms of a relaxation or dynamics, without ASE's filters around them.

    Raises
    ------
    InputError
        If ``dynamics`` is not a relaxation or dynamics of one structure.
    """
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
    """Prepare a file for appending: cut off a structure at its end that a crash left incomplete.

    Raises
    ------
    InputError
        If the file exists and is not extended XYZ, or there is no such directory.
    """
    if file.is_dir() or not file.parent.is_dir():
        raise InputError(f"{file}: is no file in a directory that is there; name another")
    if not is_there(file):
        return
    with file.open("rb+") as frames:
        whole = 0
        while count := frames.readline():
            lines = 1 + int(count) if len(count.strip()) < 12 and count.strip().isdigit() else 0
            rest = [*islice(iter(frames.readline, b""), lines)]
            if lines and len(rest) == lines and rest[-1].endswith(b"\n"):
                whole = frames.tell()
            elif lines and whole:
                frames.truncate(whole)
                return
            else:
                raise InputError(f"{file}: is no extended XYZ; delete it or name another file")
