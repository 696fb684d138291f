"""Units of energies, forces and stresses: which belong together, and conversion between them."""

from __future__ import annotations

import re
import unicodedata

_ENERGIES = {
    **{name: name for name in ("ev", "mev", "kcal/mol", "kj/mol")},
    **dict.fromkeys(("ha", "hartree", "eh"), "hartree"),
    **dict.fromkeys(("ry", "rydberg"), "rydberg"),
}
_LENGTH = re.compile(r"bohr|a0|nm|pm|(?P<ours>[aå]ng(?:st(?:r[oö]ms?)?)?|å|aa?)")
_POWER = re.compile(r"(?:\^|\*\*)?(3?)")


def energy_unit(text: str) -> str | None:
    """Return the canonical name of an energy unit in any spelling, such as ``hartree`` for ``Ha``.

    The names are ev, mev, kcal/mol, kj/mol, hartree and rydberg. The result is None for an unknown
    unit.
    """
    return _ENERGIES.get(_plain(text))


def conversion(unit: str, wanted: str) -> float | None:
    """Return the factor that converts numbers of one unit to another; None if nothing does.

    The units are those of energies, also per length, volume or atom, and of pressures.
    """
    one, other = _in_ev_and_angstrom(unit), _in_ev_and_angstrom(wanted)
    return one[0] / other[0] if one and other and one[1:] == other[1:] else None


def _in_ev_and_angstrom(unit: str) -> tuple[float, int, bool] | None:
    """Return a unit in eV and Å, by which power of a length it is divided, whether by atoms."""
    from ase import units  # slow to import

    pressures = {"Pa": 1.0, "kPa": 1e3, "MPa": 1e6, "GPa": 1e9, "bar": 1e5, "kbar": 1e8, "kB": 1e8}
    if pascal := pressures.get(unit.strip()):
        return pascal * units.Pascal, 3, False
    plain = _plain(unit)
    of_all = plain.removesuffix("/atom")
    of_energy, _, by = (of_all, "", "") if of_all in _ENERGIES else of_all.rpartition("/")
    length = _LENGTH.match(by)
    power = _POWER.fullmatch(by[length.end() :]) if length else None
    if of_energy not in _ENERGIES or (by and not power):
        return None
    energies = {
        "ev": 1.0,
        "mev": 1e-3,
        "kcal/mol": units.kcal / units.mol,
        "kj/mol": units.kJ / units.mol,
        "hartree": units.Hartree,
        "rydberg": units.Rydberg,
    }
    lengths = {"bohr": units.Bohr, "a0": units.Bohr, "nm": 10.0, "pm": 0.01}
    cubed = 0 if not (length and power) else 3 if power[1] else 1
    value = energies[_ENERGIES[of_energy]] / lengths.get(length[0] if length else "", 1.0) ** cubed
    return float(value), cubed, of_all != plain


def is_slope(unit: str, energy: str, *, by_volume: bool = False) -> bool:
    """Return whether a unit is the energy's unit per Å (forces) or per Å³ (stress).

    A unit of energy that is not known, as of reduced quantities, is compared by its text. An empty
    unit, as of files that state none, is not judged.

    Parameters
    ----------
    unit
        Unit of forces or of a stress.
    energy
        Unit of the energy.
    by_volume
        If true, the unit is that of a stress; if false, of forces.
    """
    unit, energy = _plain(unit), _plain(energy)
    of_energy, slash, by = unit.rpartition("/")
    if not unit or not energy or not slash:
        return not unit or not energy
    length = _LENGTH.match(by)
    power = _POWER.fullmatch(by[length.end() :]) if length else None
    if _ENERGIES.get(of_energy, of_energy) != _ENERGIES.get(energy, energy):
        return False
    if length is None or power is None:
        return energy not in _ENERGIES
    return length["ours"] is not None and bool(power[1]) == by_volume


def _plain(text: str) -> str:
    """Return a unit in lower case, without blanks and parentheses, with ``/`` for powers of -1."""
    plain = re.sub(r"[()]", "", unicodedata.normalize("NFKC", text)).casefold().strip()
    plain = re.sub(r"\s*[·*/]\s*(?!\*)", lambda found: found[0].strip(), plain)
    plain = re.sub(r"[ ·]?([^\W\d]+)(\^|\*\*)?[-−]([13])", _divided, plain)
    return re.sub(r"\s", "", plain).replace("·", "/")


def _divided(found: re.Match[str]) -> str:
    return f"/{found[1]}{'^3' if found[3] == '3' else ''}"
