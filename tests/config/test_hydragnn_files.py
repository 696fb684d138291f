"""HydraGNN's own JSON files, as users have them."""

import copy
import json
from pathlib import Path

import pytest
from page_cases import blocks

from hydragnn_flow import load_config
from hydragnn_flow.config import load_network
from hydragnn_flow.config.network import Architecture, HydraNetwork
from hydragnn_flow.config.network.hydragnn_keys import unused_keys
from hydragnn_flow.config.network.mpnn_types import MPNN_TYPES, READ_BY

# Every key HydraGNN reads, those included that its update_config adds when it saves a
# configuration, with values that ask for nothing that is not built here.
HYDRAGNN = json.loads(Path(__file__).with_name("hydragnn.json").read_text(encoding="utf-8"))


def section(values, path):
    inner = values["NeuralNetwork"]
    for key in filter(None, path.split(".")):
        inner = inner[key]
    return inner


def test_a_file_with_every_key_is_accepted_in_any_form(tmp_path):
    path = tmp_path / "hydragnn.json"
    path.write_text(json.dumps(HYDRAGNN))
    network = load_network(path)
    assert network.Architecture.mpnn_type == "PNA"
    assert network.Architecture.num_gaussians == 50
    assert [head.dim_headlayers for head in network.Architecture.output_heads.graph] == [(50, 25)]
    assert network.Architecture.task_weights == (1.0, 20.0)
    assert network.Variables_of_interest.output_names == ("energy", "forces")
    assert network.Variables_of_interest.output_dim == (1, 3)
    assert network.Training.Optimizer.learning_rate == 1e-3
    section = HYDRAGNN["NeuralNetwork"]
    for form in (str(path), HYDRAGNN, section, {"NeuralNetwork": section}):
        assert load_network(form) == network
    assert load_network(network) is network


def known(section, values):
    """Section and key of everything in HYDRAGNN."""
    for key, value in values.items():
        yield section, key
        if isinstance(value, dict):
            yield from known(f"{section}.{key}", value)


def test_every_key_hydragnn_reads_is_tried_here(tables):
    tried = set()
    for name in ("Architecture", "Variables_of_interest", "Training"):
        tried.update(known(name, HYDRAGNN["NeuralNetwork"][name]))
    read = tables.READ_BY_HYDRAGNN
    assert tried == {(name, key) for name, keys in read.items() for key in keys.split()}


OF_ALL_TYPES = {
    "num_gaussians": 10,
    "num_filters": 8,
    "num_radial": 5,
    "num_spherical": 2,
    "basis_emb_size": 8,
    "int_emb_size": 32,
    "out_emb_size": 16,
    "envelope_exponent": 6,
    "num_before_skip": 1,
    "num_after_skip": 1,
    "max_ell": 2,
    "node_max_ell": 2,
    "correlation": [2, 2, 2, 2],
    "radial_type": "chebyshev",
    "distance_transform": "Agnesi",
    "equivariance": True,
    "dropout": 0.1,
}


@pytest.mark.parametrize("mpnn_type", sorted(MPNN_TYPES))
def test_keys_of_other_types_may_stand(mpnn_type):
    values = copy.deepcopy(HYDRAGNN)
    section(values, "Architecture").update(OF_ALL_TYPES, mpnn_type=mpnn_type, edge_features=None)
    network = load_network(values)
    read = {key for key in OF_ALL_TYPES if key not in network.Architecture.unread()}
    assert read == {key for key, types in READ_BY.items() if mpnn_type in types}
    assert set(READ_BY) == set(OF_ALL_TYPES)
    effective = network.effective().Architecture
    for key in set(OF_ALL_TYPES) - read:
        assert getattr(effective, key) == Architecture.model_fields[key].default


