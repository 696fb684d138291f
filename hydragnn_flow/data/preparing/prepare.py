"""Preparation of a configuration's store, once: graphs are copied to shards or used in place."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from ase.data import atomic_numbers
from numpy.typing import NDArray

from hydragnn_flow.config.data import DataConfig
from hydragnn_flow.config.sources import SPLIT_OF_ROLE, TRAIN
from hydragnn_flow.data.divide import Structures, divide
from hydragnn_flow.data.hydragnn_bp.manifests import alike
from hydragnn_flow.data.neighbours import Truncation
from hydragnn_flow.data.preparing.suspicious import (
    TASK_ORIGINS,
    Doubts,
    check_refused,
    judge,
    sentences,
)
from hydragnn_flow.data.preparing.tasks import (
    PARTS,
    RECORD,
    SPLITS,
    Preparation,
    Progress,
    Workers,
    load_split,
    split_file,
)
from hydragnn_flow.data.reading.graph_store import GraphStore, verify_payload
from hydragnn_flow.data.reading.inspection import masked_labels
from hydragnn_flow.data.sources.base import Chunk
from hydragnn_flow.data.sources.file_names import ranges
from hydragnn_flow.data.sources.hydragnn import HydragnnSource
from hydragnn_flow.data.sources.opening import check_alike, describe, fingerprint, open_source
from hydragnn_flow.data.sources.structures import check_read
from hydragnn_flow.data.store.describe import Content, Description, join_contents
from hydragnn_flow.data.store.integrity import alone, building_of, cannot_write
from hydragnn_flow.data.store.manifest import ENCODINGS, GRAPH_ATTR, MANIFEST
from hydragnn_flow.data.store.origins import divide_origins
from hydragnn_flow.data.store.statistics import Accumulator
from hydragnn_flow.data.writer import commit_store
from hydragnn_flow.errors import InputError, NoWorkers, StoreError
from hydragnn_flow.files import write_json
from hydragnn_flow.log import tell

_logger = logging.getLogger(__name__)

_GRAPHS_PER_TASK = 1000
"""Number of graphs that one task measures, which takes some seconds."""
# Bytes that this process reads in less time than workers take to start.
_FEW_BYTES = 16 << 20


Records = list[dict[str, Any]]
"""Records of tasks; the first has ``targets``, ``units``, ``node_features`` and ``encoded``."""


def use_in_place(
    preparation: Preparation, config: DataConfig
) -> tuple[Content, Records, dict[str, Any], Doubts]:
    """Check the files that a store uses without copying, and compute what its manifest needs.

    The manifest is the store's description of its content.

    Parameters
    ----------
    preparation
        Preparation that runs the tasks.
    config
        Configuration whose files are used in place.

    Returns
    -------
    tuple
        Content of the store (shards with keys and statistics), the records of the tasks, a summary
        with the number of graphs by split, and the suspicious graphs.

    Raises
    ------
    InputError
        If networks cannot read a file as it is, or suspicious graphs are refused; the message names
        file and graph.
    """
    data_sets = config.data_sets
    files = [cast(HydragnnSource, one.source).file for one in data_sets]
    looks = [{"what": file, "size": 1, "data_set": n} for n, file in enumerate(files)]
    found = preparation.run("files", "look", "file", looks)
    names = [one.name or "source" for one in data_sets]
    parts = alike(list(zip(names, found, strict=True)))
    missing = [key for key in ("pe", "rel_pe") if key not in parts[0].keys]
    if preparation.settings["encodings"] and missing:
        raise InputError(
            f"data.in_place: the network reads encodings, and the graphs of the files have no "
            f"{missing[0]}, which a copy gets; leave in_place out, or add them to the files"
        )
    described = [part.model_dump(mode="json") for part in parts]
    write_json(preparation.directory / PARTS, described)
    chunks = [
        Chunk(role, files[number], start, stop, 0, number)
        for number, part in enumerate(parts)
        for role, split in SPLIT_OF_ROLE.items()
        if split in part.splits
        for start, stop in ranges(part.splits[split].graphs, _GRAPHS_PER_TASK, 1000)
    ]
    requests = [
        {
            "what": f"graphs {chunk.start} to {chunk.stop - 1} of {chunk.file}",
            "size": chunk.stop - chunk.start,
            "chunk": vars(chunk),
            "doubtful": {},
        }
        for chunk in chunks
    ]
    records = preparation.run("structures", "measure", "graphs", requests)
    folders = preparation.directories("graphs", len(requests))
    doubts = judge(folders, records, config.suspicious)
    again = [n for n, some in enumerate(doubts.of_task) if some and chunks[n].role == "train"]
    requests = [{**requests[n], "doubtful": doubts.of_task[n]} for n in again]
    measured = preparation.run("suspicious structures", "measure", "again", requests)
    for n, record in zip(again, measured, strict=True):
        records[n] = record
    statistics = [Accumulator(part.targets, part.node_features) for part in parts]
    for chunk, record in zip(chunks, records, strict=True):
        statistics[chunk.data_set].merge(record["statistics"])
    contents = [
        Content(part.shards, part.keys, gathered)
        for part, gathered in zip(parts, statistics, strict=True)
    ]
    sizes_of = {name: sum(part.splits[name].graphs for part in parts) for name in parts[0].splits}
    division = {"graphs": sizes_of, "left_out": {}, "duplicates": {}}
    return join_contents(contents), records, division, doubts


T = TypeVar("T")

_DECIDING = ("role", "hash", "composition", "group")
"""Keys of a reading task's record whose values decide the splits of structures."""
# Version of the records: tasks finished with another version are not continued.
_RECORDS = 9
_FEWEST = 32
"""Smallest number of structures that is worth a task of its own."""
# Number of structures that this process reads faster than workers start.
_FEW = 1000
# Shards of this size are read as fast as longer ones, and can be written in parallel.
_SHARD_BYTES = 1 << 30


