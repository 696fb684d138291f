"""Predictions in parts: planned on disk before any is predicted, each in a directory of its own.

A part is written whole or not at all. So a prediction that was stopped continues with the parts
that are missing.
"""

from __future__ import annotations

import errno
import faulthandler
import hashlib
import json
import socket
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hydragnn_flow.config.network import read_json
from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.store.integrity import fsync_tree
from hydragnn_flow.data.store.manifest import MANIFEST
from hydragnn_flow.ensemble.ensemble import Ensemble
from hydragnn_flow.ensemble.predictions.files import Written, write_part
from hydragnn_flow.ensemble.predictions.member_predictions import CHUNK, lay_out, predict_members
from hydragnn_flow.ensemble.predictions.structure_files import Files, Graphs, Piece, open_structures
from hydragnn_flow.ensemble.predictions.table import Chunk
from hydragnn_flow.ensemble.summary import CHECKSUMS, ensemble_folder
from hydragnn_flow.ensemble.uncertainty.calibration import FILE as CALIBRATION
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import open_regular, whole_directory, write_json
from hydragnn_flow.versions import versions

PLAN = "plan.json"
RECORD = "record.json"
_VERSION = 4
_PART = "part-"
# Enough parts for GCDs of unequal speed to end together, and each long enough to be worth starting.
_PARTS_PER_GCD = 4
_MOST_CHUNKS = 64
# Longest time between two chunks [s]. The first waits for kernels that are compiled.
_PATIENCE = 3600.0


class Part(NamedTuple):
    """Part of a prediction that is divided among workers: the structures that one of them predicts.

    They are a range of a file or split, or whole files or splits.
    """

    pieces: tuple[Piece, ...]
    structures: int
    """Number of structures; a file whose structures cannot be counted counts as one."""

    @property
    def what(self) -> str:
        """Words that name the structures of the part in messages."""
        first, last = self.pieces[0], self.pieces[-1]
        if first.stop is not None:
            return f"structures {first.start} to {first.stop - 1} of {first.name}"
        return first.name if first == last else f"{first.name} to {last.name}"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Options of a prediction, which decide its results; workers receive them as JSON."""

    run: str
    """Directory that the ensemble is loaded from."""
    ensemble: str
    """Digest of the ensemble's files, from :func:`digest_of_ensemble`."""
    without: tuple[int, ...]
    """Numbers of the members that are left out."""
    coverage: float
    """Fraction of true values in the intervals."""
    data_set: str | None
    """Data set whose branch (heads) predicts structures that name no data set, or None."""
    data: str
    """Path of the structures, or of a GraphStore."""
    split: str | None
    """Split of a GraphStore to predict; None for all."""
    members: bool
    """True to write every member's prediction too."""
    structures: bool
    """True to write the structures too, for extended XYZ."""
    outs: tuple[str, ...]
    """Files that predictions are written to, which are not read as input."""


class OtherParts(InputError):
    """Error raised if a directory already holds finished parts of another prediction."""


def digest_of_ensemble(run: str | Path) -> str:
    """Return a digest of an ensemble's checksums and recalibration, by which changes are noticed.

    ``run`` is the directory of a finished run or of an exported ensemble.
    """
    folder, digest = ensemble_folder(run), hashlib.blake2b(digest_size=16)
    for file in filter(Path.exists, (folder / CHECKSUMS, folder / CALIBRATION)):
        with open_regular(file) as opened:
            digest.update(opened.read())
    return digest.hexdigest()


def plan(folder: Path, asked: Asked, opened: Graphs | Files, gcds: int) -> dict[Path, Part]:
    """Divide a prediction into parts for workers, by the plan on disk if it fits, or a new one.

    A plan is the list of parts, kept in `plan.json`. It fits if ensemble, structures, options and
    version of this package are the same.

    Parameters
    ----------
    folder
        Directory that holds the plan and the parts of the prediction.
    asked
        Options of the prediction.
    opened
        Structures or graphs to predict.
    gcds
        Number of GCDs to spread a new plan over.

    Returns
    -------
    dict
        Parts by their directories. These are in a subdirectory that no other plan uses, since a
        worker that outlives its driver may still write a part of an earlier plan.

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
        "structures": _digest_of_data(opened),
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
        sizes = list(opened.sizes())
        parts = divide(sizes, per_part(sum(n or 1 for _, n in sizes), gcds))
        write_json(file, {"of": of, "parts": parts})
    digest = hashlib.blake2b(json.dumps([of, parts]).encode(), digest_size=8).hexdigest()
    (folder / digest).mkdir(exist_ok=True)
    return {folder / digest / f"{_PART}{n:06d}": part for n, part in enumerate(parts)}


def finished(folder: Path, plan: str = "") -> set[str]:
    """Return the names of the finished parts of a prediction, each of which is a directory.

    They are searched in ``folder``, or, if ``plan`` is not empty, in the subdirectories of
    ``folder`` that match the glob pattern ``plan``.
    """
    return {found.name for found in folder.glob(f"{plan}/{_PART}*" if plan else f"{_PART}*")}


def per_part(structures: int, gcds: int) -> int:
    """Return the number of structures for each part of a prediction, a multiple of `CHUNK`.

    Parameters
    ----------
    structures
        Number of structures in all parts together.
    gcds
        Number of GCDs that predict parts at the same time.
    """
    chunks = -(-structures // (CHUNK * _PARTS_PER_GCD * gcds))
    return CHUNK * min(max(chunks, 1), _MOST_CHUNKS)


def divide(sizes: Iterable[tuple[str, int | None]], most: int) -> list[Part]:
    """Divide the structures of files, or of a store's splits, into parts for workers, in order.

    A file with more than ``most`` structures is cut, and each piece of it is a part. Smaller files
    are collected until a part has ``most`` structures or more.

    Parameters
    ----------
    sizes
        Name of each file or split, and its number of structures; None if the number is unknown.
    most
        Number of structures at which a part is full.
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