@pytest.mark.parametrize("names", [["graph_energy"], ["energy"]])
def test_the_output_of_a_potential_is_the_energy_whatever_its_name(names, network, change):
    """HydraGNN does not read the name in this mode, and most of its files write graph_energy."""
    place = ("NeuralNetwork", "Variables_of_interest", "output_names")
    named = change(network, place, names)
    loaded = load_network(named)
    assert loaded.Variables_of_interest.output_names == ("energy",)
    assert HydraNetwork.model_validate_json(loaded.model_dump_json()) == loaded
    told = "Variables_of_interest.output_names" in unused_keys(named["NeuralNetwork"])
    assert told == (names != ["energy"])
    off = change(named, ("NeuralNetwork", "Architecture", "enable_interatomic_potential"), False)
    assert load_network(off).Variables_of_interest.output_names == tuple(names)


def test_keys_that_change_nothing_are_known_by_their_place():
    found = unused_keys(HYDRAGNN["NeuralNetwork"])
    assert {"Profile", "Architecture.pna_deg", "Training.perc_train"} <= found.keys()
    assert found["Architecture.periodic_boundary_conditions"].startswith("periodicity comes")
    without = copy.deepcopy(HYDRAGNN)
    for path in found:
        *place, key = path.split(".")
        del section(without, ".".join(place))[key]
    assert load_network(without) == load_network(HYDRAGNN)
    assert unused_keys(without["NeuralNetwork"]) == {}
    assert unused_keys({"Architecture": 3, "Training": {"Optimizer": []}}) == {}


THEIRS = Path("examples/multidataset_hpo_sc26/gfm_mlip.json")
LIKE_THEIRS = {"mpnn_type": "MACE", "enable_interatomic_potential": True, "edge_features": None}
LIKE_THEIRS |= {"output_heads": {"graph": {"num_headlayers": 3, "dim_headlayers": [128] * 3}}}
LIKE_THEIRS |= {"task_weights": [1.0], "energy_peratom_weight": 1.0, "force_weight": 10.0}
OUTPUTS = {"output_names": ["graph_energy"], "type": ["graph"]}
OUTPUTS |= {"output_index": [0], "output_dim": [1]}


@pytest.mark.parametrize("whose", ["like theirs", "theirs"])
def test_the_campaign_of_the_page_is_one(tmp_path, pytestconfig, whose):
    """That of docs/migration.md, with a network like HydraGNN's and with HydraGNN's own file."""
    network = copy.deepcopy(HYDRAGNN)
    network["NeuralNetwork"]["Architecture"] |= LIKE_THEIRS
    network["NeuralNetwork"]["Variables_of_interest"] |= OUTPUTS
    if whose == "theirs":
        checkout = pytestconfig.getoption("--hydragnn")
        if checkout is None:
            pytest.skip("needs a checkout of HydraGNN, named by --hydragnn=PATH")
        network = json.loads((checkout / THEIRS).read_text(encoding="utf-8"))
    # What the page says has to be settled.
    section = network["NeuralNetwork"]
    section["Training"] |= {"num_epoch": 20, "batch_size": 200}
    section["Architecture"] |= {"truncated_neighbours": "allow", "activation_function": "silu"}
    (tmp_path / "gfm_mlip.json").write_text(json.dumps(network), encoding="utf-8")
    (text,) = (block.text for block in blocks("text") if block.text.startswith("name: gfm"))
    (tmp_path / "gfm.yaml").write_text(text, encoding="utf-8")
    config = load_config(tmp_path / "gfm.yaml")
    assert config.search.trials == 200
    parameters = {
        "Architecture.mpnn_type": "SchNet",
        "Architecture.num_conv_layers": 3,
        "Architecture.hidden_dim": 256,
        "Architecture.output_heads.graph.num_headlayers": 2,
        "Architecture.output_heads.graph.dim_headlayers": 300,
        "Architecture.force_weight": 50.0,
        "Training.Optimizer.learning_rate": 1e-4,
    }
    assert config.search.space.keys() == parameters.keys()
    trial = config.network_with(parameters)
    heads = trial.Architecture.output_heads.graph
    assert [head.dim_headlayers[: head.num_headlayers] for head in heads] == [(300, 300)] * 3
