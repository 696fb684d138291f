"""Tasks of a preparation: read structures, write shards, or check files that stay in place.

A task's result is a directory, built under its own temporary name and renamed when it is complete.
A task may therefore run twice, even at the same time, and a killed task leaves nothing that could
be mistaken for a result. Requests are JSON; the record of a result is pickled, as only the driver
of the same preparation reads it.

Files that stay in place get the same checks as copied ones, while their statistics are computed.
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
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Data

from hydragnn_flow.config.data import DataConfig
from hydragnn_flow.config.sources import SPLIT_OF_ROLE, TEST, WEIGHT
from hydragnn_flow.data.columns import Column, pack
from hydragnn_flow.data.divide import compositions, graph_hashes
from hydragnn_flow.data.graphs import (
    add_encodings,
    check_lengths,
    has_own_edges,
    truncation_of,
)
from hydragnn_flow.data.neighbours import Truncation, are_resolved
from hydragnn_flow.data.preparing.suspicious import TASK_ORIGINS, joined, survey
from hydragnn_flow.data.reading.disk import DiskReader
from hydragnn_flow.data.reading.graph_store import GraphStore
from hydragnn_flow.data.reading.index import SplitIndex
from hydragnn_flow.data.reading.shard_file import ShardFile
from hydragnn_flow.data.sources.arrays import ATOMIC_NUMBER
from hydragnn_flow.data.sources.base import Chunk, Record, Source
from hydragnn_flow.data.sources.hydragnn import HydragnnSource
from hydragnn_flow.data.sources.labels import check_size
from hydragnn_flow.data.sources.opening import open_source
from hydragnn_flow.data.sources.pyg_graphs import box
from hydragnn_flow.data.sources.structures import Unreadable
from hydragnn_flow.data.store.describe import Content, Description, join_contents
from hydragnn_flow.data.store.integrity import cannot_write, fsync_tree
from hydragnn_flow.data.store.manifest import Manifest, Target
from hydragnn_flow.data.store.origins import Origin, save_origins
from hydragnn_flow.data.store.statistics import Accumulator
from hydragnn_flow.data.writer import BLOCK_BYTES, ShardSeries
from hydragnn_flow.errors import InputError, StoreError

PARTS = "parts.json"
"""File of the data in place of each data set, as their manifests describe them."""


def refuse_cut_lists(request: Mapping[str, Any], truncation: Truncation, own_edges: bool) -> None:
    """Raise InputError if neighbour lists are truncated and the task's request forbids it.

    Tasks that read graphs call this, so that the error comes long before all structures have been
    read. ``own_edges`` is True if the data bring their own edges, so that no setting truncated the
    lists.
    """
    if request["whole_lists"] and truncation.atoms:
        kept = None if own_edges else request["max_neighbours"]
        raise InputError(truncation.refusal(request["cutoff"], kept, so_far=True))


@lru_cache(maxsize=2)
def _part(tasks: Path, number: int) -> GraphStore:
    """Return the store of the data set with the index ``number``, which is used in place.

    Later tasks of this process get the same object, as its index may take a minute.
    """
    values = json.loads((tasks / PARTS).read_text(encoding="utf-8"))[number]
    return GraphStore(tasks / str(number), Manifest(**values), "random")


def look(request: Mapping[str, Any], directory: Path) -> Manifest:
    """Run the task ``look``: open a file that is used in place, and return its manifest.

    A file used in place is read without a copy in the store. A HydraGNN file is read completely, as
    it has no checksums. ``directory`` is not used: the task writes nothing.
    """
    config = DataConfig(**request["config"])
    number = request["data_set"]
    source = cast(HydragnnSource, config.data_sets[number].source)
    reader = source.open(config.folder, request["seed"])
    return reader.in_place(None if config.sources is None else number)


def measure(request: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Run the task ``measure``: check graphs that are used in place, and compute statistics.

    Graphs used in place are read from their own file, without a copy in the store. They are those
    of the request's ``chunk``, a range within one file; labels of its ``doubtful``, indices by
    target, do not count. ``directory`` lies in the directory of the preparation.
    """
    chunk, within = Chunk(**request["chunk"]), (request["cutoff"], request["max_neighbours"])
    store, split = _part(directory.parent, chunk.data_set), SPLIT_OF_ROLE[chunk.role]
    manifest = store.manifest
    statistics = Accumulator(manifest.targets, manifest.node_features)
    own_edges, truncation = False, Truncation()
    doubtful = np.zeros(chunk.stop - chunk.start, dtype=np.bool_)
    for some in request["doubtful"].values():
        doubtful[some] = True
    surveys = []
    origins: list[Origin] = []
    with closing(store):  # closes its files, but keeps the index of their rows
        for first in range(chunk.start, chunk.stop, 64):
            last = min(first + 64, chunk.stop)
            graphs = list(store[split].between(first, last))
            where = [f"{chunk.file}: {split}: graph {i}" for i in range(first, last)]
            columns = pack(graphs, where, manifest.keys, manifest.targets)
            statistics.update(columns, split, doubtful[first - chunk.start : last - chunk.start])
            surveys.append(survey(columns, manifest.targets, manifest.has_atoms))
            origins += map(Origin, where, itertools.repeat(chunk.file), range(first, last))
            for graph, origin in zip(graphs, where, strict=True):
                _check(graph, manifest, origin, within[0])
                own_edges = own_edges or has_own_edges(graph, *within)
                truncation += truncation_of(graph, within[0])
            refuse_cut_lists(request, truncation, own_edges)
    save_origins(directory / TASK_ORIGINS, origins)
    return {
        "statistics": statistics,
        "survey": joined(surveys),
        "own_edges": own_edges,
        "truncation": truncation,
        "encoded": False,
        **_described(manifest.targets, manifest.node_features),
    }