def request_of(part: Part, directory: Path, asked: Asked, device: str) -> dict[str, Any]:
    """Return the request to predict one part, as plain values for another process.

    It is the argument of :func:`predict_part`. ``directory`` is where the part will be written, and
    ``device`` torch's name of the device.
    """
    about = {"what": part.what, "directory": str(directory), "pieces": part.pieces}
    return {**about, "device": device, "asked": asdict(asked)}


def predict_part(request: Mapping[str, Any]) -> None:
    """Predict the structures of a part and write them to its directory, unless it exists.

    The `graph_id` of structures from files begins at 0 in each part.

    Parameters
    ----------
    request
        Plain values that :func:`request_of` returned.

    Raises
    ------
    InputError
        If the structures cannot be read, or the ensemble has changed since it was planned.
    FileNotFoundError
        If this node does not see the run, the structures, or the directory of the parts.
    RuntimeError
        If this node cannot load the ensemble.
    """
    target, asked = Path(request["directory"]), msgspec.convert(request["asked"], Asked)
    data = Path(asked.data)
    for path in (target.parent, Path(asked.run), data):
        if not path.exists():
            raise FileNotFoundError(
                errno.ENOENT, f"{socket.gethostname()} does not see it, as nodes must", str(path)
            )
    if target.exists():
        return
    ensemble = _ensemble(asked, request["device"])
    # The command has tried a store in another process.
    in_store = (data / MANIFEST).is_file()
    there = GraphStore.open(data, "random") if in_store else data
    opened = open_structures(ensemble, there, asked.split, [Path(out) for out in asked.outs])
    pieces = [Piece(*piece) for piece in request["pieces"]]
    chunks = (
        lay_out(ensemble, some, asked.members, asked.structures)
        for some in predict_members(ensemble, opened, pieces=pieces)
    )
    store = opened.store if isinstance(opened, Graphs) else nullcontext()
    with store, whole_directory(target) as folder:
        with closing(watched(chunks)) as found:  # or its timer would go on
            counts = write_part(folder, found)
        passed_over = opened.passed_over if isinstance(opened, Files) else {}
        write_json(folder / RECORD, {**counts, "passed_over": passed_over})
        fsync_tree(folder)


def results_of(
    parts: Mapping[Path, Part], opened: Graphs | Files
) -> tuple[list[tuple[Path, int]], dict[str, int]]:
    """Collect finished parts and count their structures, as `PredictionFiles.join` needs them.

    Files that were skipped in the parts are added to ``opened.passed_over`` in place. Parts that
    begin in a file whose rest was skipped are left out.

    Parameters
    ----------
    parts
        Finished parts by their directories, in order.
    opened
        Structures or graphs that were predicted.

    Returns
    -------
    parts, counts
        Directory of each part, with the offset that turns the `graph_id` of its structures into one
        over all parts (0 for graphs of a store); and counts of structures in all parts, by name as
        in :class:`~hydragnn_flow.ensemble.predictions.files.Written`.
    """
    used: list[tuple[Path, int]] = []
    totals = dict.fromkeys(Written._fields[1:], 0)
    passed_over = opened.passed_over if isinstance(opened, Files) else {}
    for folder, part in parts.items():
        # What comes after a fault in a file is not read, though workers can enter behind it.
        if part.pieces[0].name in passed_over:
            continue
        used.append((folder, totals["structures"] if isinstance(opened, Files) else 0))
        record = read_json(folder / RECORD)
        passed_over |= record.pop("passed_over")
        totals = {name: n + record[name] for name, n in totals.items()}
    return used, totals


def watched(chunks: Iterable[Chunk]) -> Generator[Chunk, None, None]:
    """Yield chunks of predictions, and end this process if one takes longer than an hour.

    A GPU or a file system that hangs would otherwise hold up the whole prediction for ever. Another
    process then predicts the part.
    """
    try:
        faulthandler.dump_traceback_later(_PATIENCE, exit=True, file=2)
        for chunk in chunks:
            faulthandler.dump_traceback_later(_PATIENCE, exit=True, file=2)
            yield chunk
    finally:
        faulthandler.cancel_dump_traceback_later()


def _digest_of_data(opened: Graphs | Files) -> str:
    """Return a digest of the names, sizes and modification times of all files of the input."""
    digest = hashlib.blake2b(str(opened.path.resolve()).encode(), digest_size=16)
    for file in opened.files():
        about = file.stat() if file.exists() else None  # a broken link is no structure
        said = None if about is None else (about.st_size, about.st_mtime_ns)
        digest.update(f"{file.name!r} {said}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _ensemble(asked: Asked, device: str) -> Ensemble:
    if digest_of_ensemble(asked.run) != asked.ensemble:
        raise InputError(
            f"{asked.run}: the ensemble has changed meanwhile; give the same command again"
        )
    try:
        ensemble = Ensemble.load(asked.run, without=asked.without, data_set=asked.data_set)
        if ensemble.coverage != asked.coverage:
            ensemble = ensemble.at(asked.coverage)
        return ensemble.on_device(device)
    except InputError as error:
        # The driver has loaded it, so this node is at fault, and another may do it.
        raise RuntimeError(f"this node cannot load the ensemble: {error}") from error
