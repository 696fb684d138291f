"""Base of sources that read structures with labels, or whole graphs, from files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hydragnn_flow.config.sources import WEIGHT, Level, Role
from hydragnn_flow.config.units import is_slope
from hydragnn_flow.data.sources.arrays import ATOMIC_NUMBER, graph_attr, lookup
from hydragnn_flow.data.sources.base import Chunk, Nodes, Record
from hydragnn_flow.data.sources.file_names import FilesSection, files_by_role, ranges
from hydragnn_flow.data.sources.labels import LabelCheck, MissingLabel, check_weight, weight_in
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.data.store.origins import named
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    import ase

NAMES = ("id", "material_id", "structure_id", "identifier", "name", "jid", "mp_id")
"""Keys under which files and `Atoms.info` may have the name of a structure; the first found is
used."""

AnySection = TypeVar("AnySection", bound=FilesSection)


class StructuresSection(FilesSection):
    """Configuration section `data.source` common to ASE, CSV and JSON files of structures."""

    group: str | None = Field(default=None, min_length=1)
    """Key in the files whose value is the group of a structure."""

    weight: str | None = Field(default=None, min_length=1)
    """Key in the files whose value is the weight of a structure's errors in the training loss."""

    graph_attr: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(
        default=None, min_length=1
    )
    """Keys of quantities of a whole structure, such as its charge and spin: they become the graphs'
    key `graph_attr`, in this order and in the files' units."""


class Found(NamedTuple):
    """Structure read from a file, with all values that may be labels."""

    atoms: ase.Atoms
    """Positions and cell; elements, unless there are ``nodes``."""
    values: Mapping[str, Any]
    """Values that may be a label or a group, by key in the file."""
    levels: Mapping[str, Level] = {}
    """Level by key, for values whose level the file states."""
    nodes: Nodes | None = None
    """Node features and edges, if nodes are more than chemical elements."""
    converted: Mapping[str, str] = {}
    """Unit by key, for forces and stresses converted from the file's unit or sign."""
    file: Path | None = None
    """File of this structure alone, if it is another than that of the values: one that a row of a
    table names."""


def name_of(values: Mapping[str, Any]) -> str | None:
    """Return the name of a structure among all values that its file holds; None if it has none."""
    for key in NAMES:
        value = values.get(key)
        if isinstance(value, (str, Integral)) and not isinstance(value, bool):
            return re.sub(r"\s+", " ", str(value)).strip() or None
    return None


def points(
    positions: NDArray[np.float64],
    cell: NDArray[np.float64] | None = None,
    pbc: NDArray[np.bool_] | bool = False,
) -> ase.Atoms:
    """Return ASE atoms without elements, which only hold positions [n, 3] and cell of nodes."""
    import ase

    return ase.Atoms(np.zeros(len(positions), dtype=int), positions, cell=cell, pbc=pbc)