def _described(targets: Mapping[str, Target], node_features: Sequence[str]) -> dict[str, Any]:
    units = ATOM_UNITS if "atomic_number" in node_features else {}
    return {"targets": dict(targets), "node_features": list(node_features), "units": units}


def _check(graph: Data, manifest: Manifest, origin: str, cutoff: float) -> None:
    """Check labels and geometry of a graph in place as those of a copy are checked."""
    arrays = {key: graph[key].numpy() for key in ("cell", "pbc")}
    cell, _ = box(arrays, origin)
    if not np.array_equal(cell, arrays["cell"]):
        raise InputError(
            f"{origin} has a cell along directions that are not periodic, which would count in "
            f"its volume; leave in_place out to have it copied without"
        )
    if not are_resolved(graph.pos.numpy(), cutoff):
        raise InputError(
            f"{origin} is so far from the origin that single precision does not resolve its "
            f"edges; leave in_place out to have it copied to the origin"
        )
    if WEIGHT in manifest.keys and not graph[WEIGHT].all():
        raise InputError(f"{origin} has the weight 0; leave in_place out to have it left out")
    for name in manifest.targets:
        check_size(name, graph[name].numpy(), origin)
    check_lengths(graph, cutoff, origin)


Progress = Callable[[str, int, int], None]
"""Callback with the kind of work, the number done, and the total number."""

Workers = Callable[[Mapping[int, Mapping[str, Any]]], Iterator[int]]
"""Function that runs numbered tasks with `run_task` in workers, and yields each number at the end
of its task."""

RECORD = "record.pickle"
ATOM_UNITS = {"pos": "Å", "cell": "Å", "edge_shifts": "Å", "edge_attr": "Å"}
SPLITS = tuple(SPLIT_OF_ROLE.values())
_ALL = "structures"
"""Name of the only split in shards whose graphs have not been divided yet."""


