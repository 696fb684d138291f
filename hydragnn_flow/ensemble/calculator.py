"""ASE calculator of an ensemble: relaxations and molecular dynamics with error bars."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ase import Atoms, units
from ase.calculators.calculator import CalculationFailed, Calculator, all_changes
from ase.outputs import Properties, all_outputs
from ase.stress import voigt_6_to_full_3x3_stress
from torch import Tensor, nn

from hydragnn_flow.ensemble.ensemble import Ensemble
from hydragnn_flow.ensemble.predictions.inputs import graph_inputs
from hydragnn_flow.ensemble.uncertainty.distribution import Floats, combine
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.potential import Potential
from hydragnn_flow.models.stress import STRESS
from hydragnn_flow.models.units import energy_unit
from hydragnn_flow.training.device import usable_device
from hydragnn_flow.training.loading import moved
from hydragnn_flow.training.predict import join_members

_PROPERTIES = ("energy", "forces", STRESS)
_IN_EV = {
    "ev": 1.0,
    "mev": 1e-3,
    "kcal/mol": units.kcal / units.mol,
    "kj/mol": units.kJ / units.mol,
    "hartree": units.Hartree,
    "rydberg": units.Rydberg,
}


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
    - ``note``, how the structure differs from the training data, in words, and ``flagged``, true
      if it does;
    - the members' variances ``energy_var``, ``forces_var`` [n_atoms, 3] and ``stress_var`` [3, 3],
      not calibrated: all members count alike, and the sum is divided by their number.

    Parameters
    ----------
    ensemble
        Ensemble of potentials. The calculator keeps a copy of its networks.
    device
        Device of the networks, by torch's name.
    energy_units_to_eV
        Unit of energy of the training data [eV]. By default it follows from their stated unit.

    Raises
    ------
    InputError
        If the ensemble is not of potentials, needs more than structures, or predicts the median of
        its members, if the unit of its energies is unknown, or if there is no such device.

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

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """Return the changes since the last calculation, with `info` if the networks read it."""
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
        """Compute all properties of a structure; ASE calls this after any change of it.

        Raises
        ------
        InputError
            If the structure has an element the ensemble never saw, or cannot be a graph.
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
        n_atoms = np.array([len(structure)])
        (note,) = self.ensemble.remarks(self.ensemble.applicability.notes(batch), members, n_atoms)
        self.results = self._results(members, len(structure))
        self.results |= {"note": note, "flagged": bool(note)}

    def export_properties(self) -> Properties:
        """Return ASE's own results, the only ones that `Atoms.get_properties` accepts."""
        return Properties({name: v for name, v in self.results.items() if name in all_outputs})

    def _results(self, members: dict[str, Floats], n_atoms: int) -> dict[str, Any]:
        """Return all results, in eV and Å, from every member's outputs in the data's units."""
        predicted = self.ensemble.distributions(members, np.array([n_atoms]), None)
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
        if ensemble.aggregation == "median":
            raise InputError(
                "the ensemble predicts the median of its members, whose forces are no slope of its "
                "energy; train one with ensemble.aggregation: weighted, or call the ensemble's "
                "predict"
            )
        return
    predicts = ", ".join(ensemble.calibrations)
    raise InputError(
        f"the ensemble predicts {predicts} and is no interatomic potential; train one with "
        f"Architecture.enable_interatomic_potential, or call the ensemble's predict"
    )


def _in_ev(ensemble: Ensemble) -> float:
    unit = ensemble.manifest.targets["energy"].unit
    name = energy_unit(unit)
    if name is None:
        raise InputError(
            f"the ensemble's energies are in {unit or 'unknown units'}, and ASE's are in eV; say "
            f"how many eV that is with energy_units_to_eV"
        )
    return _IN_EV[name]


def _with_stress(model: nn.Module) -> nn.Module:
    """Return a copy that also computes the stress: a slope of the energy, so it needs no labels."""
    copied = copy.deepcopy(model).eval()
    assert isinstance(copied, Potential)
    copied.stress = True
    return copied


def _array(values: Tensor) -> Floats:
    return values.cpu().numpy().astype(np.float64)


def _of_one(name: str, values: Floats) -> Floats:
    """Return values [..., n, d] of a single structure in ASE's shape."""
    if name == "forces":
        return values
    return np.asarray(values[..., 0, 0] if name == "energy" else values[..., 0, :])
