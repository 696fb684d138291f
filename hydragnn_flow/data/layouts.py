"""Layouts of published data sets: one table of what marks them, of their labels and known units.

Files with arrays over many structures, which ASE does not read, are read here.
"""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from hydragnn_flow.config.sources import Level
from hydragnn_flow.data.sources.file_names import natural_order
from hydragnn_flow.data.sources.labels import LEVELS, MEANINGS, stress_of_virial
from hydragnn_flow.data.sources.structures import NAMES, Found
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
    labels: Mapping[str, Known]
    """Labels by name."""
    marks: frozenset[str] = frozenset()
    """Keys by which arrays or a record are recognised; none for a text format."""
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
        return (
            bool(self.marks)
            and self.marks <= set(keys)
            and (not self.alone or rest <= self.labels.keys())
        )


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
        marks = frozenset(row.get("marks", ()))
        found[name] = Layout(**row | {"marks": marks, "labels": labels})
    return found


def in_known_units(record: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a record of JSON with the units of its layout, and units of what was converted.

    Units are under ``units``; those that the record states take precedence. Other values whose
    unit or sign is not usual are converted. Their new units are in the second mapping, by key.
    """
    values, converted = dict(record), {}
    own = said if isinstance(said := record.get("units"), dict) else {}
    for layout in layouts().values():
        if not layout.numbers and layout.fits(record.keys()):
            known = {key: one for key, one in layout.labels.items() if key in record}
            values["units"] = {key: one.unit for key, one in known.items()} | own
            for key, one in known.items():
                if one.factor != 1 and key not in own and record[key] is not None:
                    values[key] = np.asarray(record[key], np.float64) * one.factor
                    converted[key] = one.unit
    return values, converted


def array_format(file: Path) -> str | None:
    """Return the name of the format of a file with arrays over structures; None for other files."""
    return "deepmd" if file.name == "type.raw" else _ARRAYS.get(file.suffix.lower())


def is_layout(file: Path) -> bool:
    """Return whether a file of arrays can be opened and has a known layout."""
    try:
        return bool(_groups(file))
    except Exception:  # raised when the file is read
        return False


def count_arrays(file: Path) -> int:
    """Count the structures in a file of arrays."""
    return sum(n for _, n in _groups(file)[1])


def array_structures(
    file: Path, start: int, stop: int | None, keys: Collection[str] | None = None
) -> Iterator[Found]:
    """Yield structures [start, stop) of a file of arrays; to its end if ``stop`` is None.

    Parameters
    ----------
    file
        NumPy's or HDF5 file, or a `type.raw` beside sets of arrays.
    start, stop
        Range of structures.
    keys
        Names of labels and keys of arrays to read; None for all, labels only by their names.

    Raises
    ------
    InputError
        If the arrays have no known layout, or elements or lengths are not known.
    """
    layout, groups = _groups(file)
    before = 0
    with _opened(file) as opened:
        for path, n in groups:
            first, last = max(start - before, 0), n if stop is None else min(stop - before, n)
            if first < last:
                arrays = _Arrays(layout, opened[path], n, f"{file} {path}".rstrip(" /"))
                yield from arrays.structures(slice(first, last), keys)
            before += n


class _Arrays(NamedTuple):
    """Group of arrays over ``n`` structures with as many atoms each, or padded to as many."""

    layout: Layout
    arrays: Mapping[str, Any]
    n: int
    origin: str

    def structures(self, some: slice, keys: Collection[str] | None) -> Iterator[Found]:
        import ase

        layout, arrays = self.layout, self.arrays
        length, energy = (_text(arrays.get(key, "")) for key in ("r_unit", "e_unit"))  # sGDML's
        if length and not re.fullmatch("(a|å|ang.*)", length, re.IGNORECASE):
            raise InputError(f"{self.origin}: r_unit is {length!r}; convert the positions to Å")
        known = {name: one for name, one in layout.labels.items() if one.key in arrays}
        units = {name: one.unit for name, one in known.items()}
        units |= {"energy": energy, "forces": f"{energy}/Å"} if energy else {}
        converted = {name: one.unit for name, one in known.items() if name == "stress"}
        converted |= {name: one.unit for name, one in known.items() if one.factor != 1}
        columns = {name: self._rows(one.key, some) * one.factor for name, one in known.items()}
        columns |= {key: _plain(array[some]) for key, array in self._others(known, keys)}
        levels: dict[str, Level] = {name: MEANINGS[name].level for name in known}
        numbers = _atomic_numbers(arrays[layout.numbers], some, f"{self.origin}: {layout.numbers}")
        positions = self._rows(layout.positions, some) * layout.length
        cells = self._rows("box", some) if "box" in arrays else None
        for i, places in enumerate(positions):
            cell = None if cells is None else cells[i]
            values = {name: column[i] for name, column in columns.items()}
            here = numbers[i] if numbers.ndim > 1 else numbers
            if not (is_atom := here > 0).all():
                for name, value in values.items():
                    level = levels.get(name, LEVELS.get(name, "node"))
                    if level == "node" and np.shape(value)[:1] == here.shape:
                        values[name] = value[is_atom]
                here, places = here[is_atom], places[is_atom]
            atoms = ase.Atoms(here, places, cell=cell, pbc=cell is not None)
            if "stress" in known:
                values["stress"] = stress_of_virial(values["stress"], atoms)
            yield Found(atoms, {**values, "units": units}, levels, converted=converted)

    def _others(
        self, known: Mapping[str, Known], keys: Collection[str] | None
    ) -> Iterator[tuple[str, Any]]:
        """Yield key and array of what is over structures and to be read beside the labels."""
        layout, wanted = self.layout, {*NAMES, *(keys or ())}
        if keys is None or not set(keys) <= {*known, *self.arrays}:  # a message names all
            meant = {layout.numbers, layout.positions, "box", *(one.key for one in known.values())}
            wanted |= self.arrays.keys() - meant
        for key in self.arrays:
            if key in wanted and key not in known:
                array = self.arrays[key]
                if getattr(array, "shape", ())[:1] == (self.n,):
                    yield key, array

    def _rows(self, key: str, some: slice) -> NDArray[Any]:
        array = self.arrays[key]
        if len(array) != self.n:
            raise InputError(
                f"{self.origin}: {key} has {len(array)} rows where {self.layout.positions} has "
                f"{self.n}; complete the arrays"
            )
        return _plain(array[some])


def _atomic_numbers(array: Any, some: slice, what: str) -> NDArray[np.int64]:
    """Return atomic numbers [n_atoms], or [n, n_atoms] with 0 where a row has no atom.

    Raises
    ------
    InputError
        If ``array`` holds other than symbols and atomic numbers.
    """
    from ase.data import atomic_numbers

    from hydragnn_flow.data.sources.beyond_ase import element

    said = _plain(array[some] if array.ndim > 1 else array[:])
    try:
        if said.dtype.kind == "U":
            said = np.array(
                [atomic_numbers[element(one.strip())] if one.strip() else 0 for one in said.flat]
            ).reshape(said.shape)
        least = 1 if said.ndim == 1 else -1  # what pads rows is 0 or -1
        wrong = said[~((said % 1 == 0) & (said >= least) & (said <= 118))]
        if wrong.size:
            raise ValueError(f"{wrong[0]} is no atomic number of a chemical element")
    except ValueError as error:
        raise InputError(f"{what}: {error}; correct it") from None
    return np.asarray(np.maximum(said, 0), np.int64)


def files_beside(file: Path) -> list[Path]:
    """Return the files that are read together with a `type.raw`; none for other files."""
    folder = file.parent
    names = ("type_map.raw", "nopbc", "set.*/*.npy") if file.name == "type.raw" else ()
    return sorted((one for name in names for one in folder.glob(name)), key=natural_order)


def _plain(values: Any) -> NDArray[Any]:
    """Return an array with text for bytes."""
    array = np.asarray(values)
    if array.dtype.kind not in "SO":
        return array
    return np.array([_text(one) for one in array.flat]).reshape(array.shape)


def _text(value: Any) -> str:
    plain = value[()] if isinstance(value, np.ndarray) else value
    return plain.decode() if isinstance(plain, bytes) else str(plain)


def _groups(file: Path) -> tuple[Layout, list[tuple[str, int]]]:
    """Return the layout of a file, and path and number of structures of each group of arrays."""
    return _walk(file, tuple(one.stat().st_mtime_ns for one in (file, *files_beside(file))))


@lru_cache(maxsize=4)
def _walk(file: Path, changed: tuple[int, ...]) -> tuple[Layout, list[tuple[str, int]]]:
    with _opened(file) as opened:
        paths = opened if isinstance(opened, dict) else _paths(opened)
        keys = {path: set(opened[path]) for path in paths}
        found = (one for one in layouts().values() if one.numbers)
        layout = next((one for one in found if any(map(one.fits, keys.values()))), None)
        if layout is not None:
            needed = {layout.numbers, layout.positions}
            return layout, [
                (path, len(opened[path][layout.positions]))
                for path, names in keys.items()
                if needed <= names
            ]
    known = "; ".join(
        f"{name}: {', '.join(sorted(one.marks))}" for name, one in layouts().items() if one.numbers
    )
    raise InputError(
        f"{file} has no arrays of a known layout ({known}); convert it to extended XYZ, or write a "
        "source of your own"
    )


def _paths(group: Any, path: str = "/") -> Iterator[str]:
    """Yield the paths of groups in HDF5 that have atoms; nothing inside these is opened."""
    table = layouts().values()
    if any(one.numbers and {one.numbers, one.positions} <= group.keys() for one in table):
        yield path
        return
    for key in group:
        if issubclass(group.get(key, getclass=True), Mapping):
            yield from _paths(group[key], f"{path}{key}/")


@contextmanager
def _opened(file: Path) -> Iterator[Mapping[str, Any]]:
    """Context manager: groups of arrays of a file by path."""
    format = array_format(file)
    if format == "npz":
        yield {"": _of_npz(file, file.stat().st_mtime_ns)}
    elif format == "deepmd":
        yield _of_deepmd(file)
    else:
        try:
            import h5py
        except ImportError:
            raise InputError(
                f'{file} is HDF5, which h5py reads: pip install "hydragnn_flow[hdf5]"'
            ) from None
        with h5py.File(file, "r") as opened:
            yield opened


@lru_cache(maxsize=1)
def _of_npz(file: Path, changed: int) -> Mapping[str, Any]:
    return _Unpacked(file)


class _Unpacked(UserDict[str, Any]):
    """Arrays of a `.npz`, each unpacked once for all chunks of the file that a process reads."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as arrays:
            super().__init__(dict.fromkeys(arrays))
        self._file = file

    def __getitem__(self, key: str) -> Any:
        if self.data[key] is None:
            with np.load(self._file) as arrays:
                self.data[key] = arrays[key]
        return self.data[key]


def _of_deepmd(file: Path) -> dict[str, Mapping[str, Any]]:
    folder, map_file = file.parent, file.with_name("type_map.raw")
    types = np.loadtxt(file, dtype=int, ndmin=1)
    try:
        names = np.array(map_file.read_text(encoding="utf-8").split())
    except FileNotFoundError:
        raise InputError(
            f"{folder}: type_map.raw is missing; write the elements of the types 0, 1, … into it"
        ) from None
    numbers = np.append(_atomic_numbers(names, slice(None), str(map_file)), 0)
    shapes = {"coord": (-1, len(types), 3), "force": (-1, len(types), 3), "box": (-1, 3, 3)}
    is_periodic = not (folder / "nopbc").exists()
    sets: dict[str, Mapping[str, Any]] = {}
    for some in sorted(folder.glob("set.*"), key=natural_order):
        arrays = {one.stem: np.load(one, mmap_mode="r") for one in some.glob("*.npy")}
        mine = arrays.pop("real_atom_types", types)  # of each structure, -1 for no atom
        if mine.min() < (0 if mine is types else -1) or mine.max() >= len(names):
            raise InputError(
                f"{some} has types from {mine.min()} to {mine.max()}, but {map_file.name} "
                f"names the elements of {len(names)}; complete it"
            )
        sets[some.name] = {
            "type": numbers[mine],
            **{
                key: values.reshape(shapes.get(key, values.shape))
                for key, values in arrays.items()
                if is_periodic or key not in ("box", "virial")
            },
        }
    return sets