def prepare_store(
    config: DataConfig,
    cutoff: float,
    max_neighbours: int | None,
    seed: int,
    path: Path | str,
    progress: Progress | None = None,
    workers: Workers | None = None,
    *,
    whole_lists: bool = False,
    encodings: int = 0,
) -> GraphStore:
    """Build the store of graphs that a configuration describes, or open it if it exists.

    First structures are read and their graphs built, in tasks of some hundred structures. When
    duplicates are known, structures are divided into splits and written to the shards. If the
    process ends early, its finished tasks are kept, and the same call continues from there. Data in
    place are only read and checked, and the manifest is written.

    Parameters
    ----------
    config
        Configuration of sources and splits.
    cutoff
        Maximum length of an edge [Å].
    max_neighbours
        Number of nearest neighbours kept per atom; None keeps all.
    seed
        Seed of generated structures and of the splits.
    path
        Directory of the store.
    progress
        Callback with the kind of work (``structures``, ``shards``), the number done and the total.
    workers
        Function that runs the tasks in other processes, unless the input is small; None runs them
        in this process.
    whole_lists
        True to refuse structures with truncated neighbour lists, as soon as some have been read. A
        finished store is not checked: its manifest states the truncation.
    encodings
        Number of Laplacian encodings for graphs without ``pe``; see
        :func:`~hydragnn_flow.data.graphs.laplacian_encodings`. 0 for none.

    Returns
    -------
    GraphStore
        Store in mode ``random``, as preparing it does not need its graphs in memory.

    Raises
    ------
    InputError
        If the input is wrong (the message names file and structure), no worker will come, or
        ``path`` holds something else: a store of other data or settings, a damaged store, no store.
    CampaignStopped
        If the processes of a task are lost again and again.
    """
    path, references = Path(path), _references(config)
    provenance = _provenance(config, cutoff, max_neighbours, seed)
    if path.exists():
        store = _reuse(path, config, provenance, encodings)
        found = store.manifest.provenance["suspicious"]
        check_refused(found, config.suspicious)
        _check_complete(config, masked_labels(store.manifest.lacking))
        _tell(found)
        # Files of workers that outlived their driver, and of an interrupted preparation.
        shutil.rmtree(building_of(path, "preparing"), ignore_errors=True)
        return store
    show = progress or (lambda what, done, total: None)
    with alone(path, "preparing") as building, _kept_unless_input_is_wrong(building):
        tasks = _begin(building, {**provenance, "encodings": encodings})
        settings: dict[str, Any] = {
            "config": config.model_dump(mode="json"),
            "cutoff": cutoff,
            "max_neighbours": max_neighbours,
            "seed": seed,
            "whole_lists": whole_lists,
            "encodings": encodings,
            "name": path.name,
        }
        preparation = Preparation(tasks, settings, show, workers)
        staging = tasks / "store"
        staging.mkdir(exist_ok=True)
        if config.in_place:
            if provenance["inputs"]["bytes"] <= _FEW_BYTES:
                preparation = replace(preparation, workers=None)
            content, records, division, doubts = use_in_place(preparation, config)
        else:
            source = open_source(config, seed)
            chunks = source.chunks()
            settings["targets"] = {
                name: target.model_dump() for name, target in source.found_targets.items()
            }
            if _size(chunks) <= _FEW:
                preparation = replace(preparation, workers=None)
            units, records = _read(preparation, chunks)
            without_weight = ("has the weight 0", "has config_weight = 0")
            lacking = [s for s in records[0]["unlabelled"] if not s.endswith(without_weight)]
            _check_complete(config, lacking)
            _check_alike(records)
            doubts = judge(units, records, config.suspicious)
            leave = doubts.structures & (config.suspicious == "leave_out")
            division = _divide(config, units, records, seed, leave, references)
            content = _write(preparation, units, records, doubts)
            for shard in content.shards:
                if not (staging / shard.path).exists():  # moved before this process began
                    folder = tasks / shard.path.split(".")[0]
                    (folder / shard.path).rename(staging / shard.path)
            if any(chunk.file for chunk in chunks):
                splits = [name for unit in units for name in load_split(unit)]
                masked = doubts.labels if config.missing == "mask" else {}
                divide_origins([unit / TASK_ORIGINS for unit in units], splits, staging, masked)
        _check_complete(config, masked_labels(content.statistics.lacking))
        first = records[0]
        described = Description(
            targets=first["targets"],
            units={key: unit for key, unit in first["units"].items() if key in content.keys},
            cutoff=cutoff,
            max_neighbours=max_neighbours,
            truncation=sum((record["truncation"] for record in records), Truncation()),
            node_features=first["node_features"],
            branch_names=config.branch_names,
            references=references,
            provenance={
                **provenance,
                "division": division,
                "suspicious": doubts.found,
                "own_edges": any(record["own_edges"] for record in records),
                # New structures to predict need the same inputs.
                **({ENCODINGS: encodings} if first["encoded"] else {}),
                **({GRAPH_ATTR: config.graph_attr} if config.graph_attr else {}),
            },
        )
        commit_store(staging, path, content, described, config.dtypes)
        shutil.rmtree(building, ignore_errors=True)
    _tell(doubts.found)
    return GraphStore.open(path, mode="random")


