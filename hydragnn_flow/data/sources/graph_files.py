"""Base of sources with one graph in each file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from hydragnn_flow.config.sources import Role
from hydragnn_flow.config.targets import TargetConfig, Targets
from hydragnn_flow.data.sources.base import Chunk, Record
from hydragnn_flow.data.sources.features import named
from hydragnn_flow.data.sources.file_names import FilesSection, files_by_role
from hydragnn_flow.data.sources.labels import LabelCheck, shaped
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError

AnySection = TypeVar("AnySection", bound=FilesSection)


def with_levels(targets: dict[str, TargetConfig]) -> dict[str, TargetConfig]:
    """Return the targets if each has a level; raise ValueError otherwise."""
    for name, target in targets.items():
        if target.level is None:
            raise ValueError(
                f"{name} needs a level, graph or node, as in "
                f"{name}: {{unit: {target.unit!r}, level: graph}}"
            )
    return targets


LevelledTargets = Annotated[Targets, AfterValidator(with_levels)]
"""Targets of files whose arrays do not state their level."""


class GraphFiles(ABC, Generic[AnySection]):
    """Base class of sources with one graph per file; a subclass reads the file.

    Parameters
    ----------
    section
        Section with the names of the files, and targets.
    folder
        Directory that the file names are relative to.
    suffixes
        Suffixes of the files to take from a directory or a glob; by default all.
    """

    def __init__(
        self,
        section: AnySection,
        folder: Path,
        suffixes: Collection[str] = (),
    ) -> None:
        self._section = section
        self._folder = folder
        self._suffixes = suffixes
        self._labels = LabelCheck(section.targets)
        self.found_targets: Mapping[str, Target] = self._labels.found
        self._features: Sequence[str] | None = None

    @abstractmethod
    def _read(self, path: Path, index: int) -> tuple[Record, Sequence[str]]:
        """Read one file, check its labels, and return the names of the columns of ``x`` too."""

    def _beside(self, path: Path) -> list[Path]:
        return []

    @property
    def node_features(self) -> Sequence[str]:
        """Names of the columns of ``x`` in the first file; all files must have the same."""
        return self._read_first()

    def files(self) -> list[Path]:
        """Return every file that is read, in order."""
        return [
            file
            for found in self._by_role.values()
            for path in found
            for file in (path, *self._beside(path))
        ]

    def chunks(self) -> list[Chunk]:
        """Return one chunk for each file."""
        self._read_first()
        return [
            Chunk(role, str(path), 0, 1, first)
            for role, found in self._by_role.items()
            for first, path in enumerate(found)
        ]

    def read(self, chunk: Chunk) -> Iterator[Record]:
        """Yield the graph of a chunk's file."""
        record, names = self._read(Path(chunk.file), chunk.first)
        self._check_features(names, chunk.file)
        yield record

    def _targets(
        self, of_nodes: Mapping[str, Any], of_graph: Mapping[str, Any], n_nodes: int, origin: str
    ) -> dict[str, NDArray[np.float64]]:
        """Return the targets among named arrays by their level, checked."""
        arrays = {"node": of_nodes, "graph": of_graph}
        targets = {
            name: shaped(
                named(arrays[str(target.level)], target.key or name, origin), target.level, n_nodes
            )
            for name, target in self._section.targets.items()
        }
        self._labels.check(targets, n_nodes, origin)
        return targets

    @property
    def _label_keys(self) -> list[str]:
        return [target.key or name for name, target in self._section.targets.items()]

    def _read_first(self) -> Sequence[str]:
        """Return the names of the columns of ``x`` in the first graph, reading it once.

        An error common to all graphs is found in the first, before any others are read.
        """
        if self._features is None:
            self._features = self._read(self._by_role["train"][0], 0)[1]
        return self._features

    def _check_features(self, names: Sequence[str], origin: str) -> None:
        if list(names) != list(self.node_features):
            raise InputError(
                f"{origin} has the node features {', '.join(names)}, but the first graph has "
                f"{', '.join(self.node_features)}; give all graphs the same"
            )

    @cached_property
    def _by_role(self) -> dict[Role, list[Path]]:
        return files_by_role(self._section, self._folder, self._suffixes)


def read_columns(path: Path, text: Collection[str] = ()) -> dict[str, NDArray[Any]]:
    """Read the columns of a CSV, by their names in its first line.

    Parameters
    ----------
    path
        File of the table.
    text
        Columns that are text, even if they look like numbers.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    import pandas as pd

    try:
        table = pd.read_csv(path, skipinitialspace=True, dtype=dict.fromkeys(text, str))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a CSV ({error}); correct it") from None
    for name in text:
        if name in table and any("\0" in str(cell) for cell in table[name]):
            raise InputError(f"{path} holds a NUL in its column {name!r}; correct it")
    return {str(name): table[name].to_numpy() for name in table.columns}
