"""Whether the units that a store declares can be those of an energy and its slopes."""

from __future__ import annotations

import re
import unicodedata

_PRESSURES = {"Pa", "kPa", "MPa", "GPa", "bar", "kbar", "atm"}
_LENGTH = re.compile(r"(?:Å|A|[Aa]ng(?:st(?:rom)?)?)(?:\^|\*\*)?(3?)")


def is_slope(unit: str, energy: str, *, by_volume: bool = False) -> bool:
    """Whether a unit may be that of an energy by a length in Å, or by a volume in Å³.

    Units are free text: only one that is understood, and is another, is none.

    Parameters
    ----------
    unit
        Of forces, or of a stress.
    energy
        Unit of the energy.
    by_volume
        Whether it is to be by a volume.
    """
    unit, energy = (unicodedata.normalize("NFKC", re.sub(r"[\s()]", "", u)) for u in (unit, energy))
    if not unit or not energy:
        return True
    of_energy, slash, by = unit.rpartition("/")
    if not slash:
        return unit not in _PRESSURES
    length = _LENGTH.fullmatch(by)
    return of_energy == energy and length is not None and bool(length[1]) == by_volume
