"""Every network file of a HydraGNN checkout, ``pytest --hydragnn=PATH-OF-A-CHECKOUT``; and, without
one, the kinds of keys that those files use."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hydragnn_file_cases import DRIVERS_ADD, check_file, check_network

from hydragnn_flow.config import NetworkConfig, load_network
from hydragnn_flow.config.network import HydraNetwork, network_section
from hydragnn_flow.errors import InputError

# Each file that is refused, and words of the reason.
TAKEN = "output_names: 'x' means something else in a graph; choose another name"
REFUSED = {
    "examples/qcml/qcml_forces.json": "is not valid JSON",
    "tests/inputs/ci_conv_head.json": TAKEN,
    "tests/inputs/ci_multihead.json": TAKEN,
    "tests/inputs/ci_vectoroutput.json": TAKEN,
}
# Their drivers make graphs of SMILES, whose edges are bonds; a campaign wants a radius.
WITHOUT_RADIUS = {*DRIVERS_ADD, "examples/dftb_uv_spectrum/dftb_smooth_uv_spectrum.json"}


@pytest.fixture(scope="module")
def checkout(request):
    path = request.config.getoption("--hydragnn")
    if path is None:
        pytest.skip("needs a checkout of HydraGNN, named by --hydragnn=PATH")
    assert isinstance(path, Path)
    return path


def files(checkout):
    """All configurations of a checkout; other JSON files have no such section."""
    every = sorted(checkout.rglob("*.json"))
    return [
        file.relative_to(checkout).as_posix()
        for file in every
        if '"NeuralNetwork"' in file.read_text(encoding="utf-8")
    ]


def test_its_files_are_accepted_or_refused_for_a_reason(checkout):
    accepted: dict[str, NetworkConfig] = {}
    refused: dict[str, str] = {}
    for name in files(checkout):
        try:
            accepted[name] = load_network(checkout / name)
        except InputError as error:
            refused[name] = str(error)
    assert refused.keys() == {*DRIVERS_ADD, "examples/qcml/qcml_forces.json"}
    for name in DRIVERS_ADD:
        assert "output_names: this key is required" in refused[name]
    assert len(accepted) >= 58
    for network in accepted.values():
        assert HydraNetwork.model_validate_json(network.model_dump_json()) == network


@pytest.mark.slow
def test_what_is_accepted_trains(checkout):
    wrong = {}
    for name in files(checkout):
        found = check_file(checkout, name)
        if name in REFUSED:
            right = found.outcome == "is refused" and REFUSED[name] in found.reason
        elif name in WITHOUT_RADIUS:
            right = found.outcome == "trains with additions" and "radius" in found.additions
        else:
            right = found.outcome == "trains"
        if not right:
            wrong[name] = found
    assert wrong == {}


def test_a_target_called_as_an_input_trains_by_another_name(checkout):
    names = [name for name, why in REFUSED.items() if why == TAKEN]
    assert names
    for name in names:
        whole = json.loads((checkout / name).read_text())
        network = copy.deepcopy(network_section(whole, name))
        asked = network["Variables_of_interest"]
        asked["output_names"] = [one.replace("x", "x_", 1) for one in asked["output_names"]]
        asked |= {
            f"{level}_feature_dims": whole["Dataset"][f"{level}_features"]["dim"]
            for level in ("graph", "node")
        }
        assert check_network(network, name).outcome == "trains"


# Kinds of keys, in the smallest network that has them.

HEAD = {"num_headlayers": 1, "dim_headlayers": [4]}
GRAPH_HEAD = {"num_sharedlayers": 1, "dim_sharedlayers": 4, **HEAD}
BASE: dict[str, Any] = {
    "Architecture": {
        "mpnn_type": "EGNN",
        "radius": 5.0,
        "max_neighbours": 20,
        "periodic_boundary_conditions": False,
        "hidden_dim": 8,
        "num_conv_layers": 2,
        "output_heads": {"graph": GRAPH_HEAD},
        "task_weights": [1.0],
    },
    "Variables_of_interest": {
        "input_node_features": [0],
        "output_names": ["energy_per_atom"],
        "output_index": [0],
        "type": ["graph"],
        "denormalize_output": False,
    },
    "Training": {
        "num_epoch": 2,
        "perc_train": 0.7,
        "batch_size": 32,
        "loss_function_type": "mae",
        "Optimizer": {"type": "AdamW", "learning_rate": 1e-3},
    },
}
PE = {"global_attn_engine": "GPS", "global_attn_type": "multihead", "global_attn_heads": 4}
BRANCHES = [{"type": f"branch-{i}", "architecture": GRAPH_HEAD} for i in range(3)]
NODE_BRANCHES = [{"type": f"branch-{i}", "architecture": HEAD} for i in range(3)]
TWO = {
    "output_names": ["energy", "forces"],
    "output_index": [0, 2],
    "output_dim": [1, 3],
    "type": ["graph", "node"],
}
POTENTIAL = {
    "enable_interatomic_potential": True,
    "activation_function": "silu",
    "output_heads": {"node": {**HEAD, "type": "mlp"}},
}
OF_POTENTIAL = {"output_names": ["graph_energy"], "output_dim": [1], "type": ["node"]}

KINDS: dict[str, tuple[dict[str, Any], ...]] = {
    "the first output of y": ({}, {}),
    "columns of x beside the element": ({}, {"input_node_features": [0, 1, 2, 3]}),
    "lengths by any of their names": ({"edge_features": ["bond_length"]}, {}),
    "several outputs": ({"output_heads": {"graph": GRAPH_HEAD, "node": HEAD}}, TWO),
    "features by their index": (
        {"output_heads": {"graph": GRAPH_HEAD, "node": HEAD}, "task_weights": [1.0, 1.0]},
        {**TWO, "graph_feature_dims": [1], "node_feature_dims": [1, 3, 3]},
    ),
    "a spectrum": ({}, {"output_dim": [500]}),
    "branches": ({"output_heads": {"graph": BRANCHES}}, {}),
    "branches of both levels": ({"output_heads": {"graph": BRANCHES, "node": NODE_BRANCHES}}, TWO),
    "a head by convolution": (
        {"output_heads": {"node": {**HEAD, "type": "conv"}}, "mpnn_type": "PNA"},
        {"output_names": ["charge_density"], "type": ["node"]},
    ),
    "a head for each place": (
        {"output_heads": {"node": {**HEAD, "type": "mlp_per_node"}}},
        {"output_names": ["spin"], "type": ["node"]},
    ),
    "attention with more encodings than atoms": ({**PE, "pe_dim": 6, "mpnn_type": "SchNet"}, {}),
    "empty words for no attention": (
        {"global_attn_engine": "", "global_attn_type": "", "global_attn_heads": 0, "pe_dim": 1},
        {},
    ),
    "charge and spin": (
        {"use_graph_attr_conditioning": True, "graph_attr_conditioning_mode": "fuse_pool"},
        {},
    ),
    "a potential without weights": (POTENTIAL, OF_POTENTIAL),
    "a potential with encodings": ({**POTENTIAL, **PE, "pe_dim": 2}, OF_POTENTIAL),
    "a potential with branches": (
        {**POTENTIAL, "output_heads": {"node": NODE_BRANCHES}},
        OF_POTENTIAL,
    ),
    "a potential with charge and spin": (
        {
            **POTENTIAL,
            "mpnn_type": "MACE",
            "max_ell": 1,
            "node_max_ell": 1,
            "correlation": [2, 2],
            "energy_peratom_weight": 1.0,
            "force_weight": 10.0,
            "use_graph_attr_conditioning": True,
            "graph_attr_conditioning_mode": "concat_node",
            "graph_pooling": "add",
            "output_heads": {"graph": GRAPH_HEAD},
        },
        {**OF_POTENTIAL, "type": ["graph"]},
    ),
    "a budget of atoms": (
        {},
        {},
        {"Batching": {"mode": "node_budget", "max_nodes": 64, "max_graphs": 8, "shuffle": True}},
    ),
    "uncertain outputs": ({}, {}, {"loss_function_type": "GaussianNLLLoss", "precision": "fp64"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_file_trains(kind):
    network = copy.deepcopy(BASE)
    for section, values in zip(BASE, KINDS[kind], strict=False):
        network[section] |= values
    asked = network["Variables_of_interest"]
    network["Architecture"]["task_weights"] = [1.0] * len(asked["type"])
    found = check_network(network)
    assert (found.outcome, found.reason) == ("trains", "")
    # Whoever brings such a file is told which keys do nothing here.
    assert found.said[0].startswith("network: keys that change nothing here: ")
    assert "Training.perc_train" in found.said[0]


@pytest.mark.parametrize(
    ("section", "changes", "said"),
    [
        ("Variables_of_interest", {"output_names": None}, "output_names: must be a list"),
        ("Variables_of_interest", {"output_names": ["x"]}, TAKEN),
        ("Variables_of_interest", {"output_index": [0, 1]}, "output_index needs one entry"),
        ("Architecture", {"radius": None}, "Architecture.radius [Å] is required"),
        ("Architecture", {"mpnn_type": "GIN"} | POTENTIAL, "it sees no lengths"),
    ],
)
def test_what_cannot_train_is_refused_with_the_key(section, changes, said):
    network = copy.deepcopy(BASE)
    network[section] |= changes
    found = check_network(network)
    assert found.outcome == "is refused" and said in found.reason, found
    assert "\n" not in found.reason