def _references(config: DataConfig) -> list[Any]:
    """Return reference energies of each data set by atomic number; none if they are fitted.

    Raises
    ------
    InputError
        If a key is not the symbol of an element.
    """
    given = config.element_energies
    if given is None:
        return []
    of_each: list[Any] = [given] * len(config.data_sets)
    if config.sources and isinstance(given, dict):
        of_each = [given[one.name] for one in config.sources]
    for symbol in (symbol for one in of_each if one != "isolated" for symbol in one):
        if symbol not in atomic_numbers:
            raise InputError(
                f"data.element_energies: {symbol} is not the symbol of an element; correct it"
            )
    return [
        one if one == "isolated" else {atomic_numbers[z]: energy for z, energy in one.items()}
        for one in of_each
    ]


def _check_complete(config: DataConfig, lacking: Sequence[str]) -> None:
    """Raise InputError if labels are missing and the value of `data.missing` is refuse."""
    if lacking and config.missing == "refuse":
        other = "mask" if config.in_place else "mask or leave_out"
        raise InputError(
            f"{lacking[0].partition(';')[0]}; correct it, or set data.missing to {other}"
        )


def _tell(suspicious: Mapping[str, Any]) -> None:
    for sentence in sentences(suspicious) if suspicious else ():
        tell(_logger, "%s", sentence)


