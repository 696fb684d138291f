"""Tasks of a store's preparation: read some structures, or write some shards.

Tasks of a preparation in place are in ``in_place_tasks``.

A task's result is a directory, built under its own temporary name and renamed when it is complete.
A task may therefore run twice, even at the same time, and a killed one leaves nothing that could be
mistaken for a result. Requests are JSON; the record of a result is pickled, as only the driver of
the same preparation reads it.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch_geometric.data import Data

from hydragnn_flow.config.data import DataConfig
from hydragnn_flow.data.laplacian import add_encodings
from hydragnn_flow.data.preparing.in_place_tasks import look, measure, refuse_cut_lists
from hydragnn_flow.data.reading.disk import DiskReader
from hydragnn_flow.data.reading.index import SplitIndex
from hydragnn_flow.data.reading.shard_file import ShardFile
from hydragnn_flow.data.sources import Chunk, ReadyGraph, open_source
from hydragnn_flow.data.splits import SPLIT_OF_ROLE
from hydragnn_flow.data.splits.duplicates import compositions, graph_hashes
from hydragnn_flow.data.store.commit import cannot_write
from hydragnn_flow.data.store.describe import Content, Description, join_contents
from hydragnn_flow.data.store.integrity import fsync_tree
from hydragnn_flow.data.truncation import Truncation
from hydragnn_flow.data.writer import BLOCK_BYTES, ShardSeries
from hydragnn_flow.errors import InputError, StoreError

Progress = Callable[[str, int, int], None]
"""Callback with the kind of work, the number done, and the total number."""

Workers = Callable[[Mapping[int, Mapping[str, Any]]], Iterator[int]]
"""Function that runs numbered tasks with `run_task` in workers, yielding each as it ends."""

RECORD = "record.pickle"
ATOM_UNITS = {"pos": "Å", "cell": "Å", "edge_shifts": "Å", "edge_attr": "Å"}
SPLITS = tuple(SPLIT_OF_ROLE.values())
_ALL = "structures"
"""Name of the only split in shards whose graphs have not been divided yet."""


@dataclass(frozen=True)
class Preparation:
    """Preparation under way: where, with what and by whom its tasks are run."""

    directory: Path
    """Directory of the results, from which a later call continues."""
    settings: Mapping[str, Any]
    """Settings common to all tasks, in JSON."""
    show: Progress
    workers: Workers | None
    """Function that runs the tasks; None for this process."""

    def run(
        self, what: str, kind: str, stem: str, requests: Sequence[Mapping[str, Any]]
    ) -> list[Any]:
        """Run the tasks of a kind that are not finished yet, and return the records of all.

        Parameters
        ----------
        what
            Kind of work, for ``show``.
        kind
            Key of the function that does it.
        stem
            Name of the tasks' directories, to which their numbers are added.
        requests
            Request of each task beside the settings: its name ``what``, its ``size`` for ``show``,
            and what the function needs.
        """
        directories = [self.directory / f"{stem}-{n:05d}" for n in range(len(requests))]
        # Listed at once: asked for single records, NFS would remember for half a minute which do
        # not exist.
        there = {entry.name for entry in self.directory.iterdir()}
        unfinished = {
            n: {**self.settings, **request, "task": kind, "directory": str(directories[n])}
            for n, request in enumerate(requests)
            if directories[n].name not in there
        }
        total = sum(request["size"] for request in requests)
        finished = total - sum(request["size"] for request in unfinished.values())
        self.show(what, finished, total)
        for number in (self.workers or _here)(unfinished):
            finished += requests[number]["size"]
            self.show(what, finished, total)
        return [_load_record(directory) for directory in directories]


def _here(requests: Mapping[int, Mapping[str, Any]]) -> Iterator[int]:
    for number, request in requests.items():
        run_task(request)
        yield number


def run_task(request: Mapping[str, Any]) -> None:
    """Run a task, unless its result exists.

    Parameters
    ----------
    request
        Request of :meth:`Preparation.run`.

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
        record = _WORK[request["task"]](request, building)
        (building / RECORD).write_bytes(pickle.dumps(record))
        fsync_tree(building)
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


