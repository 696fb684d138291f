"""Tasks of a store's preparation: read some structures, or write some shards.

Tasks of a preparation in place are in ``in_place_tasks``.

A task's result is a directory, built under its own temporary name and renamed when it is complete.
A task may therefore run twice, even at the same time, and a killed one leaves nothing that could be
mistaken for a result. Requests and results are JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch_geometric.data import Data

from hydragnn_flow.config.data import DataConfig
from hydragnn_flow.data.columns import Column
from hydragnn_flow.data.laplacian import add_encodings
from hydragnn_flow.data.preparing.in_place_tasks import look, measure
from hydragnn_flow.data.reading.disk import DiskReader
from hydragnn_flow.data.reading.index import SplitIndex
from hydragnn_flow.data.reading.shard_file import ShardFile
from hydragnn_flow.data.sources import Chunk, ReadyGraph, open_source
from hydragnn_flow.data.splits import SPLIT_OF_ROLE
from hydragnn_flow.data.splits.duplicates import compositions, graph_hashes
from hydragnn_flow.data.store.commit import cannot_write
from hydragnn_flow.data.store.describe import Content, Description, join_contents
from hydragnn_flow.data.store.integrity import fsync_path
from hydragnn_flow.data.store.manifest import Key, Shard, Target
from hydragnn_flow.data.store.statistics import Accumulator
from hydragnn_flow.data.truncation import Truncation
from hydragnn_flow.data.writer import BLOCK_BYTES, ShardSeries
from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.files import write_json

RECORD = "record.json"
ATOM_UNITS = {"pos": "Å", "cell": "Å", "edge_shifts": "Å", "edge_attr": "Å"}
SPLITS = tuple(SPLIT_OF_ROLE.values())
_ALL = "structures"
"""Name of the only split in shards whose graphs have not been divided yet."""


def run_task(request: Mapping[str, Any]) -> None:
    """Run a task, unless its result exists.

    Parameters
    ----------
    request
        Request made by :func:`read_request` or :func:`write_request`, or for a store in place.

    Raises
    ------
    InputError
        If the input is wrong.
    StoreError
        If the result cannot be written, or is no longer needed and its directory is gone.
    """
    target = Path(request["directory"])
    if (target / RECORD).exists():
        return
    building = target.with_name(f".{target.name}.{socket.gethostname()}-{os.getpid()}")
    shutil.rmtree(building, ignore_errors=True)
    try:
        building.mkdir()
        write_json(building / RECORD, _WORK[request["task"]](request, building))
        fsync_path(building)
        building.rename(target)
    except OSError as error:
        if not target.parent.is_dir():  # a new driver wants other data, or has finished
            raise StoreError(
                f"{target.parent} was deleted while the store was being prepared; "
                "give the same command again"
            ) from error
        if not (target / RECORD).exists():  # otherwise someone else was faster
            raise cannot_write(target, error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


_Work = Callable[[Mapping[str, Any], Path], dict[str, Any]]


def read_request(
    settings: Mapping[str, Any], directory: Path, chunks: Sequence[Chunk]
) -> dict[str, Any]:
    """Return the task to read structures and build graphs; ``settings`` are the preparation's."""
    first, last = chunks[0], chunks[-1]
    what = (
        f"structures {first.start} of {first.file or 'those generated'} to "
        f"{last.stop - 1} of {last.file or 'those generated'}"
    )
    return {
        **settings,
        "task": "read",
        "what": what,
        "directory": str(directory),
        "chunks": [vars(chunk) for chunk in chunks],
    }


def write_request(
    settings: Mapping[str, Any], directory: Path, units: Sequence[Path], splits: Sequence[str]
) -> dict[str, Any]:
    """Return the task to write graphs of finished reading tasks to shards of the store.

    ``splits`` are the splits of the store.
    """
    return {
        **settings,
        "task": "write",
        "what": directory.name,
        "directory": str(directory),
        "units": [str(unit) for unit in units],
        "splits": list(splits),
    }


def finished_tasks(tasks: Path) -> set[str]:
    """Return the directory names of finished tasks.

    They are listed at once: if asked for single records, NFS would remember for half a minute which
    do not exist.
    """
    return {entry.name for entry in tasks.iterdir() if not entry.name.startswith(".")}


def load_record(directory: Path) -> dict[str, Any]:
    """Read the record of a finished task."""
    record: dict[str, Any] = json.loads((directory / RECORD).read_text(encoding="utf-8"))
    return record


def content_of(record: Mapping[str, Any]) -> Content:
    """Return the shards that a finished task wrote."""
    return Content(
        [Shard(**shard) for shard in record["shards"]],
        {key: Key(**described) for key, described in record["keys"].items()},
        Accumulator.from_dict(record["statistics"]),
    )


def targets_of(record: Mapping[str, Any]) -> dict[str, Target]:
    """Return the targets that a reading task found."""
    return {name: Target(**found) for name, found in record["targets"].items()}


