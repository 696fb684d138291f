"""Every network file of a HydraGNN checkout, ``pytest --hydragnn=PATH-OF-A-CHECKOUT``; and, without
one, the kinds of keys that those files use."""

import copy

import pytest
from hydragnn_file_cases import DRIVERS_ADD, check_file, check_network

from hydragnn_flow.config import load_network
from hydragnn_flow.config.network import HydraNetwork
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
    return path


def files(checkout):
    """All configurations of a checkout; other JSON files have no such section."""
    every = sorted(checkout.rglob("*.json"))
    ours = [file for file in every if '"NeuralNetwork"' in file.read_text(encoding="utf-8")]
    return [file.relative_to(checkout).as_posix() for file in ours]


def test_its_files_are_accepted_or_refused_for_a_reason(checkout):
    accepted, refused = {}, {}
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


# Kinds of keys, in the smallest network that has them.

HEAD = {"num_headlayers": 1, "dim_headlayers": [4]}
GRAPH_HEAD = {"num_sharedlayers": 1, "dim_sharedlayers": 4, **HEAD}
ARCHITECTURE = {"mpnn_type": "EGNN", "radius": 5.0, "max_neighbours": 20, "hidden_dim": 8}
ARCHITECTURE |= {"num_conv_layers": 2, "periodic_boundary_conditions": False}
ARCHITECTURE |= {"output_heads": {"graph": GRAPH_HEAD}, "task_weights": [1.0]}
VARIABLES = {"input_node_features": [0], "output_names": ["energy_per_atom"], "type": ["graph"]}
TRAINING = {"num_epoch": 2, "perc_train": 0.7, "batch_size": 32, "loss_function_type": "mae"}
BASE = {
    "Architecture": ARCHITECTURE,
    "Variables_of_interest": VARIABLES | {"output_index": [0], "denormalize_output": False},
    "Training": TRAINING | {"Optimizer": {"type": "AdamW", "learning_rate": 1e-3}},
}
PE = {"global_attn_engine": "GPS", "global_attn_type": "multihead", "global_attn_heads": 4}
BRANCHES = [{"type": f"branch-{i}", "architecture": GRAPH_HEAD} for i in range(3)]
NODE_BRANCHES = [{"type": f"branch-{i}", "architecture": HEAD} for i in range(3)]
TWO = {"output_names": ["energy", "forces"], "type": ["graph", "node"]}
TWO |= {"output_index": [0, 2], "output_dim": [1, 3]}
POTENTIAL = {"enable_interatomic_potential": True, "activation_function": "silu"}
POTENTIAL |= {"output_heads": {"node": {**HEAD, "type": "mlp"}}}
OF_POTENTIAL = {"output_names": ["graph_energy"], "output_dim": [1], "type": ["node"]}
CHARGE_AND_SPIN = {"use_graph_attr_conditioning": True}
OF_ATOMS = {"mode": "node_budget", "max_nodes": 64, "max_graphs": 8, "shuffle": True}
WEIGHTS = {"energy_peratom_weight": 1.0, "force_weight": 10.0}

KINDS = {
    "the first output of y, columns of x and lengths by any of their names": (
        {"edge_features": ["bond_length"]},
        {"input_node_features": [0, 1, 2, 3]},
    ),
    "features by their index": (
        {"output_heads": {"graph": GRAPH_HEAD, "node": HEAD}},
        {**TWO, "graph_feature_dims": [1], "node_feature_dims": [1, 3, 3]},
    ),
    "a spectrum": ({}, {"output_dim": [500]}),
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
    "a potential with encodings and no weights": ({**POTENTIAL, **PE, "pe_dim": 2}, OF_POTENTIAL),
    "a potential with branches": (
        {**POTENTIAL, "output_heads": {"node": NODE_BRANCHES}},
        OF_POTENTIAL,
    ),
    "a potential with charge and spin": (
        POTENTIAL
        | {"mpnn_type": "MACE", "correlation": [2, 2], "graph_pooling": "add", **WEIGHTS}
        | {**CHARGE_AND_SPIN, "graph_attr_conditioning_mode": "concat_node"}
        | {"output_heads": {"graph": GRAPH_HEAD}},
        {**OF_POTENTIAL, "type": ["graph"]},
    ),
    "charge and spin, batches of so many atoms, and uncertain outputs": (
        {**CHARGE_AND_SPIN, "graph_attr_conditioning_mode": "fuse_pool"},
        {},
        {"loss_function_type": "GaussianNLLLoss", "precision": "fp64", "Batching": OF_ATOMS},
    ),
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
    ("changes", "said"),
    [({"output_names": ["x"]}, TAKEN), ({"output_index": [0, 1]}, "output_index needs one entry")],
)
def test_what_cannot_train_is_refused_with_the_key(changes, said):
    found = check_network(BASE | {"Variables_of_interest": BASE["Variables_of_interest"] | changes})
    assert found.outcome == "is refused" and said in found.reason, found
    assert "\n" not in found.reason
