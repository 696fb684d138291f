"""Writing a store: all or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from hydragnn_flow.data.columns import pack
from hydragnn_flow.data.splits import TRAIN
from hydragnn_flow.data.store.describe import describe
from hydragnn_flow.data.store.graph_store import GraphStore
from hydragnn_flow.data.store.integrity import describe_files
from hydragnn_flow.data.store.layout import write_shard
from hydragnn_flow.data.store.manifest import MANIFEST, Shard, Target
from hydragnn_flow.data.store.staging import commit, new_staging
from hydragnn_flow.errors import InputError

_SHARD = "shard-00000.bp"


def write_store(
    path: Path | str,
    splits: Mapping[str, Sequence[Data]],
    *,
    targets: Mapping[str, Target] | None = None,
    units: Mapping[str, str] | None = None,
    cutoff: float | None = None,
    max_neighbours: int | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> GraphStore:
    """Write graphs as a new store.

    The store is built beside ``path`` under a temporary name, forced to disk and renamed: whoever
    finds ``path`` finds all of it. A process killed before leaves only the temporary directory,
    which ``prepare_store`` clears away.

    Parameters
    ----------
    path
        Directory to create; it must not exist.
    splits
        Graphs by split. All graphs have the same keys; ``trainset`` has at least one graph.
    targets
        Which keys are labels; by default ``energy`` and ``forces`` where the graphs have them.
    units
        Units of further keys, and of the targets where these are found by default.
    cutoff, max_neighbours
        How the edges were made; models and predictions need it.
    provenance
        Where the data come from, as JSON can say it.

    Raises
    ------
    InputError
        For an existing ``path``, and for graphs that are not finite or do not fit each other.
    """
    path = Path(path)
    if path.exists():
        raise InputError(f"{path} exists; choose another name or delete it first")
    if not splits.get(TRAIN):
        raise InputError(f"{path}: {TRAIN} has no graphs; a store needs some to train on")
    packed = {TRAIN: pack(splits[TRAIN], TRAIN, {})}
    for name, graphs in splits.items():
        if name != TRAIN:
            packed[name] = pack(graphs, name, packed[TRAIN])
    staging = new_staging(path)
    try:
        shard = staging / _SHARD
        manifest = describe(
            packed,
            shards=[],
            targets=targets,
            units=units,
            cutoff=cutoff,
            max_neighbours=max_neighbours,
            provenance=provenance,
        )
        write_shard(
            shard,
            {name: packed[name] for name in splits},
            manifest.statistics.degree_histogram,
            dataset_name=str(manifest.provenance.get("name", path.name)),
        )
        shards = [Shard(path=_SHARD, files=describe_files(shard))]
        manifest = manifest.model_copy(update={"shards": shards})
        (staging / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n")
        commit(staging, path)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return GraphStore.open(path)