def _read(request: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    config = DataConfig(**request["config"])
    source = open_source(config, request["seed"])
    roles: list[str] = []
    groups: list[str | None] = []
    data_sets: list[int] = []
    own_edges = False
    encoded: bool | None = None
    truncation = Truncation()
    within = request["cutoff"], request["max_neighbours"]
    with ShardSeries(
        directory,
        _names("graphs"),
        [_ALL],
        name="structures",
        dtypes="hydragnn",
        described=Description(targets={}),
    ) as series:
        for chunk in request["chunks"]:
            for record in source.read(Chunk(**chunk)):
                graph = record.graph(*within)
                if isinstance(record, ReadyGraph) and not own_edges:
                    own_edges = record.has_own_edges(*within)
                truncation += record.truncation(graph, *within)
                if k := request["encodings"]:
                    encoded = _encoded(graph, k, encoded, record.origin)
                series.add(_ALL, graph, record.origin)
                roles.append(chunk["role"])
                groups.append(record.group)
                data_sets.append(chunk["data_set"])
        content = series.close()
    # Raised after some hundred structures, not when all have been read.
    if request["whole_lists"] and truncation.atoms:
        kept = None if own_edges else within[1]
        raise InputError(truncation.refusal(within[0], kept, so_far=True))
    hashes: list[str] = []
    formulas: list[str] = []
    for columns in _blocks(_index([directory], [content])):
        hashes += graph_hashes(columns)
        if any(one.split and one.split.by == "composition" for one in config.data_sets):
            formulas += compositions(columns)
    return {
        **_content(content),
        "what": request["what"],
        "units": ATOM_UNITS if "atomic_number" in source.node_features else {},
        "role": roles,
        "targets": {name: target.model_dump() for name, target in source.found_targets.items()},
        "node_features": list(source.node_features),
        "hash": hashes,
        "composition": formulas or [""] * len(hashes),
        "group": groups,
        "data_set": data_sets,
        "own_edges": own_edges,
        "encoded": bool(encoded),
        "truncation": asdict(truncation),
    }


def _encoded(graph: Data, k: int, before: bool | None, origin: str) -> bool:
    """Add encodings to a graph; return True if computed, which must hold for all graphs or none."""
    computed = add_encodings(graph, k)
    if before is not None and computed != before:
        has = "no key 'pe', but" if computed else "a key 'pe', and not all"
        raise InputError(
            f"{origin} has {has} graphs before it have it; give it to all, or to none to have it "
            f"computed"
        )
    return computed


def _write(request: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    units = [Path(unit) for unit in request["units"]]
    records = [load_record(unit) for unit in units]
    index = _index(units, [content_of(record) for record in records])
    split = np.concatenate([np.array(load_split(unit)) for unit in units])
    disk = DiskReader(index)
    sizes = index.graph_bytes(np.arange(len(index)))
    described = Description(
        targets=targets_of(records[0]), node_features=records[0]["node_features"]
    )
    series = ShardSeries(
        directory,
        _names(Path(request["directory"]).name),
        request["splits"],
        name=request["name"],
        dtypes=DataConfig(**request["config"]).dtypes,
        described=described,
    )
    with closing(disk), series:
        for name in request["splits"]:
            chosen = np.flatnonzero(split == name)
            filled = np.cumsum(sizes[chosen]) // BLOCK_BYTES
            for graphs in np.split(chosen, np.flatnonzero(np.diff(filled)) + 1):
                if len(graphs):
                    series.append(name, disk.columns(graphs))
        content = series.close()
    return _content(content)


_WORK: dict[str, _Work] = {"read": _read, "write": _write, "look": look, "measure": measure}
"""Function of each kind of task, which works in its directory and returns its record."""


def load_split(unit: Path) -> list[str]:
    """Read the split of each structure of a reading task; empty for those left out."""
    names: list[str] = json.loads(split_file(unit).read_text(encoding="utf-8"))
    return names


def split_file(unit: Path) -> Path:
    """Return the file with the splits of a reading task's structures."""
    return unit.with_name(f"{unit.name}.split.json")


def _content(content: Content) -> dict[str, Any]:
    return {
        "shards": [shard.model_dump() for shard in content.shards],
        "keys": {key: described.model_dump() for key, described in content.keys.items()},
        "statistics": content.statistics.to_dict(),
    }


def _index(directories: Sequence[Path], contents: Sequence[Content]) -> SplitIndex:
    shards, graphs = [], []
    for directory, content in zip(directories, contents, strict=True):
        for shard in content.shards:
            shards.append(ShardFile(directory / shard.path, shard))
            graphs.append(shard.splits[_ALL].graphs)
    return SplitIndex(_ALL, join_contents(contents).keys, shards, graphs)


def _blocks(index: SplitIndex) -> Iterator[dict[str, Column]]:
    disk = DiskReader(index)
    for first, last in itertools.pairwise(index.block_bounds.tolist()):
        yield disk.columns(np.arange(first, last))
    disk.close()


def _names(stem: str) -> Iterator[str]:
    yield f"{stem}.bp"
    for number in itertools.count(1):
        yield f"{stem}.{number}.bp"
