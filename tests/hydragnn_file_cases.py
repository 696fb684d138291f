"""Configurations of HydraGNN's, prepared and trained as a campaign does it.

A `.bp` is written with the inputs and outputs that the file asks for, packed as HydraGNN packs
them, a store is prepared from it by the run configuration that holds the file's network, and an
epoch of a dozen graphs is trained.
"""

from __future__ import annotations

import copy
import logging
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from ase import Atoms
from segment_cases import make_spec
from torch_geometric.data import Data

from hydragnn_flow.config import NetworkConfig, RunConfig, load_network
from hydragnn_flow.config.network import Architecture, network_section, read_json
from hydragnn_flow.config.run import resolve_config
from hydragnn_flow.data import GraphStore, atoms_to_graph, prepare_store, write_store
from hydragnn_flow.errors import InputError
from hydragnn_flow.training.runner import run_segment

Outcome = Literal["trains", "trains with additions", "is refused", "fails"]

_NO_EDGES = 3.0
"""Radius for files without: their graphs bring edges of their own [Å]."""
_ATOMS = 5
_GRAPHS = {"trainset": 12, "valset": 4, "testset": 4}

# What a driver in the same folder adds to its file, which alone HydraGNN could not train either.
DRIVERS_ADD: dict[str, dict[str, Any]] = {
    "examples/csce/csce_gap.json": {"output_names": ["GAP"]},
    "examples/ogb/ogb_gap.json": {"output_names": ["GAP"]},
    "examples/dftb_uv_spectrum/dftb_discrete_uv_spectrum.json": {
        "output_names": ["frequencies", "intensities"],
        "graph_feature_dims": [50, 50],
        "node_feature_dims": [1] * 12,
    },
}
"""File -> keys of `Variables_of_interest`."""


@dataclass(frozen=True)
class FileCheck:
    """What became of a file."""

    file: str
    """Path within the checkout."""
    outcome: Outcome
    reason: str = ""
    """Why it is refused: the sentence that a user gets. Or how training failed."""
    additions: tuple[str, ...] = ()
    """What was added to the file, or changed in it, for it to train."""
    said: tuple[str, ...] = field(default=(), repr=False)
    """What a campaign would say of it before it begins."""


def check_file(checkout: Path, name: str) -> FileCheck:
    """Check one configuration; what refuses it becomes its reason."""
    additions: list[str] = []
    try:
        whole = read_json(checkout / name)
        network: dict[str, Any] = copy.deepcopy(network_section(whole, name))
        asked = network["Variables_of_interest"]
        for key, value in DRIVERS_ADD.get(name, {}).items():
            asked[key] = value
            additions.append(f"{key} of its driver")
        load_network(network, name)
        if network["Architecture"].get("radius") is None:
            network["Architecture"]["radius"] = _NO_EDGES
            additions.append("radius")
        return _check(network, _dims(whole, network), name, additions)
    except InputError as error:
        reason = str(error).replace(f"{checkout}/", "")
        return FileCheck(name, "is refused", reason, tuple(additions))


def check_network(network: Mapping[str, Any], name: str = "network") -> FileCheck:
    """Check a `NeuralNetwork` section that is in no file."""
    section = copy.deepcopy(dict(network))
    try:
        load_network(section, name)
        return _check(section, _dims({}, section), name, [])
    except InputError as error:
        return FileCheck(name, "is refused", str(error))


def _dims(whole: Mapping[str, Any], network: Mapping[str, Any]) -> list[int]:
    """Components of each output: as the file says them, or those of its raw features, or one."""
    asked = network["Variables_of_interest"]
    levels = asked["type"]
    if asked.get("output_dim"):
        return list(asked["output_dim"])
    features = {
        level: asked.get(f"{level}_feature_dims")
        or whole.get("Dataset", {}).get(f"{level}_features", {}).get("dim")
        for level in ("graph", "node")
    }
    index = asked.get("output_index") or [0] * len(levels)
    return [
        features[level][i] if features[level] else 1 for level, i in zip(levels, index, strict=True)
    ]