def _provenance(
    config: DataConfig, cutoff: float, max_neighbours: int | None, seed: int
) -> dict[str, Any]:
    """Return all settings that determine a store's content, and a hash of its source files."""
    data = "source" if config.sources is None else "sources"
    decisive = {data, "split", "dtypes", "in_place", "element_energies"}
    return {
        **config.model_dump(mode="json", include=decisive),
        "seed": seed,
        "cutoff": cutoff,
        "max_neighbours": max_neighbours,
        "inputs": fingerprint(config),
        "leave_out_suspicious": config.suspicious == "leave_out",
        "leave_out_incomplete": config.missing == "leave_out",
    }


def _reuse(path: Path, config: DataConfig, asked: Mapping[str, Any], encodings: int) -> GraphStore:
    store = GraphStore.open(path, mode="random")
    found = store.manifest.provenance
    differing = [key for key, value in asked.items() if found.get(key) != value]
    computed = found.get(ENCODINGS, encodings)
    if encodings and ("pe" not in store.manifest.keys or computed != encodings):
        differing.append("Architecture.pe_dim")
    if differing:
        since = (path / MANIFEST).stat().st_mtime_ns
        files = open_source(config, 0).files() if "inputs" in differing else ()
        newer = [str(file) for file in files if file.stat().st_mtime_ns > since][:10]
        said = f"; newer than it: {', '.join(newer)}" if newer else ""
        raise StoreError(
            f"{path} is a store of other data or settings ({', '.join(differing)} differ{said}); "
            "choose another directory or delete it"
        )
    # This takes some seconds; blocks of a larger store are verified when first read.
    if store.manifest.bytes <= 8 << 30:
        verify_payload(store)
    return store


@contextmanager
def _kept_unless_input_is_wrong(building: Path) -> Iterator[None]:
    """Context manager: keep finished tasks after an error inside it, unless the input is wrong.

    ``building`` is the directory with the tasks, which the next call continues. It is deleted if
    the input is wrong or no task is finished.
    """
    try:
        yield
    except (StoreError, NoWorkers):
        raise
    except OSError as error:
        raise cannot_write(building, error) from error
    except InputError:
        shutil.rmtree(building, ignore_errors=True)
        raise
    finally:
        if not any(building.glob(f"*/[!.]*/{RECORD}")):
            shutil.rmtree(building, ignore_errors=True)


def _begin(building: Path, provenance: Mapping[str, Any]) -> Path:
    """Create and return the directory of the tasks; delete tasks for other data or settings.

    Each combination of data and settings has a directory of its own: a worker that outlives its
    driver may still finish a task of an earlier configuration.
    """
    text = json.dumps([_RECORDS, provenance], sort_keys=True)
    tasks = building / hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    for entry in building.iterdir():
        if entry.is_dir() and entry != tasks:
            shutil.rmtree(entry, ignore_errors=True)
    tasks.mkdir(exist_ok=True)
    return tasks