@dataclass(frozen=True)
class Preparation:
    """Runner of the tasks that prepare a store; it skips tasks that an earlier call finished."""

    directory: Path
    """Directory of the results, from which a later call continues."""
    settings: Mapping[str, Any]
    """Settings common to all tasks, in JSON."""
    show: Progress
    workers: Workers | None
    """Function that runs the tasks in workers; None to run them in this process."""

    def directories(self, stem: str, number: int) -> list[Path]:
        """Return the directories of the results of ``number`` tasks, whose names begin alike."""
        return [self.directory / f"{stem}-{n:05d}" for n in range(number)]

    def run(
        self, what: str, kind: str, stem: str, requests: Sequence[Mapping[str, Any]]
    ) -> list[Any]:
        """Run those tasks of one kind that are not finished, and return the results of all.

        The results are in the order of the tasks. Each is a record, the object that the task
        returned.

        Parameters
        ----------
        what
            Kind of work in words, for ``show``.
        kind
            Kind of the tasks: ``read``, ``write``, ``look`` or ``measure``.
        stem
            Beginning of the names of the tasks' directories, which their numbers follow.
        requests
            Request of each task, to which the settings are added: its name ``what``, its ``size``
            for ``show``, and all that the function of ``kind`` needs.
        """
        directories = self.directories(stem, len(requests))
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
    """Run one task of a store's preparation in this process, unless its result is on disk.

    Parameters
    ----------
    request
        Settings and request of the task as :meth:`Preparation.run` joins them, with its kind under
        ``task`` and the directory of its result under ``directory``.

    Raises
    ------
    InputError
        If the input is wrong.
    StoreError
        If the result cannot be written, or the directory of the preparation was deleted.
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
    """Run the task ``read``: write structures as graphs, and return what decides their splits.

    The shards with the graphs are written to ``directory``.
    """
    config = DataConfig(**request["config"])
    source = open_source(config, request["seed"])
    roles: list[str] = []
    groups: list[str | None] = []
    data_sets: list[int] = []
    own_edges = False
    origins: list[Origin] = []
    encoded: bool | None = None
    truncation = Truncation()
    within = request["cutoff"], request["max_neighbours"]
    targets = {name: Target(**values) for name, values in request["targets"].items()}
    incomplete: list[str] = []
    faults: list[str] = []
    with ShardSeries(
        directory,
        _names("graphs"),
        [_ALL],
        name=_ALL,
        dtypes="hydragnn",
        described=Description(targets={}),
        labels=targets,
    ) as series:
        for chunk in (Chunk(**chunk) for chunk in request["chunks"]):
            for record in _readable(source, chunk, faults):
                if faults:
                    continue  # no graph will be kept
                if record.lacking:
                    if config.missing != "mask":
                        incomplete.append(record.lacking)
                        continue
                    record = record.masked(targets)
                graph = record.graph(*within)
                own_edges = own_edges or record.has_own_edges(graph, *within)
                truncation += record.truncation(graph, *within)
                if k := request["encodings"]:
                    encoded = _encoded(graph, k, encoded, record.origin)
                series.add(_ALL, graph, record.origin)
                roles.append(chunk.role)
                groups.append(record.group)
                counted = record.index - chunk.first
                frame = counted if record.frame is None else record.frame
                origins.append(Origin(record.origin, record.file or chunk.file, frame, record.id))
                data_sets.append(chunk.data_set)
        unlabelled: list[str] = [*getattr(source, "unlabelled", ()), *incomplete]
        if not roles or faults:
            said = {"unlabelled": unlabelled, "unreadable": faults}
            return {"what": request["what"], "hash": [], **said}
        content = series.close()
    refuse_cut_lists(request, truncation, own_edges)
    save_origins(directory / TASK_ORIGINS, origins)
    hashes: list[str] = []
    formulas: list[str] = []
    surveys = []
    found = _described({**targets, **source.found_targets}, source.node_features)
    of_atoms = source.node_features[0] == ATOMIC_NUMBER
    index = _index([directory], [content])
    with closing(DiskReader(index)) as disk:
        for columns in disk.blocks():
            of_block = graph_hashes(columns)
            hashes += of_block
            surveys.append(survey(columns, found["targets"], of_atoms, of_block))
            if any(one.split and one.split.by == "composition" for one in config.data_sets):
                formulas += compositions(columns)
    return {
        "content": content,
        "role": roles,
        "group": groups,
        "data_set": data_sets,
        "what": request["what"],
        **found,
        "hash": hashes,
        "survey": joined(surveys),
        "unlabelled": unlabelled,
        "composition": formulas or [""] * len(hashes),
        "own_edges": own_edges,
        "encoded": bool(encoded),
        "truncation": truncation,
    }


def _readable(source: Source, chunk: Chunk, faults: list[str]) -> Iterator[Record]:
    """Yield the structures of a chunk that can be read; add sentences on others to ``faults``."""
    try:
        yield from source.read(chunk)
    except Unreadable as error:
        faults += error.args


def _encoded(graph: Data, k: int, before: bool | None, origin: str) -> bool:
    """Add ``k`` encodings to a graph in place, and return True if they were computed.

    ``before`` is the result for earlier graphs, None for the first. InputError is raised if the
    results differ.
    """
    computed = add_encodings(graph, k)
    if before is not None and computed != before:
        has = "no key 'pe', but" if computed else "a key 'pe', and not all"
        raise InputError(
            f"{origin} has {has} graphs before it have it; give it to all, or to none to have it "
            f"computed"
        )
    return computed


def _write(request: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Run the task ``write``: copy graphs of finished reading tasks to shards of the store.

    Labels of the request's ``doubtful``, indices within each unit by target, do not count in the
    statistics. If labels may be masked, they become NaN, except in the test split.
    """
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
    targets: dict[str, Target] = records[0]["targets"]
    doubtful = {name: np.zeros(len(index), dtype=np.bool_) for name in targets}
    first = np.cumsum([0, *(len(record["hash"]) for record in records)])
    for start, by_target in zip(first, request["doubtful"], strict=False):
        for name, some in by_target.items():
            doubtful[name][start + np.array(some)] = True
    masks = DataConfig(**request["config"]).missing == "mask"
    distrusted = np.any([*doubtful.values()], axis=0) & (not masks)
    statistics = Accumulator(targets, records[0]["node_features"])
    with closing(DiskReader(index)) as disk, series:
        for name in request["splits"]:
            chosen = np.flatnonzero(split == name)
            filled = np.cumsum(sizes[chosen]) // BLOCK_BYTES
            for graphs in np.split(chosen, np.flatnonzero(np.diff(filled)) + 1):
                if len(graphs):
                    columns = dict(disk.columns(graphs))
                    for target, wrong in doubtful.items() if masks and name != TEST else ():
                        if wrong[graphs].any():
                            columns |= _without(columns, target, [*targets], wrong[graphs])
                    series.append(name, columns)
                    if distrusted.any():
                        statistics.update(columns, name, distrusted[graphs])
        content = series.close()
    return {"content": replace(content, statistics=statistics) if distrusted.any() else content}