def _load_record(directory: Path) -> Any:
    return pickle.loads((directory / RECORD).read_bytes())


def _read(request: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Read structures and build their graphs, with all that decides their splits."""
    config = DataConfig(**request["config"])
    source = open_source(config, request["seed"])
    roles: list[str] = []
    groups: list[str | None] = []
    data_sets: list[int] = []
    own_edges = False
    encoded: bool | None = None
    truncation = Truncation()
    within = request["cutoff"], request["max_neighbours"]
    described = Description(targets={})
    with ShardSeries(
        directory, _names("graphs"), [_ALL], name=_ALL, dtypes="hydragnn", described=described
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
    refuse_cut_lists(request, truncation, own_edges)
    hashes: list[str] = []
    formulas: list[str] = []
    index = _index([directory], [content])
    with closing(DiskReader(index)) as disk:
        for columns in disk.blocks():
            hashes += graph_hashes(columns)
            if any(one.split and one.split.by == "composition" for one in config.data_sets):
                formulas += compositions(columns)
    return {
        "content": content,
        "role": roles,
        "group": groups,
        "data_set": data_sets,
        "what": request["what"],
        "units": ATOM_UNITS if "atomic_number" in source.node_features else {},
        "targets": dict(source.found_targets),
        "node_features": list(source.node_features),
        "hash": hashes,
        "composition": formulas or [""] * len(hashes),
        "own_edges": own_edges,
        "encoded": bool(encoded),
        "truncation": truncation,
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
    """Write the graphs of finished reading tasks to shards of the store."""
    units = [Path(unit) for unit in request["units"]]
    records = [_load_record(unit) for unit in units]
    index = _index(units, [record["content"] for record in records])
    split = np.concatenate([np.array(load_split(unit)) for unit in units])
    sizes = index.graph_bytes(np.arange(len(index)))
    series = ShardSeries(
        directory,
        _names(Path(request["directory"]).name),
        request["splits"],
        name=request["name"],
        dtypes=DataConfig(**request["config"]).dtypes,
        described=Description(
            targets=records[0]["targets"], node_features=records[0]["node_features"]
        ),
    )
    with closing(DiskReader(index)) as disk, series:
        for name in request["splits"]:
            chosen = np.flatnonzero(split == name)
            filled = np.cumsum(sizes[chosen]) // BLOCK_BYTES
            for graphs in np.split(chosen, np.flatnonzero(np.diff(filled)) + 1):
                if len(graphs):
                    series.append(name, disk.columns(graphs))
        return {"content": series.close()}


_WORK: dict[str, Callable[[Mapping[str, Any], Path], Any]] = {
    "read": _read,
    "write": _write,
    "look": look,
    "measure": measure,
}
"""Function of each kind of task, which works in its directory and returns its record."""


def load_split(unit: Path) -> list[str]:
    """Read the split of each structure of a reading task; empty for those left out."""
    names: list[str] = json.loads(split_file(unit).read_text(encoding="utf-8"))
    return names


def split_file(unit: Path) -> Path:
    """Return the file with the splits of a reading task's structures."""
    return unit.with_name(f"{unit.name}.split.json")


def _index(directories: Sequence[Path], contents: Sequence[Content]) -> SplitIndex:
    shards, graphs = [], []
    for directory, content in zip(directories, contents, strict=True):
        for shard in content.shards:
            shards.append(ShardFile(directory / shard.path, shard))
            graphs.append(shard.splits[_ALL].graphs)
    return SplitIndex(_ALL, join_contents(contents).keys, shards, graphs)


def _names(stem: str) -> Iterator[str]:
    """Yield names of the shards of one writer."""
    yield f"{stem}.bp"
    for number in itertools.count(1):
        yield f"{stem}.{number}.bp"
