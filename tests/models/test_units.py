"""Units that forces and stresses of a potential may have."""

import pytest

from hydragnn_flow.config.units import energy_unit, is_slope

PER_LENGTH = (
    *("eV/Å", "eV/\N{ANGSTROM SIGN}", "eV / A", "eV/Ang", "eV/angstrom", "eV/Ångström", "ev/AA"),
    *("", "eV Å^-1", "eV Å**-1", "eV·Å^-1", "eV Å⁻¹"),  # an empty one is not judged
)
OF_OTHERS = [
    *(("kcal/mol/Å", "kcal/mol"), ("eV/Å", ""), ("Ha/Å", "Hartree")),
    *(("kcal/(mol·Å)", "kcal/mol"), ("kJ/mol/Å", "kJ mol^-1")),
    *(("epsilon/A", "epsilon"), ("epsilon/sigma", "epsilon")),
]
NOT_PER_LENGTH = ("meV/Å", "Hartree/Bohr", "eV/Bohr", "eV/a0", "eV/nm", "eV/Å³", "GPa")
NOT_PER_LENGTH += ("eV", "a.u.", "ticks/Å", "eV/tick", "N", "Ry/au", "hartree/Å")
PER_VOLUME = ("eV/Å³", "eV/Å^3", "eV/A**3", "eV/(Å^3)", "eV/Ang3", "")
NOT_PER_VOLUME = ("GPa", "kbar", "eV/Å", "eV/Ang", "meV/Å³", "Hartree/Bohr^3")
NOT_PER_VOLUME += ("eV", "kB", "kilobar", "N/m^2", "a.u.", "dyn/cm²", "eV/nm³")


@pytest.mark.parametrize("by_volume", [False, True])
def test_units_of_slopes_of_an_energy(by_volume):
    right, wrong = (PER_VOLUME, NOT_PER_VOLUME) if by_volume else (PER_LENGTH, NOT_PER_LENGTH)
    for unit in (*right, *wrong):
        assert is_slope(unit, "eV", by_volume=by_volume) == (unit in right), unit
    for unit, energy in OF_OTHERS if not by_volume else ():
        assert is_slope(unit, energy), unit


def test_units_of_energy():
    known = {"eV": "ev", "kcal / mol": "kcal/mol", "KJ/mol": "kj/mol", "Ha": "hartree"}
    known |= {"Eh": "hartree", "Ry": "rydberg"}
    for text in (*known, "", "eV/atom", "ticks"):
        assert energy_unit(text) == known.get(text)