def _without(
    columns: Mapping[str, Column], target: str, packed: Sequence[str], wrong: NDArray[np.bool_]
) -> dict[str, Column]:
    """Return the columns of a target and of ``y`` with NaN for the labels of ``wrong`` graphs.

    ``packed`` has the names of all targets, in their order in ``y``.
    """
    column, y = columns[target], columns["y"]
    values, all_values = column.values.copy(), y.values.copy()
    values[np.repeat(wrong, column.counts)] = np.nan
    bounds = columns["y_loc"].values[:, packed.index(target) :][:, :2] + y.starts()[:, None]
    for begin, end in bounds[wrong].tolist():
        all_values[begin:end] = np.nan
    return {target: replace(column, values=values), "y": replace(y, values=all_values)}


_WORK: dict[str, Callable[[Mapping[str, Any], Path], Any]] = {
    "read": _read,
    "write": _write,
    "look": look,
    "measure": measure,
}
"""Function by kind of task: it takes the request and a directory for files, and returns the record.
"""


def load_split(unit: Path) -> list[str]:
    """Return the name of the split of each structure that one reading task has read.

    A reading task converts some structures of the input to graphs. The name is an empty string for
    a structure that is left out. ``unit`` is the directory of the task.
    """
    names: list[str] = json.loads(split_file(unit).read_text(encoding="utf-8"))
    return names


def split_file(unit: Path) -> Path:
    """Return the path of the file that has the split of each structure of a reading task.

    A reading task converts some structures of the input to graphs. ``unit`` is the directory of the
    task.
    """
    return unit.with_name(f"{unit.name}.split.json")


def _index(directories: Sequence[Path], contents: Sequence[Content]) -> SplitIndex:
    shards, graphs = [], []
    for directory, content in zip(directories, contents, strict=True):
        for shard in content.shards:
            shards.append(ShardFile(directory / shard.path, shard))
            graphs.append(shard.splits[_ALL].graphs)
    return SplitIndex(_ALL, join_contents(contents).keys, shards, graphs)


def _names(stem: str) -> Iterator[str]:
    """Yield endless names for the shards of one writer: ``{stem}.bp``, ``{stem}.1.bp``, …"""
    yield f"{stem}.bp"
    for number in itertools.count(1):
        yield f"{stem}.{number}.bp"
