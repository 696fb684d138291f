"""All structures of a path at once, for what compares them with each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ase import Atoms

from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.sources.structures import Found
from hydragnn_flow.ensemble.labels import atoms_of
from hydragnn_flow.ensemble.records import fault_of
from hydragnn_flow.ensemble.structure_files import Files, open_path
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    from hydragnn_flow.ensemble.ensemble import Ensemble


@dataclass
class Structures:
    """All structures of files, the names of their files, and their numbers in these.

    In place of a file, those of a store have its split.
    """

    found: list[Found] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    called: tuple[str, str] = ("file", "frame")
    """What name and number are called in tables and files."""

    @classmethod
    def of(
        cls, path: Path, files: Files, ensemble: Ensemble, say: Callable[[str], None]
    ) -> Structures:
        """Read all; those of a directory that cannot be predicted are left out, and named.

        Raises
        ------
        InputError
            As :meth:`Files.records`, or if there are none.
        """
        read = cls()
        for record in files.records(say):
            why = fault_of(record) or ensemble.refusal(record.found.atoms)
            if path.is_dir() and why:
                say(f"skipped: {path / str(record.file)}: structure {record.frame} {why}")
                continue
            read.found.append(record.found)
            read.files.append(str(record.file))
            read.frames.append(record.frame)
        if not read.found:
            raise InputError(f"{path}: holds no structures that the ensemble can predict")
        return read

    @classmethod
    def of_store(cls, store: GraphStore) -> Structures:
        """The structures of a store's graphs, without their labels.

        Raises
        ------
        InputError
            If its nodes are no atoms.
        """
        if not atoms_of(store.manifest):
            raise InputError(
                f"{store.path}: the first feature of its nodes is no atomic number; give the files "
                f"it was made of"
            )
        read = cls(called=("split", "graph_id"))
        for name in store.splits:
            for graph, number in zip(store[name], store[name].graph_id.tolist(), strict=True):
                cell, pbc = (graph.get(key, None) for key in ("cell", "pbc"))
                atoms = Atoms(
                    graph.x[:, 0].numpy().astype(int),
                    graph.pos.numpy(),
                    cell=None if cell is None else cell.numpy(),
                    pbc=None if pbc is None else pbc.numpy(),
                )
                read.found.append(Found(atoms, {}, {}))
                read.files.append(name)
                read.frames.append(number)
        return read

    @property
    def atoms(self) -> list[Atoms]:
        """The structures alone."""
        return [one.atoms for one in self.found]

    @property
    def names(self) -> list[str]:
        """Names of the structures: file, and number if the file has several."""
        several = {file for file, frame in zip(self.files, self.frames, strict=True) if frame > 0}
        return [
            f"{file}: structure {frame}" if file in several else file
            for file, frame in zip(self.files, self.frames, strict=True)
        ]

    @property
    def origins(self) -> list[dict[str, str | int]]:
        """Where each structure comes from, as tables and files say it."""
        file, frame = self.called
        return [
            {file: name, frame: number}
            for name, number in zip(self.files, self.frames, strict=True)
        ]

    @contextmanager
    def naming(self, path: Path) -> Iterator[None]:
        """Let errors begin with the path of the file at fault, or else with ``path``."""
        folder = path if path.is_dir() else path.parent
        try:
            yield
        except InputError as error:
            said = str(error)
            of_a_file = said.startswith(tuple(self.files))
            raise InputError(f"{folder / said}" if of_a_file else f"{path}: {said}") from None


def read_path(
    path: Path, ensemble: Ensemble, *, split: str | None, say: Callable[[str], None]
) -> GraphStore | Structures:
    """The store, or all structures, at a path.

    Parameters
    ----------
    path, split
        As for :func:`open_path`.
    ensemble
        Ensemble that is to predict them.
    say
        Told which files and structures of a directory were passed over, and why.

    Raises
    ------
    InputError
        As :func:`open_path` and :meth:`Structures.of`.
    """
    opened = open_path(path, ensemble.manifest, split)
    if isinstance(opened, GraphStore):
        return opened
    return Structures.of(path, opened, ensemble, say)
