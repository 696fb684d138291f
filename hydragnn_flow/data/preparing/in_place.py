"""Preparation of a store in place: files are described and checked, but not copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from hydragnn_flow.config.data import DataConfig
from hydragnn_flow.data.hydragnn_bp.in_place_manifest import alike
from hydragnn_flow.data.preparing.in_place_tasks import save_parts
from hydragnn_flow.data.preparing.tasks import ATOM_UNITS, Preparation
from hydragnn_flow.data.sources import Chunk
from hydragnn_flow.data.sources.file_names import ranges
from hydragnn_flow.data.sources.hydragnn import HydragnnSource
from hydragnn_flow.data.splits import SPLIT_OF_ROLE
from hydragnn_flow.data.store.describe import Content, Description, join_contents
from hydragnn_flow.data.store.statistics import Accumulator
from hydragnn_flow.data.truncation import Truncation
from hydragnn_flow.errors import InputError

_GRAPHS_PER_TASK = 1000
"""Number of graphs of a task, some seconds."""
# Bytes that this process reads in less time than workers take to start.
_FEW_BYTES = 16 << 20


def use_in_place(
    preparation: Preparation, config: DataConfig, provenance: Mapping[str, Any]
) -> tuple[Content, Description]:
    """Compute the manifest of a store that uses its data in place.

    Parameters
    ----------
    preparation
        Preparation under way; its workers are not asked if the files are short.
    config
        Sources that can be used in place.
    provenance
        Settings and inputs that determine the content.

    Raises
    ------
    InputError
        If networks cannot read a file as it is; the message names file and graph.
    """
    if provenance["inputs"]["bytes"] <= _FEW_BYTES:
        preparation = replace(preparation, workers=None)
    settings = preparation.settings
    data_sets = config.data_sets
    files = [cast(HydragnnSource, one.source).file for one in data_sets]
    looks = [{"what": file, "size": 1, "data_set": n} for n, file in enumerate(files)]
    found = preparation.run("files", "look", "file", looks)
    names = [one.name or "source" for one in data_sets]
    parts = alike(list(zip(names, found, strict=True)))
    missing = [key for key in ("pe", "rel_pe") if key not in parts[0].keys]
    if settings["encodings"] and missing:
        raise InputError(
            f"data.in_place: the network reads encodings, and the graphs of the files have no "
            f"{missing[0]}, which a copy gets; leave in_place out, or add them to the files"
        )
    save_parts(preparation.directory, parts)
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
        }
        for chunk in chunks
    ]
    records = preparation.run("structures", "measure", "graphs", requests)
    statistics = [Accumulator(part.targets, part.node_features) for part in parts]
    for chunk, record in zip(chunks, records, strict=True):
        statistics[chunk.data_set].merge(record["statistics"])
    contents = [
        Content(part.shards, part.keys, gathered)
        for part, gathered in zip(parts, statistics, strict=True)
    ]
    sizes_of = {name: sum(part.splits[name].graphs for part in parts) for name in parts[0].splits}
    units = ATOM_UNITS if "atomic_number" in parts[0].node_features else {}
    description = Description(
        targets=parts[0].targets,
        units={key: unit for key, unit in units.items() if key in parts[0].keys},
        cutoff=settings["cutoff"],
        max_neighbours=settings["max_neighbours"],
        truncation=sum((record["truncation"] for record in records), Truncation()),
        node_features=parts[0].node_features,
        branch_names=config.branch_names,
        provenance={
            **provenance,
            "division": {"graphs": sizes_of, "left_out": {}, "duplicates": {}},
            "own_edges": any(record["own_edges"] for record in records),
        },
    )
    return join_contents(contents), description
