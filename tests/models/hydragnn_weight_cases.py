"""Outputs of HydraGNN's networks beside ours that have read their weights.

    PYTHONPATH=benchmarks:. python tests/models/hydragnn_weight_cases.py PATH-OF-A-CHECKOUT

writes `hydragnn_outputs.json`: what HydraGNN predicts with weights made by rule.
"""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ase
import numpy as np
import torch
from peers.hydragnn_package import edges, function, load
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from hydragnn_flow.config.network.hydragnn_layers import EQUAL
from hydragnn_flow.config.start_from import StartConfig, find_origin
from hydragnn_flow.data import atoms_to_graph
from hydragnn_flow.data.store.manifest import BranchStatistics, LabelStatistics
from hydragnn_flow.models import HydraModel, build_model
from hydragnn_flow.models.hydragnn.weights import read_hydragnn_weights
from hydragnn_flow.testing.networks import COPPER, CUTOFF, GOLD, alloy, manifest

GRAPHS = 6
"""Structures of each configuration: half molecules, half periodic cells."""
NEIGHBOURS = 80
RECORDED = Path(__file__).with_name("hydragnn_outputs.json")
_POTENTIALS = ("SchNet", "EGNN", "PAINN", "PNAPlus", "PNAEq")
_POSITIVE = ("running_var", "running_mean", "avg_deg_lin", "avg_deg_log")


def compare(checkout: Path) -> dict[str, float]:
    """Largest difference of any output, by type: those that are read, in all configurations."""
    load(checkout)
    return {
        name: max(difference(name, changes, 0) for changes in configurations(name))
        for name in EQUAL
    }


def configurations(name: str) -> Iterator[dict[str, Any]]:
    """Changes to the network of a type, one configuration each."""
    yield {}
    yield {"inputs": 2, "num_conv_layers": 3, "activation_function": "silu"}
    yield {"branches": 2, "activation_function": "lrelu_01", "graph_pooling": "add"}
    yield {"activation_function": "prelu", "num_conv_layers": 1, "graph_pooling": "max"}
    if name in _POTENTIALS:
        yield {"potential": True, "activation_function": "silu"}
    if name == "EGNN":
        yield {"equivariance": True, "num_conv_layers": 3}


def difference(name: str, changes: dict[str, Any], seed: int) -> float:
    """Largest difference between HydraGNN's outputs and ours."""
    section = network(name, **changes)
    graphs = structures(seed, whole=name != "SchNet")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trained.pk"
        theirs = train(section, graphs, seed)
        write(file, *theirs)
        expected = hydragnn_outputs(theirs[0], section, graphs)
        given = our_outputs(file, graphs)
    return largest_difference(given, expected)


