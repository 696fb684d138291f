"""Parts of predictions: each predicted into a directory of its own, then joined in order."""

from __future__ import annotations

import errno
import faulthandler
import socket
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydragnn_flow.config.network import read_json
from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.store.integrity import fsync_tree
from hydragnn_flow.data.store.manifest import MANIFEST
from hydragnn_flow.ensemble.ensemble import Ensemble
from hydragnn_flow.ensemble.frames import extended_xyz, numbered_frames
from hydragnn_flow.ensemble.part_plan import Part, digest_of_ensemble
from hydragnn_flow.ensemble.predicting import (
    Chunk,
    chunks_of_records,
    chunks_of_store,
    on_device,
)
from hydragnn_flow.ensemble.predictions_files import PredictionFiles, with_predictions
from hydragnn_flow.ensemble.predictions_table import GRAPH_ID, NODES
from hydragnn_flow.ensemble.spool import Spool, Spooled
from hydragnn_flow.ensemble.structure_files import Files, PassedOver, Piece, open_path
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import whole_directory, write_json

RECORD = "record.json"
_FRAMES = "frames.extxyz"
_COUNTS = ("structures", "without", "unlike")
# Time to the first predictions [s]: kernels are compiled, a store is opened. From then on, the
# longest time between two chunks [s], or number of the longest such times.
_SECONDS_TO_BEGIN = 3600.0
_SECONDS_BETWEEN_CHUNKS = 600.0
_CHUNKS_TO_WAIT = 20.0


def predict_part(request: Mapping[str, Any]) -> None:
    """Predict a part into its directory, unless that is there already.

    Structures are numbered from 0 in each part.

    Parameters
    ----------
    request
        As :func:`~hydragnn_flow.ensemble.part_plan.request_of` makes it.

    Raises
    ------
    InputError
        If the structures or the ensemble are at fault.
    FileNotFoundError
        If this node does not see one of the directories.
    """
    target = Path(request["directory"])
    for path in (target.parent, Path(request["run"]), Path(request["data"])):
        if not path.exists():
            raise FileNotFoundError(
                errno.ENOENT, f"{socket.gethostname()} does not see it, as nodes must", str(path)
            )
    if target.exists():
        return
    ensemble = _ensemble(
        request["run"],
        tuple(request["without"]),
        request["coverage"],
        request["data_set"],
        request["device"],
        request["ensemble"],
    )
    passed_over = PassedOver()
    with whole_directory(target) as folder:
        counts = dict.fromkeys(_COUNTS, 0)
        with ExitStack() as stack:
            tables: dict[str, Spool] = {}
            frames = None
            if request["frames"]:
                file = (folder / _FRAMES).open("w", encoding="utf-8", newline="\n")
                frames = stack.enter_context(file)
            chunks = watched(_chunks(request, ensemble, passed_over))
            for chunk in stack.enter_context(closing(chunks)):  # or its timer would go on
                for name, table in chunk.tables.by_name().items():
                    if name not in tables:
                        spool = Spool(_table(folder, name), table)
                        tables[name] = stack.enter_context(spool)
                    tables[name].add(table)
                if frames is not None:
                    frames.write(_unnumbered(chunk))
                for name, n in zip(
                    _COUNTS, (len(chunk.tables.graphs), chunk.without, chunk.unlike), strict=True
                ):
                    counts[name] += n
        write_json(folder / RECORD, {**counts, "passed_over": asdict(passed_over)})
        fsync_tree(folder)


def join_parts(
    parts: Mapping[Path, Part], files: PredictionFiles, renumber: bool
) -> tuple[dict[str, int], PassedOver]:
    """Add the predictions of all parts to files, in order.

    Parameters
    ----------
    parts
        Directories of the predicted parts, in order.
    files
        Take the predictions.
    renumber
        Whether structures are numbered through; those of a store have its numbers.

    Returns
    -------
    dict
        Number of `structures`, of those `without` a prediction, and of those `unlike` the training
        data.
    PassedOver
        Files that hold no structures.
    """
    totals, passed_over = dict.fromkeys(_COUNTS, 0), PassedOver()
    for folder, part in parts.items():
        # What comes after a fault in a file is not read, though workers can enter behind it.
        if part.pieces[0].name in passed_over.unreadable:
            continue
        record, first = read_json(folder / RECORD), totals["structures"] if renumber else 0
        for name in ("", NODES):
            if _table(folder, name).exists():
                files.add_spooled(name, Spooled(_table(folder, name), first))
        if files.hold_structures:
            for text in numbered_frames(folder / _FRAMES, GRAPH_ID, first):
                files.add_frames(text)
        for name in _COUNTS:
            totals[name] += record[name]
        found = PassedOver(**record["passed_over"])
        passed_over.strange += found.strange
        passed_over.written += found.written
        passed_over.unreadable |= found.unreadable
    return totals, passed_over


def _chunks(
    request: Mapping[str, Any], ensemble: Ensemble, passed_over: PassedOver
) -> Iterator[Chunk]:
    pieces: Sequence[Piece] = [Piece(*piece) for piece in request["pieces"]]
    outs = [Path(out) for out in request["outs"]]
    split, members = request["split"], request["members"]
    path = Path(request["data"])
    if (path / MANIFEST).is_file():  # the command has tried it in another process
        data: GraphStore | Files = GraphStore.open(path, "random")
    else:
        data = open_path(path, ensemble.manifest, split, outs)
    if isinstance(data, GraphStore):
        with data:
            yield from chunks_of_store(ensemble, data, split, pieces, members)
        return
    records = (record for piece in pieces for record in data.read(piece, passed_over))
    yield from chunks_of_records(ensemble, records, members)


def watched(chunks: Iterable[Chunk]) -> Generator[Chunk, None, None]:
    """The chunks; if one does not come, this process ends, and its part is predicted elsewhere.

    A GPU or a file system that hangs would otherwise hold up the whole prediction for ever.
    """
    longest, begun = 0.0, time.monotonic()
    faulthandler.dump_traceback_later(_SECONDS_TO_BEGIN, exit=True, file=2)
    try:
        for chunk in chunks:
            longest = max(longest, time.monotonic() - begun)
            patience = max(_SECONDS_BETWEEN_CHUNKS, _CHUNKS_TO_WAIT * longest)
            faulthandler.dump_traceback_later(patience, exit=True, file=2)
            yield chunk
            begun = time.monotonic()
    finally:
        faulthandler.cancel_dump_traceback_later()


@lru_cache(maxsize=1)
def _ensemble(
    run: str,
    without: tuple[int, ...],
    coverage: float | None,
    data_set: str | None,
    device: str,
    digest: str,
) -> Ensemble:
    if digest_of_ensemble(run) != digest:
        raise InputError(f"{run}: the ensemble has changed meanwhile; give the same command again")
    try:
        ensemble = Ensemble.load(run, without=without, data_set=data_set)
        return on_device(ensemble if coverage is None else ensemble.at(coverage), device)
    except InputError as error:
        # The driver has loaded it, so this node is at fault, and another may do it.
        raise RuntimeError(f"this node cannot load the ensemble: {error}") from error


def _unnumbered(chunk: Chunk) -> str:
    """A chunk's structures with their predictions, without their numbers."""
    assert chunk.structures is not None
    structures = with_predictions(chunk.structures, chunk.tables)
    for atoms in structures:
        del atoms.info[GRAPH_ID]
    return extended_xyz(structures)


def _table(folder: Path, name: str) -> Path:
    return folder / f"table{name}.parquet"
