"""Sources -> splits -> graphs -> store, once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from hydragnn_flow.config.data import DataConfig
from hydragnn_flow.data.graphs import atoms_to_graph
from hydragnn_flow.data.sources import Labelled, Progress, SourceData, input_files, read_source
from hydragnn_flow.data.splits import TEST, split_indices
from hydragnn_flow.data.store.graph_store import GraphStore
from hydragnn_flow.data.store.integrity import describe_file
from hydragnn_flow.data.store.staging import remove_leftovers
from hydragnn_flow.data.store.writer import write_store
from hydragnn_flow.errors import InputError

_UNITS = {"pos": "Å", "cell": "Å", "edge_shifts": "Å", "edge_attr": "Å"}


def prepare_store(
    config: DataConfig,
    cutoff: float,
    max_neighbours: int | None,
    seed: int,
    path: Path | str,
    progress: Progress | None = None,
) -> GraphStore:
    """Build the store of a configuration, or open it where it is built already.

    Parameters
    ----------
    config
        Source and split.
    cutoff
        Longest edge [Å].
    max_neighbours
        Nearest neighbours kept of each atom; None keeps all.
    seed
        Determines generated structures and the split.
    path
        The store's directory.
    progress
        Told what is being done, how many are done, and of how many.

    Raises
    ------
    InputError
        Where the input is at fault (naming file and structure), or ``path`` holds something else:
        a store of other data or settings, a damaged store, no store.
    """
    path = Path(path)
    remove_leftovers(path)
    provenance = _provenance(config, cutoff, max_neighbours, seed)
    if path.exists():
        return _reuse(path, provenance)
    data = read_source(config, seed, progress)
    splits = _graphs(data, _divide(data, config, seed), cutoff, max_neighbours, progress)
    return write_store(
        path,
        splits,
        targets=data.targets,
        units=_UNITS,
        cutoff=cutoff,
        max_neighbours=max_neighbours,
        provenance=provenance,
    )


def _provenance(
    config: DataConfig, cutoff: float, max_neighbours: int | None, seed: int
) -> dict[str, Any]:
    """All that determines the content; files by what is in them, not by where they are."""
    inputs = {role: describe_file(file) for role, file in input_files(config).items()}
    return {
        "source": config.source.model_dump(mode="json"),
        "split": config.split.model_dump(mode="json"),
        "seed": seed,
        "cutoff": cutoff,
        "max_neighbours": max_neighbours,
        "inputs": {role: record.model_dump() for role, record in inputs.items()},
    }


def _reuse(path: Path, provenance: dict[str, Any]) -> GraphStore:
    store = GraphStore.open(path)
    found = store.manifest.provenance
    differing = [key for key, value in provenance.items() if found.get(key) != value]
    if differing:
        raise InputError(
            f"{path} is a store of other data or settings ({', '.join(differing)} differ); "
            "choose another directory or delete it"
        )
    store.verify_payload()
    return store


def _divide(data: SourceData, config: DataConfig, seed: int) -> dict[str, list[Labelled]]:
    indices = split_indices(len(data.train), config.split.val, config.split.test, seed)
    splits = {name: [data.train[i] for i in chosen] for name, chosen in indices.items()}
    if data.test:
        splits[TEST] = data.test
    return splits


def _graphs(
    data: SourceData,
    splits: dict[str, list[Labelled]],
    cutoff: float,
    max_neighbours: int | None,
    progress: Progress | None,
) -> dict[str, Sequence[Data]]:
    total = sum(len(structures) for structures in splits.values())
    done = 0
    graphs: dict[str, Sequence[Data]] = {}
    for name, structures in splits.items():
        built = []
        for structure in structures:
            targets = {target: structure.targets[target] for target in data.targets}
            try:
                graph = atoms_to_graph(
                    structure.atoms, cutoff, max_neighbours, structure.index, targets
                )
            except InputError as error:
                raise InputError(f"{structure.origin}: {error}") from None
            built.append(graph)
            done += 1
            if progress is not None:
                progress("neighbour lists", done, total)
        graphs[name] = built
    return graphs
