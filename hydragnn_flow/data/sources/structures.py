"""Base of sources of labelled structures in files."""

from __future__ import annotations

import difflib
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hydragnn_flow.config.sources import Level, Role
from hydragnn_flow.data.sources.base import Chunk, Labelled
from hydragnn_flow.data.sources.file_names import FilesSection, files_by_role, ranges
from hydragnn_flow.data.sources.labels import LabelCheck, shaped
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    import ase

_LEAST = 256
"""Number of structures that justifies a task of its own."""


class StructuresSection(FilesSection):
    """Keys common to all formats of labelled structures in files."""

    group: str | None = Field(default=None, min_length=1)
    """Key in the files whose value is the group of a structure."""

    graph_attr: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(
        default=None, min_length=1
    )
    """Keys of quantities of a whole structure, such as its charge and spin: they become the graphs'
    key `graph_attr`, in this order and in the files' units."""


class Found(NamedTuple):
    """Structure in a file, with its values."""

    atoms: ase.Atoms
    values: Mapping[str, Any]
    """Values that may be a label or a group, by key in the file."""
    levels: Mapping[str, Level] = {}
    """Level of each label, if the file states it."""


class StructureSource(ABC):
    """Base class of sources that read structures and labels from files of one format.

    Parameters
    ----------
    config
        Section of the source.
    folder
        Directory that the file names are relative to.
    """

    node_features = ("atomic_number",)

    def __init__(self, config: StructuresSection, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._labels = LabelCheck(config.targets)
        self.found_targets: Mapping[str, Target] = self._labels.found

    @abstractmethod
    def ranges(self, file: Path) -> list[tuple[int, int]]:
        """Count the structures of a file and cut them into ranges, which cover them all, in order.

        Structures are counted without reading them if that is possible.
        """

    @abstractmethod
    def structures(self, file: Path, start: int, stop: int) -> Iterator[Found]:
        """Yield the structures in [start, stop) of a file; fewer if it ends before.

        It may raise anything; any exception but InputError means that a structure cannot be read.
        """

    def files(self) -> list[Path]:
        return [file for files in self._inputs().values() for file in files]

    def chunks(self) -> list[Chunk]:
        inputs = self._inputs()
        # Training data last, as they are usually the largest: errors of the others come early.
        of_role = {role: self._chunks(role, inputs[role]) for role in reversed(inputs)}
        return [chunk for role in inputs for chunk in of_role[role]]

    def read(self, chunk: Chunk) -> Iterator[Labelled]:
        n = 0
        for labelled in self._read(Path(chunk.file), chunk.start, chunk.stop, chunk.first):
            yield labelled
            n += 1
        if n < chunk.stop - chunk.start:
            raise InputError(
                f"{chunk.file} ends at structure {chunk.start + n}, though it had {chunk.stop} "
                "when they were counted; it is damaged or has changed; start again when it is "
                "complete"
            )

    def _inputs(self) -> dict[Role, list[Path]]:
        return files_by_role(self._config, self._folder)

    def _chunks(self, role: Role, files: Sequence[Path]) -> list[Chunk]:
        for file in files:
            if file.stat().st_size == 0:
                raise _empty(file)
        # An error common to all structures is found in the first, before any file is counted.
        if next(self._read(files[0], 0, 1, 0), None) is None:
            raise _empty(files[0])
        chunks, first = [], 0
        for file in files:
            cuts = self._cuts(file)
            chunks += [Chunk(role, str(file), start, stop, first) for start, stop in cuts]
            first += cuts[-1][1]
        return chunks

    def _cuts(self, file: Path) -> list[tuple[int, int]]:
        try:
            cuts = self.ranges(file)
        except InputError:
            raise
        except Exception as error:  # parsers may raise any exception
            raise InputError(
                f"{file} cannot be read ({reason(error)}); correct it or leave it out"
            ) from error
        if not cuts:
            raise _empty(file)
        return cuts

    def _read(self, file: Path, start: int, stop: int, first: int) -> Iterator[Labelled]:
        structures = self.structures(file, start, stop)
        for number in range(start, stop):
            origin = f"{file}: structure {number}"
            try:
                found = next(structures, None)
            except InputError:
                raise
            except Exception as error:
                raise InputError(
                    f"{origin} cannot be read ({reason(error)}); correct or remove it"
                ) from error
            if found is None:
                return
            yield self._labelled(found, file, origin, first + number)

    def _labelled(self, found: Found, file: Path, origin: str, index: int) -> Labelled:
        n_atoms = len(found.atoms)
        targets = {}
        for name, target in self._config.targets.items():
            key = target.key or name
            value = lookup(found.values, key, origin, "label", f"targets.{name}.key")
            try:
                targets[name] = shaped(value, target.level or found.levels.get(key), n_atoms)
            except (TypeError, ValueError):
                raise InputError(
                    f"{origin} has a label {key!r} that is not made of numbers "
                    f"({reprlib.repr(value)}); correct it or drop the target"
                ) from None
        self._labels.check(targets, n_atoms, origin)
        group = self._config.group
        named = None
        if group is not None:
            named = str(lookup(found.values, group, origin, "group", "group"))
        atoms = found.atoms
        atoms.calc = None  # the calculator would be sent along with every structure
        keys = self._graph_attr(found, origin)
        return Labelled(atoms, targets, origin, index, named, keys=keys)

    def _graph_attr(self, found: Found, origin: str) -> dict[str, NDArray[Any]]:
        """Return the inputs that belong to a whole structure, if the section names any."""
        names = self._config.graph_attr
        if names is None:
            return {}
        for name in names:
            lookup(found.values, name, origin, "input", "graph_attr")
        try:
            return {"graph_attr": graph_attr(found.values, names)}
        except ValueError as error:
            raise InputError(f"{origin} {error}; correct it or remove the structure") from None


def cut(n: int, most: int = 64) -> list[tuple[int, int]]:
    """Return ranges of a file's ``n`` structures, each worth a task, and no more than ``most``."""
    return ranges(n, _LEAST, most)


def graph_attr(values: Mapping[str, Any], names: Sequence[str]) -> NDArray[np.float32]:
    """Return inputs of a whole structure, [1, number of names].

    Raises
    ------
    ValueError
        If one is missing, or is not a single finite number; the message begins like "has no".
    """
    row = []
    for name in names:
        value = values.get(name)
        if value is None:
            raise ValueError(f"has no {name!r}, a number that the network reads of each structure")
        try:
            numbers = np.asarray(value, dtype=np.float64).reshape(-1)
        except (TypeError, ValueError):
            numbers = np.array([np.nan])
        # NaN is not below the limit either.
        if numbers.size != 1 or not (np.abs(numbers) <= np.finfo(np.float32).max).all():
            raise ValueError(
                f"has {name!r} = {reprlib.repr(value)}, and the network reads one finite number"
            )
        row.append(numbers[0])
    return np.array([row], dtype=np.float32)


def lookup(values: Mapping[str, Any], key: str, origin: str, what: str, setting: str) -> Any:
    """Return a value that a structure must have; ``setting`` is the section's key for its name.

    Raises
    ------
    InputError
        If it is missing; the message begins with ``origin`` and names the nearest key.
    """
    if key not in values:
        known = [name for name in values if name]  # a table's index has no name
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known) or 'nothing'}"
        raise InputError(
            f"{origin} has no {what} {key!r} ({hint}); "
            f"correct data.source.{setting}, add the {what}, or remove the structure"
        )
    if values[key] is None:
        raise InputError(
            f"{origin} has an empty {what} {key!r}; fill it in or remove the structure"
        )
    return values[key]


def _empty(file: Path) -> InputError:
    return InputError(f"{file} holds no structures; give a file that does, or leave it out")


def reason(error: Exception) -> str:
    """Return the first line of a parser's message."""
    said = next(iter(str(error).splitlines()), "")
    if isinstance(error, AssertionError) and not said:
        return "its content is of another format"
    # For a missing key Python's message is only the key.
    return repr(error) if isinstance(error, KeyError) or not said else said
