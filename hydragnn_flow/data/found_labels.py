"""Labels that structures have and a network could learn: their quantity, method and unit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.sources import Level, TargetConfig, class_key, good_names
from hydragnn_flow.data.sources.labels import LEVELS, MEANINGS, is_missing, level_of, shaped
from hydragnn_flow.data.sources.structures import Found
from hydragnn_flow.errors import InputError

_UNITS = {
    "energy": "eV",
    "free_energy": "eV",
    "forces": "eV/Å",
    "stress": "eV/Å³",
    "dipole": "e·Å",
    "charges": "e",
    "magmom": "μB",
    "magmoms": "μB",
    "REF_energy": "eV",
    "REF_forces": "eV/Å",
    "REF_stress": "eV/Å³",
}
"""Units of ASE's results, which mlearn's records share, and of MACE's keys."""
_NO_LABELS = {"", "i", "index", "time", "row", "number", "nsites", "natoms", "num_atoms", "n_atoms"}
_NO_LABELS |= {"nelements", "tags", "momenta", "initial_magmoms", "initial_charges", "move_mask"}
_IDS = re.compile(
    r"(^|_)(ids?|uuid|uid|jid|mpid|frame|step|timestep|iteration|seed|spg|sg|space_?group)(_|$)"
    r"|weight|spgnum"
)
"""Parts of names of identifiers, counters and settings."""
_MAYBE_IDS = re.compile(r"(^|_)(number|num|no|nr|n|index|idx|count|icsd|cod|mp|row)(_|$)")
"""Parts of names of identifiers and counters, if their values are whole numbers."""
UNIT_AT_END = re.compile(
    r"_(m?eV|Ha|hartree|Ry|rydberg|kcal_?mol|kJ_?mol|[GMk]?Pa|k?bar|kB)"
    r"(_?(?:per)?_?(?:A|ang|angstrom|bohr)3?)?$",
    re.IGNORECASE,
)
REFERENCES = {"dft", "ref", "reference", "pbe", "pbesol", "rpbe", "scan", "r2scan", "hse", "hse06"}
REFERENCES |= {"b3lyp", "wb97x", "wb97m", "ccsd", "mp2", "vasp", "qe", "qm", "abinitio", "true"}
"""Methods whose labels are the ones to learn, where a file has those of several."""
_ONE_METHOD = {"total", "potential", "free", "uncorrected"}
"""Words in names of energies that do not name another method than that of the forces."""


def quantity_of(key: str) -> tuple[str, str]:
    """Return the quantity that a key names, energy, forces or stress, and the method it names.

    Both are in small letters, and empty if the key names none: ``dft_total_energy`` and
    ``Forces_DFT`` have the method ``dft``, ``free_energy`` and ``forces`` have an empty one.
    """
    bare = UNIT_AT_END.sub("", _bare(key)).lower()
    found = re.search(r"energy|forces?|stress", bare)
    if not found:
        return "", ""
    words = set(re.split(r"[\W_]+", f"{bare[: found.start()]} {bare[found.end() :]}"))
    quantity = "forces" if found[0] == "force" else found[0]
    return quantity, " ".join(sorted(words - _ONE_METHOD - {""}))


@dataclass(frozen=True)
class Label:
    """Quantity that all inspected structures have and a network could learn."""

    name: str
    """Name that a target for the quantity can have."""
    key: str
    """Name of the quantity in the files."""
    level: Level
    dim: int
    unit: str
    """Unit; empty if the files do not state it."""
    doubtful: bool = False
    """True if the values are whole numbers or all the same, as identifiers and settings are, or
    classes."""
    classes: tuple[str, ...] = ()
    """Names of the classes, if the values are true or false, 0 or 1, or a few words."""
    lacking: str = ""
    """How many structures have it, in words, if some do not."""
    say_level: bool = False
    """True if the shape may mislead in other structures, so that a target needs its level."""
    assumed: bool = False
    """True if only the key suggests the unit, as in a table without units."""

    @property
    def remark(self) -> str:
        """Remark on a unit that is assumed; empty if it is not."""
        total = ", a total; write eV/atom if it is per atom" if self.unit == "eV" else ""
        return f"{self.unit} assumed{total}" if self.assumed else ""

    @property
    def quantity(self) -> str:
        """Quantity that the shape and key tell: energy, forces or stress; empty if another."""
        quantity, _ = quantity_of(self.key)
        return quantity if quantity and _fits(quantity, self.level, self.dim) else ""


