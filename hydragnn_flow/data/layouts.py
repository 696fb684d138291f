"""Layouts of published data sets: one table of what marks them, of their labels and known units.

Files with arrays over many structures, which ASE does not read, are read here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from hydragnn_flow.config.sources import Level
from hydragnn_flow.data.sources.arrays import MEANINGS, stress_of_virial
from hydragnn_flow.data.sources.file_names import natural_order
from hydragnn_flow.data.sources.structures import Found
from hydragnn_flow.errors import InputError

_ARRAYS = {".npz": "npz", ".h5": "hdf5", ".hdf5": "hdf5"}
"""Formats of arrays over structures, by suffix of the files."""


class Known(NamedTuple):
    """Label of a layout: its key, and the unit of the file's values times ``factor``."""

    key: str
    unit: str
    factor: float = 1.0


@dataclass(frozen=True)
class Layout:
    """Layout of data sets of one origin, a row of `layouts.yaml`."""

    files: str
    """Files, in words."""
    marks: frozenset[str]
    """Keys by which the layout is recognised."""
    labels: Mapping[str, Known]
    """Labels by name."""
    numbers: str = ""
    """Key of the atomic numbers or symbols, if values are arrays over structures."""
    positions: str = ""
    """Key of the positions."""
    length: float = 1.0
    """Unit of the positions [Å]."""
    alone: bool = False
    """True if records have one label and nothing else beside the marks."""

    def fits(self, keys: Collection[str]) -> bool:
        """Return whether arrays or a record with these keys have the layout."""
        rest = set(keys) - self.marks
        return self.marks <= set(keys) and (not self.alone or rest <= self.labels.keys())


@lru_cache(maxsize=1)
def layouts() -> Mapping[str, Layout]:
    """Return the layouts by name, in the order of the table."""
    table = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    found = {}
    for name, row in table.items():
        labels = {
            label: Known(**known) if isinstance(known, dict) else Known(label, known)
            for label, known in row["labels"].items()
        }
        found[name] = Layout(**row | {"marks": frozenset(row["marks"]), "labels": labels})
    return found


