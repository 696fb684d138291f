"""Files of predictions: CSV, Parquet and extended XYZ, whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_flow.ensemble.frames import extended_xyz
from hydragnn_flow.ensemble.predicting import Predictable, predict_chunks
from hydragnn_flow.ensemble.predictions_table import NODES, Predictions, may_be_absent
from hydragnn_flow.ensemble.spool import Spool, Spooled, write_table
from hydragnn_flow.ensemble.structure_files import Progress
from hydragnn_flow.errors import InputError
from hydragnn_flow.locks import Held, Unlockable, locked

if TYPE_CHECKING:
    from hydragnn_flow.ensemble.ensemble import Ensemble

EXTXYZ = ".extxyz"
SUFFIXES = (".csv", ".parquet", EXTXYZ)
_LOCK = "lock"


class PredictionFiles:
    """Files that predictions are added to, from entering a ``with`` block to leaving it.

    At its end the files appear, complete; after an exception none does. Memory does not grow with
    the number of predictions: they wait in a hidden directory beside each file, because only the
    last structure tells whether any has a label.

    Parameters
    ----------
    paths
        Files to write, each with one of the :data:`SUFFIXES`. A table of atoms goes to a second
        file, ``NAME_nodes``; extended XYZ holds both.

    Raises
    ------
    InputError
        If a file has another suffix, is in no directory, is the table of atoms of another, or, on
        entering the block, is being written by another process.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        for path in paths:
            if path.suffix not in SUFFIXES:
                raise InputError(f"{path}: must end in {' or '.join(SUFFIXES)}")
            if not path.absolute().parent.is_dir():
                raise InputError(f"{path}: there is no directory {path.parent}; make it first")
        of_atoms = {_table(path, NODES): path for path in paths if path.suffix != EXTXYZ}
        for path in paths:
            if (other := of_atoms.get(path)) is not None:
                raise InputError(
                    f"{path}: is where the table of atoms beside {other.name} goes; choose another "
                    f"name"
                )
        self.written: list[Path] = []
        """The files, once they are complete."""
        self._paths = list(dict.fromkeys(paths))
        self._folders: dict[Path, Path] = {}
        self._tables: dict[str, Spool] = {}
        self._parts: dict[str, list[Spooled]] = {}
        self._frames: dict[Path, IO[str]] = {}
        self._until_the_end = ExitStack()

    def __enter__(self) -> PredictionFiles:
        with ExitStack() as stack:
            for path in self._paths:
                self._folders[path] = stack.enter_context(_workplace(path))
                if path.suffix == EXTXYZ:
                    file = self._folders[path] / path.name
                    self._frames[path] = stack.enter_context(file.open("w", encoding="utf-8"))
            self._until_the_end = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._until_the_end.__exit__(kind, error, trace)
            return
        with self._until_the_end:
            for spool in self._tables.values():
                spool.close()
            complete: dict[Path, Path] = {}
            for path, folder in self._folders.items():
                if path in self._frames:
                    self._frames[path].flush()
                    os.fsync(self._frames[path].fileno())
                    complete[path] = folder / path.name
                    continue
                for name, parts in self._parts.items():
                    target = _table(path, name)
                    complete[target] = folder / target.name
                    write_table(parts, complete[target], path.suffix)
            for target, file in complete.items():
                file.replace(target)
                self.written.append(target)

    @property
    def hold_structures(self) -> bool:
        """Whether a file holds the structures too."""
        return any(path.suffix == EXTXYZ for path in self._paths)

    def add(self, tables: Predictions, structures: Sequence[Atoms] | None = None) -> None:
        """Add predictions.

        Parameters
        ----------
        tables
            They have the same columns as those before, but for those that may be absent.
        structures
            The structures; needed for extended XYZ.
        """
        for name, table in tables.by_name().items():
            if name not in self._tables:
                file = self._folders[self._paths[0]] / f"table{name}"
                self._tables[name] = self._until_the_end.enter_context(Spool(file, table))
                self.add_spooled(name, Spooled(file))
            self._tables[name].add(table)
        if self.hold_structures:
            if structures is None:
                raise no_structures()
            self.add_frames(extended_xyz(with_predictions(structures, tables)))

    def add_spooled(self, name: str, part: Spooled) -> None:
        """Have a file follow in a table, whose name is one of :meth:`Predictions.by_name`."""
        self._parts.setdefault(name, []).append(part)

    def add_frames(self, text: str) -> None:
        """Add structures with their predictions, as extended XYZ."""
        for file in self._frames.values():
            file.write(text)


def written_to(paths: Sequence[Path]) -> list[Path]:
    """The files that :class:`PredictionFiles` may write for some paths, tables of atoms too."""
    return [
        file
        for path in paths
        for file in ([path] if path.suffix == EXTXYZ else [path, _table(path, NODES)])
    ]


def check_keeps_input(data: Path, paths: Iterable[Path]) -> None:
    """Refuse to replace the structures by what is computed for them.

    Raises
    ------
    InputError
        If one of the files to write is the one that is read.
    """
    for path in paths:
        if path.exists() and data.exists() and path.samefile(data):
            raise InputError(f"{path}: holds the structures; write to another file")