def largest_difference(
    given: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> float:
    """Largest difference of any output, each divided by its largest value.

    Raises
    ------
    ValueError
        If there are not the same outputs, or one that is zero everywhere, which says nothing.
    """
    if expected.keys() != given.keys():
        raise ValueError(f"outputs {sorted(expected)} are not {sorted(given)}")
    found = []
    for key, value in expected.items():
        if not value.abs().max() > 0:
            raise ValueError(f"all {key} are zero, so that nothing is compared")
        found.append(float((given[key] - value).abs().max() / value.abs().max()))
    return max(found)


def network(
    name: str, *, potential: bool = False, inputs: int = 1, branches: int = 1, **changes: Any
) -> dict[str, Any]:
    """A `NeuralNetwork` section as HydraGNN's users write it."""
    graph = {
        "num_sharedlayers": 2,
        "dim_sharedlayers": 7,
        "num_headlayers": 2,
        "dim_headlayers": [9, 8],
    }
    node = {"num_headlayers": 2, "dim_headlayers": [8, 6], "type": "mlp"}
    heads: dict[str, Any] = {"node": node} if potential else {"graph": graph, "node": node}
    if branches > 1:
        heads = {
            level: [{"type": f"branch-{k}", "architecture": head} for k in range(branches)]
            for level, head in heads.items()
        }
    architecture = {
        "mpnn_type": name,
        "hidden_dim": 12,
        "num_conv_layers": 2,
        "radius": CUTOFF,
        "max_neighbours": NEIGHBOURS,
        "num_gaussians": 8,
        "num_filters": 10,
        "num_radial": 5,
        "envelope_exponent": 5,
        "periodic_boundary_conditions": False,
        "output_heads": heads,
        "task_weights": [1.0] if potential else [1.0, 1.0],
        **changes,
    }
    if potential:
        architecture |= {"enable_interatomic_potential": True, "force_weight": 1.0}
    asked = {
        "input_node_features": list(range(inputs)),
        "output_names": ["graph_energy"] if potential else ["charge", "gap"],
        "output_index": [0] if potential else [0, 1],
        "type": ["node"] if potential else ["node", "graph"],
        "output_dim": [1] if potential else [1, 2],
    }
    training = {
        "num_epoch": 1,
        "batch_size": GRAPHS,
        "Optimizer": {"type": "AdamW", "learning_rate": 1e-3},
    }
    return {"Architecture": architecture, "Variables_of_interest": asked, "Training": training}


def structures(seed: int, *, whole: bool) -> list[Data]:
    """Random molecules, and periodic cells if they are wanted, with two columns of features."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(GRAPHS):
        if whole and number % 2:
            atoms = alloy(10 * seed + number)
        else:
            n = int(rng.integers(3, 9))
            places = np.stack(np.unravel_index(rng.permutation(27)[:n], (3, 3, 3)), axis=1)
            atoms = ase.Atoms(rng.choice([COPPER, GOLD], n), 1.9 * places)
            atoms.positions += rng.normal(0, 0.15, (n, 3))
        graph = atoms_to_graph(atoms, CUTOFF, None)
        spins = torch.from_numpy(rng.normal(size=(len(atoms), 1))).float()
        graph.x = torch.cat([graph.x, spins], dim=1)
        graph.dataset_name = torch.tensor([[number % 2]])
        # What HydraGNN derives the widths of its heads from; no output is compared with it.
        graph.y = torch.zeros(len(atoms) + 2, 1)
        graph.y_loc = torch.tensor([[0, len(atoms), len(atoms) + 2]])
        found.append(graph)
    return found


def by_rule(number: int, shape: Sequence[int], *, positive: bool) -> torch.Tensor:
    """The weights that the tests are recorded with: those of the parameter of a number."""
    waves = torch.arange(math.prod(shape), dtype=torch.float64)
    values = torch.sin(0.37 * (number + 1) * waves + number)
    return (1.0 + 0.5 * values if positive else 0.4 * values).reshape(tuple(shape)).float()


def record(name: str) -> dict[str, Any]:
    """A network of HydraGNN's with weights by rule, and what it predicts for :func:`structures`.

    Its entries `weights` and `positive` are shapes, in order, and `kept` values, by name.
    """
    potential = name in _POTENTIALS
    section = network(name, potential=potential, inputs=2, hidden_dim=7, activation_function="silu")
    graphs = structures(0, whole=name != "SchNet")
    model, config = train(section, graphs, 0)
    weights = dict(model.named_parameters())
    state = model.state_dict()
    positive = [key for key in state if key.endswith(_POSITIVE)]
    with torch.no_grad():
        for number, key in enumerate([*weights, *positive]):
            state[key].copy_(by_rule(number, state[key].shape, positive=key in positive))
    kept = {key: v.tolist() for key, v in state.items() if key not in {*weights, *positive}}
    outputs = hydragnn_outputs(model, section, graphs)
    return {
        "config": {"NeuralNetwork": config["NeuralNetwork"]},
        "weights": {key: list(state[key].shape) for key in weights},
        "positive": {key: list(state[key].shape) for key in positive},
        "kept": kept,
        "outputs": {key: value.detach().tolist() for key, value in outputs.items()},
    }


def train(
    section: dict[str, Any], graphs: list[Data], seed: int
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model of HydraGNN's that has seen the graphs, and its whole configuration.

    Passes in training mode give its normalisation something to have averaged.
    """
    inputs = len(section["Variables_of_interest"]["input_node_features"])
    loader = DataLoader([_read(graph, inputs) for graph in graphs], batch_size=GRAPHS)
    update_config = function("utils.input_config_parsing.config_utils", "update_config")
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        config = update_config({"NeuralNetwork": copy.deepcopy(section)}, loader, loader, loader)
        model: torch.nn.Module = function("models", "create_model_config")(config["NeuralNetwork"])
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
        for _ in range(5):
            model(_batch(graphs, inputs))
    return model.eval(), config


def write(file: Path, model: torch.nn.Module, config: dict[str, Any]) -> None:
    """Write a checkpoint and its configuration as HydraGNN does."""
    torch.save({"model_state_dict": model.state_dict(), "optimizer_state_dict": {}}, file)
    file.with_name("config.json").write_text(json.dumps(config), encoding="utf-8")


def hydragnn_outputs(
    model: torch.nn.Module, section: dict[str, Any], graphs: list[Data]
) -> dict[str, torch.Tensor]:
    """What HydraGNN's model predicts, by our names of the outputs."""
    batch = _batch(graphs, len(section["Variables_of_interest"]["input_node_features"]))
    if not section["Architecture"].get("enable_interatomic_potential"):
        with torch.no_grad():
            charge, gap = model(batch)
        return {"charge": charge, "gap": gap}
    batch.pos.requires_grad_(True)
    (of_atoms,) = model(batch)
    energy = torch.zeros(batch.num_graphs, 1).index_add(0, batch.batch, of_atoms)
    (gradient,) = torch.autograd.grad(energy.sum(), batch.pos)
    return {"energy": energy.detach(), "forces": -gradient}


def our_outputs(file: Path, graphs: list[Data]) -> dict[str, torch.Tensor]:
    """What our network predicts with the weights of a checkpoint of HydraGNN's."""
    origin = find_origin(StartConfig(path=file))
    model = build_model(origin.network, manifest_of(origin.network))
    assert isinstance(model, HydraModel)
    levels = origin.network["Variables_of_interest"]["type"]
    model.load_state_dict(read_hydragnn_weights(file, model, levels))
    batch = Batch.from_data_list([graph.clone() for graph in graphs])
    found = model.eval()(batch)
    return {name: value.detach().float() for name, value in found.items()}


def manifest_of(network: Mapping[str, Any]) -> Any:
    """Manifest of a store with the graphs, whose statistics must not matter."""
    found = manifest()
    keys = dict(found.keys)
    keys["dataset_name"] = keys["x"].model_copy(update={"node": False, "rows": 1, "shape": (1,)})
    labels = found.statistics.model_dump(include=set(LabelStatistics.model_fields))
    by_branch = {k: BranchStatistics(graphs=1, atoms=1, **labels) for k in (0, 1)}
    statistics = found.statistics.model_copy(update={"by_branch": by_branch})
    update = {"keys": keys, "branches": (0, 1), "statistics": statistics}
    return found.model_copy(update=update)


def _read(graph: Data, inputs: int) -> Data:
    """A graph with the columns that HydraGNN's data sets pick for the network."""
    picked = graph.clone()
    picked.x = graph.x[:, :inputs].float()
    return picked


def _batch(graphs: list[Data], inputs: int) -> Batch:
    batch = Batch.from_data_list([_read(graph, inputs) for graph in graphs])
    edges[0] = batch.edge_index
    return batch


if __name__ == "__main__":
    load(Path(sys.argv[1]))
    RECORDED.write_text(json.dumps({name: record(name) for name in EQUAL}) + "\n")
