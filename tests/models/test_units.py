"""Units that forces and stresses of a potential may have."""

import pytest

from hydragnn_flow.models.units import energy_unit, is_slope


@pytest.mark.parametrize(
    ("unit", "energy"),
    [
        ("eV/Å", "eV"),
        ("eV/\N{ANGSTROM SIGN}", "eV"),
        ("eV / A", "eV"),
        ("eV/Ang", "eV"),
        ("eV/angstrom", "eV"),
        ("kcal/mol/Å", "kcal/mol"),
        ("", "eV"),
        ("eV/Å", ""),
        ("eV/Ångström", "eV"),
        ("ev/AA", "eV"),
        ("Ha/Å", "Hartree"),
        # What is not understood is not judged.
        ("eV Å^-1", "eV"),
        ("kcal/(mol·Å)", "kcal/mol"),
        ("kJ/mol/Å", "kJ mol^-1"),
        ("ticks/Å", "eV"),
        ("eV/tick", "eV"),
    ],
)
def test_forces_by_length(unit, energy):
    assert is_slope(unit, energy)


@pytest.mark.parametrize(
    "unit", ["meV/Å", "Hartree/Bohr", "eV/Bohr", "eV/a0", "eV/nm", "eV/Å³", "GPa"]
)
def test_what_forces_are_not(unit):
    assert not is_slope(unit, "eV")


@pytest.mark.parametrize("unit", ["eV/Å³", "eV/Å^3", "eV/A**3", "eV/(Å^3)", "eV/Ang3", ""])
def test_stress_by_volume(unit):
    assert is_slope(unit, "eV", by_volume=True)


@pytest.mark.parametrize("unit", ["GPa", "kbar", "eV/Å", "eV/Ang", "meV/Å³", "Hartree/Bohr^3"])
def test_what_a_stress_is_not(unit):
    assert not is_slope(unit, "eV", by_volume=True)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("eV", "ev"),
        ("kcal / mol", "kcal/mol"),
        ("KJ/mol", "kj/mol"),
        ("Ha", "hartree"),
        ("Eh", "hartree"),
        ("Ry", "rydberg"),
        ("", None),
        ("eV/atom", None),
        ("ticks", None),
    ],
)
def test_units_of_energy(text, name):
    assert energy_unit(text) == name