def no_structures() -> InputError:
    """The error for extended XYZ of a GraphStore."""
    return InputError(
        f"{EXTXYZ[1:]} is for structures from files, and these are a GraphStore's; choose "
        f"{' or '.join(SUFFIXES[:-1])}"
    )


@contextmanager
def _workplace(path: Path) -> Iterator[Path]:
    """The hidden directory in which a file grows, without what a killed process left in it."""
    folder = path.with_name(f".{path.name}.writing")
    with ExitStack() as stack:
        try:
            folder.mkdir(exist_ok=True)
            stack.enter_context(locked(folder / _LOCK, 0.0))
        except (Held, FileNotFoundError):  # a process that has just finished deletes it
            raise InputError(
                f"{path}: another process is writing it; wait for it, or name another file"
            ) from None
        except Unlockable as error:
            raise InputError(
                f"{path}: is on a file system that cannot lock files ({error.strerror}); choose a "
                f"directory on another"
            ) from None
        stack.callback(shutil.rmtree, folder)
        for left in folder.iterdir():
            if left.name != _LOCK:
                left.unlink()
        yield folder


def _table(path: Path, name: str) -> Path:
    return path.with_name(f"{path.stem}{name}{path.suffix}")


class Written(NamedTuple):
    """Predictions that were written."""

    files: list[Path]
    structures: int
    """Number of structures."""
    without: int
    """How many of them could not be predicted."""
    unlike: int
    """How many are predicted, but unlike the data that the ensemble was made with."""


def write_predictions(
    ensemble: Ensemble,
    data: Predictable,
    paths: Sequence[str | Path],
    *,
    split: str | None = None,
    members: bool = False,
    device: str | torch.device = "cpu",
    say: Callable[[str], None] = print,
    progress: Progress = lambda done, total: None,
) -> Written:
    """Predict any number of structures into files, in memory that does not grow with them.

    Parameters
    ----------
    ensemble
        A loaded ensemble.
    data, split, members, device, say
        As for :meth:`Ensemble.predict`.
    paths
        As for :class:`PredictionFiles`.
    progress
        Told how far the input is read.

    Raises
    ------
    InputError
        As :meth:`Ensemble.predict`, and for extended XYZ of a GraphStore.
    """
    structures = without = unlike = 0
    tables = [Path(path) for path in paths]
    outs = written_to(tables)
    if isinstance(data, (str, os.PathLike)):
        check_keeps_input(Path(data), outs)
    with PredictionFiles(tables) as files:
        for chunk in predict_chunks(
            ensemble,
            data,
            split=split,
            members=members,
            device=device,
            say=say,
            progress=progress,
            but=outs,
        ):
            files.add(chunk.tables, chunk.structures)
            structures += len(chunk.tables.graphs)
            without += chunk.without
            unlike += chunk.unlike
    return Written(files.written, structures, without, unlike)


def with_predictions(structures: Sequence[Atoms], tables: Predictions) -> list[Atoms]:
    """Copies of structures with their rows of the tables.

    What belongs to a structure is in its `info`, what belongs to atoms in its `arrays`; components
    are one array again.
    """
    graphs, nodes = tables.graphs, tables.nodes
    of_graphs = _together(graphs)
    of_nodes = {} if nodes is None else _together(nodes)
    labels = {name for table in (of_graphs, of_nodes) for name in may_be_absent(table)}
    copies, first = [], 0
    for row, atoms in enumerate(structures):
        copied: Atoms = atoms.copy()  # type: ignore[no-untyped-call]  # without its calculator
        of_atoms = slice(first, first + len(atoms))
        values = {name: column[row] for name, column in of_graphs.items()}
        columns = {name: column[of_atoms] for name, column in of_nodes.items()}
        copied.info |= {name: v for name, v in values.items() if not _is_absent(v, name in labels)}
        copied.arrays |= {
            name: v
            for name, v in columns.items()
            if name not in values and name != "node_index" and not _is_absent(v, name in labels)
        }
        copies.append(copied)
        first += len(atoms)
    return copies


def _together(table: pd.DataFrame) -> dict[str, NDArray[Any]]:
    """Columns by name; those of the components of a target are one, ``[n, d]``."""
    columns = {str(name): column.to_numpy() for name, column in table.items()}
    for target, labels in table.attrs["components"].items():
        if len(labels) == 1:
            continue
        for suffix in [name.removeprefix(labels[0]) for name in columns]:
            names = [f"{label}{suffix}" for label in labels]
            if all(name in columns for name in names):
                together = np.stack([columns.pop(name) for name in names], axis=1)
                columns[f"{target}{suffix}"] = together
    return columns


def _is_absent(value: Any, is_label: bool) -> bool:
    """Whether there is nothing to say: no name, no remark, or no label."""
    if value is None or isinstance(value, str):
        return not value
    return is_label and bool(np.isnan(value).all())
