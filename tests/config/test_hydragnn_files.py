"""HydraGNN's own JSON files, as users have them."""

import copy
import json
from pathlib import Path

import pytest

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
    tried = {
        place
        for name in ("Architecture", "Variables_of_interest", "Training")
        for place in known(name, HYDRAGNN["NeuralNetwork"][name])
    }
    read = tables.READ_BY_HYDRAGNN
    assert tried == {(name, key) for name, keys in read.items() for key in keys.split()}


@pytest.mark.parametrize("mpnn_type", sorted(MPNN_TYPES))
def test_keys_of_other_types_may_stand(mpnn_type):
    values = copy.deepcopy(HYDRAGNN)
    of_all_types = {
        "equivariance": True,
        "num_gaussians": 10,
        "num_filters": 8,
        "num_radial": 5,
        "num_spherical": 2,
        "basis_emb_size": 8,
        "int_emb_size": 32,
        "out_emb_size": 16,
        "num_before_skip": 1,
        "num_after_skip": 1,
        "envelope_exponent": 6,
        "max_ell": 2,
        "node_max_ell": 2,
        "correlation": [2, 2, 2, 2],
        "radial_type": "chebyshev",
        "distance_transform": "Agnesi",
        "dropout": 0.1,
    }
    section(values, "Architecture").update(of_all_types, mpnn_type=mpnn_type, edge_features=None)
    network = load_network(values)
    read = {key for key in of_all_types if key not in network.Architecture.unread()}
    assert read == {key for key, types in READ_BY.items() if mpnn_type in types}
    assert set(READ_BY) == set(of_all_types)
    effective = network.effective().Architecture
    for key in set(of_all_types) - read:
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