def _check(network: dict[str, Any], dims: list[int], name: str, additions: list[str]) -> FileCheck:
    with tempfile.TemporaryDirectory() as folder:
        config, store = _prepared(network, dims, Path(folder), name)
        wrong = _train(config.network_with({}), store, Path(folder) / "trial")
        outcome: Outcome = "trains with additions" if additions else "trains"
        return FileCheck(
            name,
            "fails" if wrong else outcome,
            wrong,
            additions=tuple(additions),
            said=tuple(config.remarks()),
        )


def _prepared(
    network: dict[str, Any], dims: list[int], folder: Path, name: str
) -> tuple[RunConfig, GraphStore]:
    """A campaign with the network, on a `.bp` with what it reads and learns, and its store."""
    checked = load_network(network, name)
    rng = np.random.default_rng(0)
    graphs = {
        split: [_graph(checked, dims, rng, i) for i in range(n)] for split, n in _GRAPHS.items()
    }
    written = write_store(folder / "written", graphs)
    section = {"format": "hydragnn", "file": written.manifest.shards[0].path}
    epochs = checked.Training.num_epoch
    values = {
        "name": "check",
        "data": {"source": section, "path": str(written.path)},
        "network": network,
        "search": {
            "trials": 2,
            "space": {"Training.Optimizer.learning_rate": {"float": [1e-4, 1e-3]}},
        },
        "ensemble": {"size": 2, "epochs": epochs},
    }
    config = resolve_config(values, Path(name))
    architecture = config.network_with({}).Architecture
    assert architecture.radius is not None
    store = prepare_store(
        config.data,
        architecture.radius,
        architecture.max_neighbours,
        0,
        folder / "store",
        whole_lists=architecture.enable_interatomic_potential,
        encodings=config.encodings,
    )
    return config, store


def _graph(network: NetworkConfig, dims: list[int], rng: np.random.Generator, number: int) -> Data:
    """A molecule with the columns of x, the keys and the packed y that a network asks for."""
    architecture, asked = network.Architecture, network.Variables_of_interest
    assert isinstance(architecture, Architecture)
    radius = architecture.radius or _NO_EDGES
    # A chain with all atoms within the radius of several others, and no two too near.
    positions = rng.uniform(-0.2, 0.2, (_ATOMS, 3)) + 0.45 * radius * np.outer(
        np.arange(_ATOMS), [1, 0, 0]
    )
    atoms = Atoms(numbers=rng.choice([1, 6, 8], _ATOMS), positions=positions)
    graph = atoms_to_graph(atoms, radius, architecture.max_neighbours)
    extra = max(asked.input_node_features)
    graph.x = torch.cat([graph.x, torch.from_numpy(rng.normal(size=(_ATOMS, extra))).float()], 1)
    if columns := len(architecture.edge_features or ()):
        more = torch.from_numpy(rng.normal(size=(graph.num_edges, columns - 1))).float()
        graph.edge_attr = torch.cat([graph.edge_attr, more], 1)
    if (branches := architecture.output_heads.branches) > 1:
        graph.dataset_name = torch.tensor([[number % branches]])
    if architecture.use_graph_attr_conditioning:
        graph.graph_attr = torch.tensor([[number % 3 - 1.0, 1.0 + number % 2]])
    if architecture.enable_interatomic_potential:
        graph.energy = torch.tensor([float(rng.normal())])
        graph.forces = torch.from_numpy(rng.normal(size=(_ATOMS, 3))).float()
        return graph
    pieces = [
        rng.normal(size=dim * (_ATOMS if level == "node" else 1))
        for level, dim in zip(asked.type, dims, strict=True)
    ]
    graph.y = torch.from_numpy(np.concatenate(pieces)[:, None]).float()
    graph.y_loc = torch.tensor([np.cumsum([0, *map(len, pieces)]).tolist()])
    return graph


def _train(network: NetworkConfig, store: GraphStore, folder: Path) -> str:
    """Train an epoch; what went wrong, empty if nothing did."""
    folder.mkdir()
    logging.disable(logging.WARNING)
    try:
        spec = make_spec(folder, store, 1, network=network.to_json())
        outcome = run_segment(spec)
    finally:
        logging.disable(logging.NOTSET)
    losses = outcome.history[-1] if outcome.history else [math.nan]
    if outcome.status != "ok" or not all(map(math.isfinite, losses)):
        return f"{outcome.status}: {outcome.reason or losses}"
    return ""