def find_labels(structures: Sequence[Found]) -> tuple[list[Label], dict[str, str]]:
    """Find the quantities of structures, such as energies, that a network could learn.

    They are in the order of the files. Each has the same shape in all structures, with at most nine
    numbers for each structure or atom. Identifiers and counters (whole numbers that mostly grow by
    the same from each structure to the next) are left out. So is `free_energy` beside `energy`.

    Returns
    -------
    labels
        Quantities that half of the structures or more have, where others say that there is none.
    unusable
        Reason, by key, why a quantity cannot be learnt: fewer structures have it, or it is an
        energy, forces or a stress of another shape.

    Raises
    ------
    InputError
        If units that structures name under keys of their own differ, or lengths are not in Å.
    """
    found, unusable, units = [], {}, _units_said(structures)
    for key in dict.fromkeys(key for one in structures for key in one.values):
        quantity, method = quantity_of(key)
        wanted = quantity if method in ("", *REFERENCES) else ""
        name = _plain(key)
        if name in _NO_LABELS or (not wanted and _IDS.search(name)):
            continue
        given = [one for one in structures if not is_missing(one.values.get(key))]
        some = len(given) < len(structures)
        words = [] if wanted or _NO_CLASSES.search(name) else [one.values[key] for one in given]
        if classes := _classes(words):
            known = [None if is_missing(one.values.get(key)) else one for one in structures]
            lacking = _lacking(structures, key, known) if some else ""
            if 2 * len(given) < len(structures):
                unusable[key] = lacking
            else:
                label = Label(_name(key), key, "graph", len(classes), "", True, classes, lacking)
                found.append(label)
            continue
        labels = [_label(one, key) for one in structures]
        values = [value for value in labels if value is not None]
        if not wanted and _is_counter(name, values):
            continue
        if len({value.ndim for value in values}) == 1 and len(values) < len(given):
            # A shape that fits both levels has that of the other structures.
            labels = [_label(one, key, _level_by(values[0].ndim)) for one in structures]
            values = [value for value in labels if value is not None]
        if len(values) < len(given) or 2 * len(values) < len(structures):
            value = given[0].values[key] if given else None
            if not values and given and _fits_both(value, key, len(given[0].atoms)):
                unusable[key] = (
                    "of a shape that may belong to the structure or to its atoms; write a target "
                    "with its level"
                )
            elif values or wanted or (isinstance(value, str) and _NUMBER.fullmatch(value)):
                unusable[key] = _lacking(structures, key, labels)
            continue
        (ndim, dim), *others = {(value.ndim, value.shape[-1]) for value in values}
        level = _level_by(ndim)
        if wanted and (others or not _fits(wanted, level, dim)):
            many = "in different shapes" if others else f"{dim} for each {_ONE_OF[level]}"
            unusable[key] = f"its numbers are {many}, not {MEANINGS[wanted].words}"
        elif not others and dim <= 9:
            doubtful = level == "graph" and _is_doubtful(np.stack(values))
            by_name = key in LEVELS or key in given[0].levels
            lacking = _lacking(structures, key, labels) if some else ""
            say_level = not by_name and np.ndim(given[0].values[key]) > 0
            label = Label(_name(key), key, level, dim, _unit(key, units), doubtful)
            assumed = key in _UNITS and not units and bool(label.unit)
            found.append(replace(label, lacking=lacking, say_level=say_level, assumed=assumed))
    if any(label.key == "energy" for label in found):
        found = [label for label in found if label.key != "free_energy"]
        unusable.pop("free_energy", None)
    return found, unusable


# Words for sets of data and for what the structure tells.
_NO_CLASSES = re.compile(r"formula|composition|config|group|split|file|path|source|method|unit")


def _classes(values: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of classes, if values are 0 and 1, true and false, or a few other words.

    Each word occurs twice or more.
    """
    if any(np.ndim(value) for value in values):
        return ()
    counts = Counter(map(class_key, values))
    names = {class_key(value): str(value).strip() for value in values}
    words = {key: name for key, name in names.items() if not _NUMBER.fullmatch(name)}
    if names.keys() == {"0", "1"}:
        return tuple(words[key].lower() if key in words else key for key in ("0", "1"))
    few = 2 <= len(names) <= 10 and min(counts.values()) > 1 and len(words) == len(names)
    return tuple(sorted(names.values())) if few else ()


_NUMBER = re.compile(r"\s*[-+]?\d[\d.,]*([deDE][-+]?\d+)?\s*")
_ONE_OF = {"graph": "structure", "node": "atom"}


def _level_by(ndim: int) -> Level:
    return "graph" if ndim == 1 else "node"


def _fits(quantity: str, level: Level, dim: int) -> bool:
    meaning = MEANINGS[quantity]
    return level == meaning.level and dim in meaning.dims


def _lacking(structures: Sequence[Found], key: str, labels: Sequence[object]) -> str:
    """Return in words how many structures have a label, and what the first without it has."""
    first = next(number for number, label in enumerate(labels) if label is None)
    value = structures[first].values.get(key)
    if value is None:
        said = "none"
    elif isinstance(value, str):
        said = repr(value[:40])
        if re.fullmatch(r"[\s\d.+-]+[dD][-+]?\d+\s*", value):
            said += " with Fortran's exponent (write e for D)"
        elif re.fullmatch(r"[\s\d+-]+,\d+\s*", value):
            said += " with a decimal comma (write a point; a table's semicolons may stay)"
    else:
        said = "NaN, infinity or another shape"
    n = sum(label is not None for label in labels)
    return f"in {n} of {len(structures)} structures looked at; number {first} has {said}"


def _is_doubtful(values: NDArray[np.float64]) -> bool:
    same = len(values) > 1 and bool((values == values[0]).all())
    return same or bool((values % 1 == 0).all())


def _plain(key: str) -> str:
    """Return a key in small letters, with ``_`` between its words, without brackets at its end."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", _bare(key))
    return re.sub(r"[\W_]+", "_", words).strip("_").lower()