def _read(
    preparation: Preparation, chunks: Sequence[Chunk]
) -> tuple[list[Path], list[dict[str, Any]]]:
    """Read all structures; return the directories of the tasks, in order, and their records.

    Tasks whose structures all lack a label are left out; the first record knows of them.
    """
    # Enough tasks to fill a machine and to lose little with one.
    per_task = min(max(-(-_size(chunks) // 64), _FEWEST), 4096)
    groups = _grouped(chunks, [_size([chunk]) for chunk in chunks], per_task)
    requests = [
        {"what": _what(*group), "size": _size(group), "chunks": [vars(chunk) for chunk in group]}
        for group in groups
    ]
    units = preparation.directories("unit", len(groups))
    records = preparation.run("structures", "read", "unit", requests)
    check_read([said for record in records for said in record.get("unreadable", ())])
    some = [place for place, record in enumerate(records) if record["hash"]]
    lacking = [said for record in records for said in record["unlabelled"]]
    if not some:
        raise InputError(lacking[0])
    rest = [{**records[place], "unlabelled": []} for place in some[1:]]
    return [units[n] for n in some], [{**records[some[0]], "unlabelled": lacking}, *rest]


def _what(first: Chunk, *others: Chunk) -> str:
    last = (first, *others)[-1]
    if not first.file:
        return f"structures {first.start} to {last.stop - 1} of those generated"
    return f"structures {first.start} of {first.file} to {last.stop - 1} of {last.file}"


def _size(chunks: Sequence[Chunk]) -> int:
    return sum(chunk.stop - chunk.start for chunk in chunks)


def _grouped(items: Sequence[T], sizes: Sequence[int], least: int) -> list[list[T]]:
    """Return groups of consecutive items; each but the last has a total size from ``least`` on."""
    groups: list[list[T]] = [[]]
    held = 0
    for item, size in zip(items, sizes, strict=True):
        if held >= least:
            groups.append([])
            held = 0
        groups[-1].append(item)
        held += size
    return groups


def _check_alike(records: Sequence[Mapping[str, Any]]) -> None:
    """Raise InputError if records of tasks differ in targets, node features, encodings or keys."""
    described: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "targets": lambda record: describe(record["targets"]),
        "node features": lambda record: ", ".join(record["node_features"]),
        "encodings pe": lambda record: "computed" if record["encoded"] else "their own",
        "keys": lambda record: ", ".join(
            f"{name} {key.dtype} {list(key.shape)}"
            for name, key in sorted(record["content"].keys.items())
        ),
    }
    for what, words in described.items():
        check_alike(what, {record["what"]: words(record) for record in records})


def _divide(
    config: DataConfig,
    units: Sequence[Path],
    records: Sequence[Mapping[str, Any]],
    seed: int,
    leave: NDArray[np.bool_],
    references: Sequence[Any],
) -> dict[str, Any]:
    """Divide structures into splits and return a summary; write the splits of each reading task.

    The structures of the mask ``leave`` are in no split.
    The summary counts graphs by split, structures left out by reason, and duplicates by split.
    """
    data_set = np.array([number for record in records for number in record["data_set"]])
    deciding = [[value for record in records for value in record[name]] for name in _DECIDING]
    split_of = np.full(len(data_set), "", dtype=object)
    left_out, duplicates = Counter[str](), Counter[str]()
    for number, one in enumerate(config.data_sets):
        assert one.split is not None  # its own, or the common one
        (mine,) = np.nonzero((data_set == number) & ~leave)
        structures = Structures(*([values[i] for i in mine.tolist()] for values in deciding))
        by, fractions = one.split.by, (one.split.val, one.split.test)
        try:
            division = divide(structures, by, *fractions, seed, one.split.calibration)
        except InputError as error:
            raise InputError(f"{one.name}: {error}" if one.name else str(error)) from None
        split = np.array(division.split, dtype=object)
        if references and references[number] == "isolated":
            surveys = [record["survey"] for record in records]
            alone = np.concatenate([one.get("isolated", one["atoms"] == 1) for one in surveys])
            split[alone[mine] & (np.array(structures.role) == "train") & (split != "")] = TRAIN
        split_of[mine] = split
        left_out.update(division.left_out)
        duplicates.update(division.duplicates)
    names = iter(split_of.tolist())
    for unit, record in zip(units, records, strict=True):
        write_json(split_file(unit), [next(names) for _ in record["hash"]])
    return {
        "graphs": {name: n for name in SPLITS if (n := int((split_of == name).sum()))},
        "left_out": dict(left_out),
        "duplicates": dict(duplicates),
    }


def _write(
    preparation: Preparation,
    units: Sequence[Path],
    records: Sequence[Mapping[str, Any]],
    doubts: Doubts,
) -> Content:
    """Write the shards and return their content."""
    doubtful = dict(zip(map(str, units), doubts.of_task, strict=True))
    # A shard from units with all structures left out would have no keys.
    divided = [set(load_split(unit)) - {""} for unit in units]
    kept = [(u, r["content"]) for u, r, names in zip(units, records, divided, strict=True) if names]
    splits = [name for name in SPLITS if name in set().union(*divided)]
    sizes = [
        sum(file.size for shard in content.shards for file in shard.files.values())
        for _, content in kept
    ]
    requests = [
        {
            "what": f"shard {number}",
            "size": 1,
            "units": group,
            "splits": splits,
            "doubtful": [doubtful[unit] for unit in group],
        }
        for number, group in enumerate(_grouped([str(u) for u, _ in kept], sizes, _SHARD_BYTES))
    ]
    written = preparation.run("shards", "write", "shard", requests)
    return join_contents([record["content"] for record in written])
