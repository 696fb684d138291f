"""Two files of HydraGNN's and a store, three data sets of alloys that are trained on in place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from data_set_cases import CUTOFF, alloys
from torch_geometric.data import Data

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import GraphStore, prepare_store, write_store
from hydragnn_flow.data.sources.opening import open_source

NAMES = ("one", "two", "three")
SIZES = {"trainset": 8, "valset": 3, "testset": 3}
TARGETS = {"energy": "eV", "forces": "eV/Å"}


def alloy_graphs(n: int, seed: int, shift: float = 0.0) -> list[Data]:
    """Alloys whose energies are ``shift`` eV per atom away from those of EMT."""
    section = {"source": alloys(n), "split": {"test": 0.2}}
    source = open_source(DataConfig.model_validate(section), seed)
    graphs = []
    for chunk in source.chunks():
        for record in source.read(chunk):
            graph = record.graph(CUTOFF, None)
            graph.energy = graph.energy + shift * len(graph.pos)
            graphs.append(graph)
    return graphs


def as_hydragnn(graph: Data) -> Data:
    """With HydraGNN's keys and in its types; ``y`` as well, which is not read in place."""
    kept = ("x", "pos", "cell", "edge_index", "edge_shifts", "edge_attr", "forces", "y", "y_loc")
    return Data(**{key: graph[key] for key in kept}, energy=graph.energy.float())


def divided(graphs: list[Data]) -> dict[str, list[Data]]:
    rest = iter(graphs)
    return {name: [next(rest) for _ in range(n)] for name, n in SIZES.items()}


def hydragnn_file(path: Path, graphs: list[Data]) -> Path:
    """As HydraGNN writes one; its reader takes our shards for such."""
    store = write_store(path.with_suffix(".tmp"), divided(graphs))
    (store.path / "shard-00000.bp" / "blocks.npz").unlink()
    (store.path / "shard-00000.bp").rename(path)
    shutil.rmtree(store.path)
    return path


def three_sets(folder: Path) -> list[dict[str, Any]]:
    """Write the files; returns their sections of `data.sources`."""
    n = sum(SIZES.values())
    for number, name in enumerate(NAMES[:2]):
        graphs = alloy_graphs(n, number, -1000.0 * number)
        hydragnn_file(folder / f"{name}.bp", list(map(as_hydragnn, graphs)))
    own = divided(alloy_graphs(n, 2, 500.0))
    write_store(folder / "three.gs", own, units=TARGETS, cutoff=CUTOFF)
    files = [{"file": "one.bp", "targets": TARGETS}, {"file": "two.bp", "targets": TARGETS}]
    return [
        {"name": name, "format": "hydragnn", **keys}
        for name, keys in zip(NAMES, [*files, {"file": "three.gs"}], strict=True)
    ]


def config(folder: Path, sources: list[dict[str, Any]], **changes: Any) -> DataConfig:
    values = {"sources": sources, "path": folder, "in_place": True}
    return DataConfig.model_validate(values | changes)


def prepared(
    folder: Path, sources: list[dict[str, Any]], name: str = "s.gs", **changes: Any
) -> GraphStore:
    keys = {key: changes.pop(key) for key in ("workers", "progress") if key in changes}
    return prepare_store(config(folder, sources, **changes), CUTOFF, None, 0, folder / name, **keys)


def without(*keys: str) -> Callable[[Data], Data]:
    """A function that takes keys out of graphs."""

    def take_out(graph: Data) -> Data:
        return Data(**{key: value for key, value in graph.to_dict().items() if key not in keys})

    return take_out


def vectors(graph: Data) -> torch.Tensor:
    """Those of the edges: where atoms lie in their cells does not count."""
    sender, receiver = graph.edge_index
    return graph.pos[receiver] - graph.pos[sender] + graph.edge_shifts
