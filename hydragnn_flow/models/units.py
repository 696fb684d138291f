"""Units that a store declares, and whether they fit an energy and its gradients."""

from __future__ import annotations

import re
import unicodedata

_PRESSURES = {"pa", "kpa", "mpa", "gpa", "bar", "kbar", "atm"}
_ENERGIES = {
    **{name: name for name in ("ev", "mev", "kcal/mol", "kj/mol")},
    **dict.fromkeys(("ha", "hartree", "eh"), "hartree"),
    **dict.fromkeys(("ry", "rydberg"), "rydberg"),
}
_LENGTH = re.compile(r"bohr|a0|nm|pm|(?P<ours>[aå]ng(?:st(?:r[oö]ms?)?)?|å|aa?)")
_POWER = re.compile(r"(?:\^|\*\*)?(3?)")


def energy_unit(text: str) -> str | None:
    """Return the name of an energy unit: ev, mev, kcal/mol, kj/mol, hartree or rydberg.

    The result is None for an unknown unit.
    """
    return _ENERGIES.get(_plain(text))


def is_slope(unit: str, energy: str, *, by_volume: bool = False) -> bool:
    """Return whether a unit may be that of an energy by a length in Å, or by a volume in Å³.

    Units are free text, so only units that are understood and wrong give false.

    Parameters
    ----------
    unit
        Unit of forces or of a stress.
    energy
        Unit of the energy.
    by_volume
        If true, the unit is that of a stress.
    """
    unit, energy = _plain(unit), _plain(energy)
    of_energy, slash, by = unit.rpartition("/")
    if not slash:
        return unit not in _PRESSURES
    length = _LENGTH.match(by)
    power = _POWER.fullmatch(by[length.end() :]) if length else None
    if length is None or power is None:
        return True
    energies = _ENERGIES.get(of_energy), _ENERGIES.get(energy)
    is_another = None not in energies and energies[0] != energies[1]
    return length["ours"] is not None and bool(power[1]) == by_volume and not is_another


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", re.sub(r"[\s()]", "", text)).casefold()