class StructureSource(Generic[AnySection]):
    """Base class of sources that read structures from files.

    A subclass overrides :meth:`structure` if each file holds one structure, and otherwise
    :meth:`ranges` and :meth:`structures`. These methods may raise anything: any exception but
    InputError means that the file or structure cannot be read.

    Parameters
    ----------
    section
        Section of the source.
    folder
        Directory that the file names are relative to.
    """

    suffixes: Collection[str] = ()
    """Suffixes of the files to take from a directory or a glob; by default all."""

    def __init__(self, section: AnySection, folder: Path) -> None:
        self._section = section
        self._folder = folder
        self._labels = LabelCheck(section.targets)
        self.found_targets: Mapping[str, Target] = self._labels.found
        self.unlabelled: list[str] = []
        """Reason, file and number of each structure left out for want of labels or a weight."""
        self._features: Sequence[str] | None = None

    def ranges(self, file: Path) -> list[tuple[int, int]]:
        """Return ranges [start, stop) that together cover all structures of a file, in order.

        Structures are counted without reading them if that is possible.
        """
        return [(0, 1)]

    def structures(self, file: Path, start: int, stop: int) -> Iterator[Found | InputError]:
        """Yield structures [start, stop) of a file; fewer if the file ends before ``stop``.

        An InputError in place of a structure means that it cannot be read, but those after it can.
        """
        yield self.structure(file)

    def places(self, file: Path, start: int, stop: int) -> Iterable[int]:
        """Return the indices in the file of structures [start, stop) of those that are read."""
        return range(start, stop)

    def structure(self, file: Path) -> Found:
        """Read the only structure of a file."""
        raise NotImplementedError(f"{type(self).__name__} has neither structure nor structures")

    def beside(self, file: Path) -> list[Path]:
        """Return further files that are read together with ``file``, such as a file of labels."""
        return []

    @property
    def node_features(self) -> Sequence[str]:
        """Names of the node features, the columns of ``x``, the same in all structures."""
        if self._features is None:
            self._first(self._inputs["train"])
        return self._features or ()

    def files(self) -> list[Path]:
        """Return every data file that is read, in order, each followed by the files beside it."""
        files = [file for of_role in self._inputs.values() for file in of_role]
        return [one for file in files for one in (file, *self.beside(file))]

    def chunks(self) -> list[Chunk]:
        """Return chunks (ranges of structures in a file) that together cover all structures.

        The first structure of each role (split that files are meant for) is read before, to find
        errors that all structures have.
        """
        # Training data last, as they are usually the largest: errors of the others come early.
        of_role = {role: self._chunks(role) for role in reversed(self._inputs)}
        chunks = [chunk for role in self._inputs for chunk in of_role[role]]
        self._labels.complete(chunks, self.read)
        self.unlabelled.clear()
        return chunks

    def read(self, chunk: Chunk) -> Iterator[Record]:
        """Yield the structures of a chunk (range of structures in a file) in order.

        Structures without any label, or of weight 0, are left out.
        """
        n = 0
        for record in self._read(Path(chunk.file), chunk.start, chunk.stop, chunk.first):
            if record is not None:
                yield record
            n += 1
        if n < chunk.stop - chunk.start:
            raise InputError(
                f"{chunk.file} ends at structure {chunk.start + n}, though it had {chunk.stop} "
                "when they were counted; it is damaged or has changed; start again when it is "
                "complete"
            )

    @cached_property
    def _keys(self) -> set[str]:
        """Keys in the files of all that the section wants of a structure."""
        section = self._section
        keys = {target.key or name for name, target in section.targets.items()}
        more = (getattr(section, key, None) for key in ("group", "weight"))
        return keys | {*filter(None, more), *(getattr(section, "graph_attr", None) or ())}

    @cached_property
    def _inputs(self) -> dict[Role, list[Path]]:
        return files_by_role(self._section, self._folder, self.suffixes)

    def _chunks(self, role: Role) -> list[Chunk]:
        files, faults = self._inputs[role], list[str]()
        # An error common to all structures is found in the first, before any file is counted.
        self._first(files)
        chunks, first = list[Chunk](), 0
        for file in files:
            with readable(file, faults):
                cuts = self.ranges(file)
                if not cuts:
                    raise no_structures(file)
                chunks += [Chunk(role, str(file), start, stop, first) for start, stop in cuts]
                first += cuts[-1][1]
        check_read(faults)
        return chunks

    def _first(self, files: Sequence[Path], most: int = 200) -> None:
        """Check the first structure that has labels; in a file it must be among the first ``most``.

        Raises
        ------
        InputError
            If there is none.
        """
        faults: list[str] = []
        for file in files:
            try:
                if any(self._read(file, 0, most, 0)):
                    self.unlabelled.clear()
                    return
            except Unreadable as error:
                faults += error.args
        check_read(faults)
        raise InputError(self.unlabelled[0]) if self.unlabelled else no_structures(files[0])

    def found(self, file: Path, start: int, stop: int) -> Iterator[tuple[int, Found]]:
        """Yield structures [start, stop) of a file, each with its index in the file.

        Raises
        ------
        Unreadable
            At the end, if some cannot be read.
        """
        structures, faults = self.structures(file, start, stop), list[str]()
        for frame in self.places(file, start, stop):
            one = None
            with readable(f"{file}: structure {frame}", faults):
                one = next(structures, None)
            if isinstance(one, InputError):
                faults += one.args
            elif one is None:
                break
            else:
                yield frame, one
        check_read(faults)

    def _read(self, file: Path, start: int, stop: int, first: int) -> Iterator[Record | None]:
        for number, (frame, found) in enumerate(self.found(file, start, stop), first + start):
            try:
                yield self._record(found, f"{file}: structure {frame}", number, frame)
            except MissingLabel as error:
                self.unlabelled.append(str(error))
                yield None

    def _record(self, found: Found, origin: str, index: int, frame: int) -> Record:
        name = name_of(found.values)
        origin = named(origin, name)
        names = (ATOMIC_NUMBER,) if found.nodes is None else found.nodes.names
        self._features = self._features or names
        if list(names) != list(self._features):
            raise InputError(
                f"{origin} has the node features {', '.join(names)}, but the first graph has "
                f"{', '.join(self._features)}; give all graphs the same"
            )
        for target, one in self._section.targets.items():
            key = one.key or target
            unit, said = found.converted.get(key), one.unit_in_file or one.unit
            if unit and not is_slope(said, unit.split("/")[0], by_volume="³" in unit):
                raise InputError(
                    f"{origin}: its label {key!r} is converted to {unit}, but the unit of "
                    f"data.source.targets.{target} is {said!r}; write {unit}"
                )
        targets, lacking = self._labels.take(found.values, found.levels, found.atoms, origin)
        group, weight, attributes = (
            getattr(self._section, key, None) for key in ("group", "weight", "graph_attr")
        )
        if group is not None:
            group = str(lookup(found.values, group, origin, "group", "group"))
        check_weight({} if found.nodes is None else found.nodes.keys, origin)
        keys: dict[str, NDArray[Any]] = {}
        if weight is not None:
            keys[WEIGHT] = weight_in(found.values, weight, origin)
        if attributes:
            for one in attributes:
                lookup(found.values, one, origin, "input", "graph_attr")
            try:
                keys["graph_attr"] = graph_attr(found.values, attributes)
            except ValueError as error:
                raise InputError(f"{origin} {error}; correct it or remove the structure") from None
        found.atoms.calc = None  # the calculator would be sent along with every structure
        file = str(found.file or "")
        if file:
            origin, frame = named(file, name), 0
        own = found.nodes, keys, name, lacking, frame, file
        return Record(found.atoms, targets, origin, index, group, *own)


