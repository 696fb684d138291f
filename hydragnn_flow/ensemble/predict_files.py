"""Predictions for structures in files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ase import Atoms

from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.sources.ase_files import UnknownFormat, read_structures
from hydragnn_flow.data.sources.file_names import natural_order
from hydragnn_flow.data.sources.structures import Found
from hydragnn_flow.data.store.manifest import MANIFEST
from hydragnn_flow.ensemble.ensemble import Ensemble
from hydragnn_flow.ensemble.predictions_table import Predictions
from hydragnn_flow.errors import InputError


def predict_path(
    ensemble: Ensemble,
    path: Path,
    *,
    split: str | None = None,
    members: bool = False,
    say: Callable[[str], None] = print,
) -> Predictions:
    """Predict all structures at a path.

    Parameters
    ----------
    ensemble
        A loaded ensemble.
    path
        A file ASE reads, a directory of such files, or a GraphStore. The files right in a directory
        come in the order in which training reads them: ``run-2`` before ``run-10``.
    split
        Of a GraphStore; all its splits if not given.
    members
        Whether to give every member's prediction too.
    say
        Told which files of a directory were passed over, and why.

    Returns
    -------
    Predictions
        Those of files have a column `file`, the name of each structure's file.

    Raises
    ------
    InputError
        If there is nothing readable at ``path``, or the ensemble cannot predict it.
    """
    data = open_path(path, ensemble, split=split, say=say)
    if isinstance(data, GraphStore):
        return ensemble.predict_store(data, split, members=members)
    with data.naming(path):
        return ensemble.predict(data.atoms, members=members, files=data.files)


def open_path(
    path: Path, ensemble: Ensemble, *, split: str | None, say: Callable[[str], None]
) -> GraphStore | Structures:
    """What there is at a path to predict.

    Parameters and errors are those of :func:`predict_path`.
    """
    if not path.exists():
        raise InputError(f"{path}: does not exist; correct the path of the structures")
    if (path / MANIFEST).is_file() or path.suffix == ".bp":
        return GraphStore.open(path, mode="random")
    if split is not None:
        raise InputError(f"{path}: is no GraphStore and has no splits; leave --split out")
    if path.is_dir():
        found = _of_directory(path, ensemble)
        for line in found.passed_over():
            say(line)
        return found
    found = Structures()
    found.add(path, read_structures(path))
    return found


@dataclass
class Structures:
    """Structures, the names of their files, and the names of files without structures."""

    found: list[Found] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    """Files that are hidden, broken links, or of a format ASE does not know."""
    unreadable: list[str] = field(default_factory=list)
    """Error of each of the other files that cannot be read or predicted."""

    @property
    def atoms(self) -> list[Atoms]:
        """The structures alone."""
        return [one.atoms for one in self.found]

    def add(self, file: Path, structures: Sequence[Found]) -> None:
        """Add those of a file."""
        self.found += structures
        self.files += [file.name] * len(structures)

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

    def passed_over(self) -> list[str]:
        """A line for files that are no structures, and one for each that is strange itself."""
        lines = [f"skipped: {reason}" for reason in self.unreadable]
        if self.strange:
            lines.insert(0, f"skipped, as they are no structures: {', '.join(self.strange)}")
        return lines


def _of_directory(folder: Path, ensemble: Ensemble) -> Structures:
    """The structures of all files right in a directory that can be predicted.

    Raises
    ------
    InputError
        If there are none.
    """
    found = Structures()
    for file in sorted((p for p in folder.iterdir() if not p.is_dir()), key=natural_order):
        if file.name.startswith(".") or not file.is_file():
            found.strange.append(file.name)
            continue
        try:
            structures = read_structures(file)
            _check(structures, file, ensemble)
            found.add(file, structures)
        except UnknownFormat:
            found.strange.append(file.name)
        except InputError as error:
            found.unreadable.append(str(error))
    if not found.found:
        why = "; ".join(found.passed_over()) or "the directory holds no files"
        raise InputError(f"{folder}: holds no file of structures that ASE can read ({why})")
    return found


def _check(structures: Sequence[Found], file: Path, ensemble: Ensemble) -> None:
    for number, one in enumerate(structures):
        if (refusal := ensemble.refusal(one.atoms)) is not None:
            which = f"structure {number}: " if len(structures) > 1 else ""
            raise InputError(f"{file}: {which}{refusal}")