def in_known_units(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of JSON with the units of its layout, under ``units``, if it has a layout.

    Values whose unit or sign is not usual are converted.
    """
    values = dict(record)
    for layout in layouts().values():
        if not layout.numbers and layout.fits(record.keys()):
            known = {key: one for key, one in layout.labels.items() if key in record}
            values = {"units": {key: one.unit for key, one in known.items()}, **values}
            for key, one in known.items():
                if one.factor != 1 and record[key] is not None:
                    values[key] = np.asarray(record[key], np.float64) * one.factor
    return values


def array_format(file: Path) -> str | None:
    """Return the name of the format of a file with arrays over structures; None for other files."""
    return "deepmd" if file.name == "type.raw" else _ARRAYS.get(file.suffix.lower())


def is_layout(file: Path) -> bool:
    """Return whether a file of arrays can be opened and has a known layout."""
    try:
        return next(_groups(file), None) is not None
    except Exception:  # raised when the file is read
        return False


def count_arrays(file: Path) -> int:
    """Count the structures in a file of arrays."""
    return sum(len(arrays[layout.positions]) for layout, arrays in _groups(file))


def array_structures(file: Path, start: int, stop: int | None) -> Iterator[Found]:
    """Yield structures [start, stop) of a file of arrays; to its end if ``stop`` is None.

    Raises
    ------
    InputError
        If the arrays have no known layout, or elements or lengths are not known.
    """
    before = 0
    for layout, arrays in _groups(file):
        n = len(arrays[layout.positions])
        first, last = max(start - before, 0), n if stop is None else min(stop - before, n)
        if first < last:
            yield from _structures(layout, arrays, range(first, last), file)
        before += n


def _structures(
    layout: Layout, arrays: Mapping[str, Any], some: Sequence[int], file: Path
) -> Iterator[Found]:
    import ase

    length, energy = (_text(arrays.get(key, "")) for key in ("r_unit", "e_unit"))  # sGDML's
    if length and not length.lower().startswith(("ang", "å")):
        raise InputError(f"{file}: r_unit is {length!r}; convert the positions to Å")
    known = {name: one for name, one in layout.labels.items() if one.key in arrays}
    units = {name: one.unit for name, one in known.items()}
    units |= {"energy": energy, "forces": f"{energy}/Å"} if energy else {}
    levels: dict[str, Level] = {name: MEANINGS[name].level for name in known}
    columns = {name: np.asarray(arrays[one.key]) * one.factor for name, one in known.items()}
    numbers = np.asarray(arrays[layout.numbers])
    positions, cells = np.asarray(arrays[layout.positions]) * layout.length, arrays.get("box")
    for one in known.values():
        if len(arrays[one.key]) != len(positions):
            raise InputError(
                f"{file}: {one.key} has {len(arrays[one.key])} rows where {layout.positions} has "
                f"{len(positions)}; complete the arrays"
            )
    symbols = numbers.astype(str) if numbers.dtype.kind not in "iu" else numbers
    for i in some:
        cell = None if cells is None else cells[i]
        atoms = ase.Atoms(symbols, positions[i], cell=cell, pbc=cell is not None)
        values = {name: column[i] for name, column in columns.items()}
        if "stress" in values:
            values["stress"] = stress_of_virial(values["stress"], atoms)
        yield Found(atoms, {**values, "units": units}, levels)


def files_beside(file: Path) -> list[Path]:
    """Return the files that are read together with a `type.raw`."""
    folder = file.parent
    return sorted(
        (*folder.glob("type_map.raw"), *folder.glob("nopbc"), *folder.glob("set.*/*.npy")),
        key=natural_order,
    )


def _text(value: Any) -> str:
    plain = value[()] if isinstance(value, np.ndarray) else value
    return plain.decode() if isinstance(plain, bytes) else str(plain)


def _groups(file: Path) -> Iterator[tuple[Layout, Mapping[str, Any]]]:
    """Yield groups of arrays of structures with the same atoms, each with its layout."""
    empty = True
    for arrays in _READERS[array_format(file) or ""](file):
        found = (one for one in layouts().values() if one.numbers and one.fits(arrays.keys()))
        if layout := next(found, None):
            empty = False
            yield layout, arrays
    if empty:
        known = "; ".join(
            f"{name}: {', '.join(sorted(one.marks))}"
            for name, one in layouts().items()
            if one.numbers
        )
        raise InputError(
            f"{file} has no arrays of a known layout ({known}); convert it to extended XYZ, or "
            "write a source of your own"
        )


def _of_npz(file: Path) -> Iterator[Mapping[str, Any]]:
    with np.load(file) as arrays:
        yield arrays


def _of_hdf5(file: Path) -> Iterator[Mapping[str, Any]]:
    try:
        import h5py
    except ImportError:
        raise InputError(
            f'{file} is HDF5, which h5py reads: pip install "hydragnn_flow[hdf5]"'
        ) from None

    def inside(group: Any) -> Iterator[Mapping[str, Any]]:
        arrays = {key: one for key, one in group.items() if isinstance(one, h5py.Dataset)}
        if arrays:
            yield arrays
        for key in group:
            if key not in arrays:
                yield from inside(group[key])

    with h5py.File(file, "r") as opened:
        yield from inside(opened)


def _of_deepmd(file: Path) -> Iterator[Mapping[str, Any]]:
    folder = file.parent
    types = np.loadtxt(file, dtype=int, ndmin=1)
    try:
        names = np.array((folder / "type_map.raw").read_text(encoding="utf-8").split())
    except FileNotFoundError:
        raise InputError(
            f"{folder}: type_map.raw is missing; write the elements of the types 0, 1, … into it"
        ) from None
    shapes = {"coord": (-1, len(types), 3), "force": (-1, len(types), 3), "box": (-1, 3, 3)}
    is_periodic = not (folder / "nopbc").exists()
    for some in sorted(folder.glob("set.*"), key=natural_order):
        arrays = {one.stem: np.load(one, mmap_mode="r") for one in some.glob("*.npy")}
        yield {
            "type": names[types],
            **{
                key: values.reshape(shapes.get(key, values.shape))
                for key, values in arrays.items()
                if is_periodic or key not in ("box", "virial")
            },
        }


_READERS = {"npz": _of_npz, "hdf5": _of_hdf5, "deepmd": _of_deepmd}
