"""What sources have in common whose every file holds one graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from hydragnn_flow.config.graph_sources import FilesSection
from hydragnn_flow.data.sources.base import Part, Record, Role
from hydragnn_flow.data.sources.files import files_by_role
from hydragnn_flow.data.sources.labels import LabelCheck
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError


class GraphFiles(ABC):
    """A source whose every file holds one graph; a subclass says how to read it.

    Parameters
    ----------
    section
        Names of the files, and targets.
    folder
        Directory they are relative to.
    suffixes
        Endings of the files to take from a directory or a glob; by default all.
    """

    def __init__(
        self,
        section: FilesSection,
        folder: Path,
        suffixes: Collection[str] = (),
    ) -> None:
        self.units = {name: target.unit for name, target in section.targets.items()}
        self._section = section
        self._folder = folder
        self._suffixes = suffixes
        self._labels = LabelCheck(self.units)

    @abstractmethod
    def _read(self, path: Path, index: int) -> tuple[Record, Sequence[str]]:
        """Read one file, check its labels, and say what the columns of ``x`` are."""

    def _beside(self, path: Path) -> list[Path]:
        """Further files that belong to one."""
        return []

    @property
    def found_targets(self) -> Mapping[str, Target]:
        """The targets as the records read so far have them."""
        return self._labels.found

    @cached_property
    def node_features(self) -> Sequence[str]:
        """What the columns of ``x`` are in the first file, and so have to be in all."""
        return self._read(self._by_role["train"][0], 0)[1]

    def files(self) -> list[Path]:
        """Every file that is read, in order."""
        return [
            file
            for found in self._by_role.values()
            for path in found
            for file in (path, *self._beside(path))
        ]

    def parts(self) -> list[Part]:
        """One part for each file."""
        assert self.node_features  # reads the first file
        return [
            Part(role, str(path), 0, 1, first)
            for role, found in self._by_role.items()
            for first, path in enumerate(found)
        ]

    def read(self, part: Part) -> Iterator[Record]:
        """The graph of a part's file."""
        record, names = self._read(Path(part.file), part.first)
        self._check_features(names, part.file)
        yield record

    def _check_features(self, names: Sequence[str], origin: str) -> None:
        if list(names) != list(self.node_features):
            raise InputError(
                f"{origin} has the node features {', '.join(names)}, but the first graph has "
                f"{', '.join(self.node_features)}; give all graphs the same"
            )

    @cached_property
    def _by_role(self) -> dict[Role, list[Path]]:
        return files_by_role(self._section, self._folder, self._suffixes)