def cut(n: int, most: int = 64) -> list[tuple[int, int]]:
    """Divide ``n`` structures into at most ``most`` ranges [start, stop) of 256 or more.

    The last range may be smaller.
    """
    return ranges(n, 256, most)


class Unreadable(InputError):
    """Error of structures that cannot be read, with a sentence on each.

    Its message is that sentence, or names ten structures at most and says how many there are.
    """

    def __str__(self) -> str:
        n, names = len(self.args), [re.split(" cannot| holds|; ", one)[0] for one in self.args[:10]]
        more = f" and {n - 10:,} more" if n > 10 else ""
        many = f"{n:,} structures cannot be read: {', '.join(names)}{more}; the first: "
        return f"{many if n > 1 else ''}{self.args[0]}"


def check_read(faults: Sequence[str]) -> None:
    """Raise Unreadable if there are sentences on structures that cannot be read."""
    if faults:
        raise Unreadable(*faults)


@contextmanager
def readable(what: object, faults: list[str] | None = None) -> Iterator[None]:
    """Context manager: turn any exception raised inside it into an InputError.

    The message of the error begins with ``what``, the name of a file or structure. It is added to
    ``faults`` if they are given, so that reading goes on, and raised otherwise.
    """
    try:
        yield
    except Exception as error:
        found = error if isinstance(error, InputError) else _unreadable(what, error)
        if faults is None:
            raise found from error.__cause__ if found is error else error
        faults += found.args


def _unreadable(what: object, error: Exception) -> Unreadable:
    said = next(iter(str(error).splitlines()), "")
    if isinstance(error, AssertionError) and not said:
        said = "its content is of another format"
    # For a missing key Python's message is only the key.
    if isinstance(error, KeyError) or not said:
        said = repr(error)
    return Unreadable(f"{what} cannot be read ({said}); correct or remove it")


def no_structures(file: Path, faults: Sequence[str] = ()) -> InputError:
    """Return the error for a data file that holds no structures, or has ``faults``.

    These are sentences on structures that cannot be read.
    """
    said = f"{file} holds no structures; give a file that does, or leave it out"
    return Unreadable(*faults) if faults else InputError(said)
