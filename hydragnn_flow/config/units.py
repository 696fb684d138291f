"""Units of energies, and whether a unit of forces or of a stress belongs to that of an energy."""

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
