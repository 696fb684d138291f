"""Plan of predictions in parts: which structures each has, on disk before any is predicted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hydragnn_flow.config.network import read_json
from hydragnn_flow.data import GraphStore
from hydragnn_flow.ensemble.calibration_file import FILE as CALIBRATION
from hydragnn_flow.ensemble.checksums import CHECKSUMS
from hydragnn_flow.ensemble.ensemble import Ensemble
from hydragnn_flow.ensemble.member_predictions import splits_of
from hydragnn_flow.ensemble.records import CHUNK
from hydragnn_flow.ensemble.structure_files import Files, Piece
from hydragnn_flow.ensemble.summary import ensemble_folder
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import open_regular, write_json
from hydragnn_flow.versions import versions

PLAN = "plan.json"
_VERSION = 1
_PART = "part-"
# Enough parts for GCDs of unequal speed to end together, and each long enough to be worth starting.
_PARTS_PER_GCD = 4
_MOST_CHUNKS = 64
_COUNTED = frozenset({".extxyz", ".xyz", ".traj", ".db", ".json", ".csv"})
"""Endings of files whose structures can be counted, and entered in the middle."""


class Part(NamedTuple):
    """Structures that one worker predicts: a range of a file or split, or several whole ones."""

    pieces: tuple[Piece, ...]
    structures: int
    """Their number; a file that cannot be counted is taken for one."""

    @property
    def what(self) -> str:
        """The part in words."""
        first, last = self.pieces[0], self.pieces[-1]
        if first.stop is not None:
            return f"structures {first.start} to {first.stop - 1} of {first.name}"
        return first.name if first == last else f"{first.name} to {last.name}"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """All that decides what is predicted, beside the structures; as JSON it goes to workers."""

    run: str
    without: tuple[int, ...]
    coverage: float | None
    data_set: str | None
    data: str
    split: str | None
    members: bool
    frames: bool
    """Whether structures are written too."""
    outs: tuple[str, ...]
    """Files that are written, and not read in a directory."""
    ensemble: str
    """Digest of the ensemble's files."""


class OtherParts(InputError):
    """A directory has finished parts of another prediction."""


def digest_of_ensemble(run: str | Path) -> str:
    """Digest of all files that an ensemble predicts with."""
    folder, digest = ensemble_folder(run), hashlib.blake2b(digest_size=16)
    for file in filter(Path.exists, (folder / CHECKSUMS, folder / CALIBRATION)):
        with open_regular(file) as opened:
            digest.update(opened.read())
    return digest.hexdigest()


def plan(
    folder: Path, asked: Asked, data: GraphStore | Files, ensemble: Ensemble, gcds: int
) -> dict[Path, Part]:
    """The parts of a prediction, in order: as they were planned before, if any is predicted.

    Parameters
    ----------
    folder
        Directory of the prediction.
    asked
        What is asked for.
    data
        The structures.
    ensemble
        Ensemble that predicts them.
    gcds
        Number of GCDs to spread a new plan over.

    Returns
    -------
    dict
        Directory of each part -> part. All are in one directory, which only this plan has: a worker
        that outlives its driver may still finish a part of an earlier one.

    Raises
    ------
    OtherParts
        If the directory has finished parts of another prediction.
    InputError
        If a table of structures cannot be read.
    """
    of = {
        "version of this package": [_VERSION, versions()["hydragnn_flow"]],
        "ensemble": asked.ensemble,
        "structures": _digest_of_data(data),
        "options": json.loads(json.dumps({**asdict(asked), "run": None, "ensemble": None})),
    }
    file = folder / PLAN
    found = read_json(file) if file.exists() else {"of": {}}
    parts = [Part(tuple(Piece(*p) for p in pieces), n) for pieces, n in found.get("parts", ())]
    if other := [key for key, value in of.items() if found["of"].get(key) != value]:
        if finished(folder, "*") and file.exists():
            raise OtherParts(
                f"{folder}: holds finished parts of a prediction with other {' and '.join(other)}; "
                f"delete it to begin anew, or name another file with --out"
            )
        sizes = list(_sizes(data, asked.split, ensemble))
        parts = divide(sizes, per_part(sum(n or 1 for _, n in sizes), gcds))
        write_json(file, {"of": of, "parts": parts})
    digest = hashlib.blake2b(json.dumps([of, parts]).encode(), digest_size=8).hexdigest()
    (folder / digest).mkdir(exist_ok=True)
    return {folder / digest / f"{_PART}{n:06d}": part for n, part in enumerate(parts)}


def finished(folder: Path, plan: str = "") -> set[str]:
    """Names of the predicted parts in a directory, or in its directories of a pattern."""
    return {found.name for found in folder.glob(f"{plan}/{_PART}*" if plan else f"{_PART}*")}


def per_part(structures: int, gcds: int) -> int:
    """Structures of a part: a multiple of :data:`CHUNK`, as those are predicted together.

    Parameters
    ----------
    structures
        All there are.
    gcds
        Number of GCDs that predict.
    """
    chunks = -(-structures // (CHUNK * _PARTS_PER_GCD * gcds))
    return CHUNK * min(max(chunks, 1), _MOST_CHUNKS)


def divide(sizes: Iterable[tuple[str, int | None]], most: int) -> list[Part]:
    """Divide files, or splits of a store, into parts, in their order.

    Files that are larger than a part are cut, and each of their pieces is a part of its own; of
    others a part has as many as reach its size.

    Parameters
    ----------
    sizes
        Name and number of structures of each; None if it is not known.
    most
        Structures of a part.
    """
    parts: list[Part] = []
    together: list[Piece] = []
    held = 0

    def close() -> None:
        nonlocal together, held
        if together:
            parts.append(Part(tuple(together), held))
        together, held = [], 0

    for name, n in sizes:
        if n is not None and n > most:
            close()
            for start in range(0, n, most):
                stop = min(start + most, n)
                parts.append(Part((Piece(name, start, stop),), stop - start))
            continue
        together.append(Piece(name))
        held += n or 1
        if held >= most:
            close()
    close()
    return parts


def _sizes(
    data: GraphStore | Files, split: str | None, ensemble: Ensemble
) -> Iterator[tuple[str, int | None]]:
    if isinstance(data, GraphStore):
        for one in splits_of(ensemble, data, split):
            yield one.name, len(one)
        return
    for name in data.names():
        passed_over = data.is_directory and (name.startswith(".") or data.is_written(name))
        can_be_counted = not _COUNTED.isdisjoint(Path(name).suffixes) and not passed_over
        yield name, data.count(name) if can_be_counted else None


def _digest_of_data(data: GraphStore | Files) -> str:
    """Digest of names, sizes and times of all files."""
    if isinstance(data, GraphStore):
        path = data.path
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
    else:
        path = data.path
        files = [data.file(name) for name in data.names() if not data.is_written(name)]
    digest = hashlib.blake2b(str(path.resolve()).encode(), digest_size=16)
    for file in files:
        about = file.stat() if file.exists() else None  # a broken link is no structure
        said = None if about is None else (about.st_size, about.st_mtime_ns)
        digest.update(f"{file.name!r} {said}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def request_of(part: Part, directory: Path, asked: Asked, device: str) -> Mapping[str, Any]:
    """The task to predict a part, for :func:`~hydragnn_flow.ensemble.part_files.predict_part`."""
    return {
        **asdict(asked),
        "what": part.what,
        "directory": str(directory),
        "pieces": part.pieces,
        "device": device,
    }