def _bare(key: str) -> str:
    """Return a key without the brackets at its end."""
    return re.sub(r"[\[(][^\])]*[\])]\s*$", "", key)


def _units_said(structures: Sequence[Found]) -> dict[str, str]:
    """Return units by the names of quantities, from keys such as `energy_unit` and `units`.

    Raises
    ------
    InputError
        If the unit of a quantity differs between structures, or lengths are not in Å.
    """
    said: dict[str, str] = {}
    for one in structures:
        for key, value in one.values.items():
            if not re.search("(^|_)units?(_|$)|units?$", _plain(key)):
                continue
            for name, unit in (value if isinstance(value, dict) else {key: value}).items():
                of = re.sub("units?", "", _plain(name)).strip("_")
                if not isinstance(unit, str):
                    continue
                said.setdefault(name if isinstance(value, dict) else of, unit)
                if said.setdefault(of, unit) != unit:
                    if quantity_of(of)[0]:
                        raise InputError(
                            f"the key {key!r} is {said[of]!r} in some structures and {unit!r} in "
                            "others; convert the labels to one unit"
                        )
                    said[of] = ""
                if _OTHER_LENGTH.fullmatch(unit.strip()):
                    raise InputError(
                        f"the key {key!r} says {unit!r}, and positions and cells are read in Å; "
                        "convert them"
                    )
    return said


_OTHER_LENGTH = re.compile(r"bohrs?|a0|a_0|nm|pm|nanomet\w+|picomet\w+", re.IGNORECASE)


def _label(one: Found, key: str, level: Level | None = None) -> NDArray[np.float64] | None:
    value: Any = one.values.get(key)
    if value is None or isinstance(value, (bool, np.bool_)):
        return None
    try:
        level = level or one.levels.get(key) or level_of(value, (key,), len(one.atoms))
        array = shaped(value, level, len(one.atoms))
    except (TypeError, ValueError):  # no numbers, or nothing tells the level
        return None
    fits = array.size > 0 and np.isfinite(array).all()
    return array if fits and (array.ndim == 1 or len(array) == len(one.atoms)) else None


def _fits_both(value: Any, key: str, n_atoms: int) -> bool:
    """Return whether numbers may belong to the structure as well as to its atoms."""
    try:
        level_of(np.asarray(value, np.float64), (key,), n_atoms)
    except TypeError:
        return False
    except ValueError:
        return np.ndim(value) > 0 and not isinstance(np.ravel(value)[0], str)
    return False


def _is_counter(name: str, values: Sequence[NDArray[np.float64]]) -> bool:
    """Return whether values are whole numbers that count structures, by their name or steps."""
    if any(value.shape != (1,) or value[0] % 1 for value in values):
        return False
    steps, times = np.unique(np.diff(np.ravel(values)), return_counts=True)
    mostly = len(values) > 2 and 2 * times.max() > len(values) - 1 and steps[times.argmax()] > 0
    return bool(values and (mostly or _MAYBE_IDS.search(name)))


def _unit(key: str, said: Mapping[str, str]) -> str:
    """Return the unit of a key, in the key or ``said`` by the file, otherwise ASE's or none.

    ASE's, and those of MACE's keys, are not taken where the file names another unit of energy.
    """
    if key in said:  # as of known layouts
        return said[key]
    if brackets := re.search(r"[\[(]\s*([^\])]+?)\s*[\])]\s*$", key):
        return brackets[1]
    quantity, method = quantity_of(key)
    for name, unit in said.items():
        if name == _plain(key) or (
            quantity and quantity_of(name) in {(quantity, method), (quantity, "")}
        ):
            return unit
    if (end := UNIT_AT_END.search(key)) and not end[2]:
        return end[1].replace("_", "/")
    others = [unit for name, unit in said.items() if not name or quantity_of(name)[0]]
    is_ase = all(unit.lower().startswith(("ev", "ase", "metal")) for unit in others)
    return _UNITS.get(key, "") if is_ase else ""


def _name(key: str) -> str:
    """Return a valid target name for a key."""
    name = re.sub(r"\W+", "_", _bare(key), flags=re.ASCII).strip("_") or "target"
    try:
        good_names({name: TargetConfig(unit="")})
    except ValueError:
        return f"target_{re.sub('index|batch', '', name)}"
    return name
