"""Preparation of a store in place: files are described and checked, but not copied."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydragnn_flow.config.data import DataConfig
from hydragnn_flow.data.preparing.in_place_tasks import look_request, measure_request, save_parts
from hydragnn_flow.data.preparing.running import Progress, Workers, run_tasks
from hydragnn_flow.data.preparing.tasks import ATOM_UNITS
from hydragnn_flow.data.sources import Chunk
from hydragnn_flow.data.sources.file_names import ranges
from hydragnn_flow.data.sources.in_place import alike
from hydragnn_flow.data.splits import SPLIT_OF_ROLE
from hydragnn_flow.data.store.describe import Content, Description, join_contents
from hydragnn_flow.data.store.manifest import Manifest
from hydragnn_flow.data.store.statistics import Accumulator
from hydragnn_flow.data.truncation import Truncation
from hydragnn_flow.errors import InputError

# A task takes seconds; records of more tasks per split would take long to merge.
_GRAPHS_PER_TASK, _MOST_TASKS = 1000, 1000
# Bytes that this process reads in less time than workers take to start.
_FEW_BYTES = 16 << 20


def use_in_place(
    tasks: Path,
    settings: Mapping[str, Any],
    config: DataConfig,
    provenance: Mapping[str, Any],
    show: Progress,
    workers: Workers | None,
) -> tuple[Content, Description]:
    """Compute the manifest of a store that uses its data in place.

    Parameters
    ----------
    tasks
        Directory of the tasks' results, from which a later call continues.
    settings
        Settings common to all tasks.
    config
        Sources that can be used in place.
    provenance
        Settings and inputs that determine the content.
    show
        Callback for the progress.
    workers
        Function that runs the tasks, unless the files are short; by default this process.

    Raises
    ------
    InputError
        If networks cannot read a file as it is; the message names file and graph.
    """
    if provenance["inputs"]["bytes"] <= _FEW_BYTES:
        workers = None
    data_sets = config.data_sets
    looks = [
        look_request(settings, tasks / f"file-{number:05d}", number)
        for number in range(len(data_sets))
    ]
    found = [
        Manifest(**record["manifest"])
        for record in run_tasks("files", looks, [1] * len(looks), show, workers)
    ]
    names = [one.name or "source" for one in data_sets]
    parts = alike(list(zip(names, found, strict=True)))
    missing = [key for key in ("pe", "rel_pe") if key not in parts[0].keys]
    if settings["encodings"] and missing:
        raise InputError(
            f"data.in_place: the network reads encodings, and the graphs of the files have no "
            f"{missing[0]}, which a copy gets; leave in_place out, or add them to the files"
        )
    save_parts(tasks, parts)
    chunks = [
        Chunk(role, looks[number]["what"], start, stop, 0, number)
        for number, part in enumerate(parts)
        for role, split in SPLIT_OF_ROLE.items()
        if split in part.splits
        for start, stop in ranges(part.splits[split].graphs, _GRAPHS_PER_TASK, _MOST_TASKS)
    ]
    requests = [
        measure_request(settings, tasks / f"graphs-{number:06d}", chunk)
        for number, chunk in enumerate(chunks)
    ]
    sizes = [chunk.stop - chunk.start for chunk in chunks]
    records = run_tasks("structures", requests, sizes, show, workers)
    statistics = [Accumulator(part.targets, part.node_features) for part in parts]
    for chunk, record in zip(chunks, records, strict=True):
        statistics[chunk.data_set].merge(Accumulator.from_dict(record["statistics"]))
    contents = [
        Content(part.shards, part.keys, gathered)
        for part, gathered in zip(parts, statistics, strict=True)
    ]
    sizes_of = {name: sum(part.splits[name].graphs for part in parts) for name in parts[0].splits}
    units = ATOM_UNITS if "atomic_number" in parts[0].node_features else {}
    described = Description(
        targets=parts[0].targets,
        units={key: unit for key, unit in units.items() if key in parts[0].keys},
        cutoff=settings["cutoff"],
        max_neighbours=settings["max_neighbours"],
        truncation=sum((Truncation(**record["truncation"]) for record in records), Truncation()),
        node_features=parts[0].node_features,
        branch_names=config.branch_names,
        provenance={
            **provenance,
            "division": {"graphs": sizes_of, "left_out": {}, "duplicates": {}},
            "own_edges": any(record["own_edges"] for record in records),
        },
    )
    return join_contents(contents), described
