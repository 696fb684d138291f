"""HydraGNN's own JSON files, as users have them."""

import copy
import json
from typing import Any

import pytest

from hydragnn_flow.config import load_network
from hydragnn_flow.config.network import (
    Architecture,
    BatchLimits,
    HydraNetwork,
    Optimizer,
    Training,
    VariablesOfInterest,
)
from hydragnn_flow.config.network.hydragnn_keys import IGNORED, REFUSED, unused_keys
from hydragnn_flow.config.network.mpnn_types import MPNN_TYPES, READ_BY
from hydragnn_flow.errors import InputError

# Every key HydraGNN reads, those included that its update_config adds when it saves a
# configuration, with values that ask for nothing that is not built here.
HYDRAGNN: dict[str, Any] = {
    "Verbosity": {"level": 2},
    "Dataset": {
        "name": "alloys",
        "format": "CFG",
        "path": {"total": "./dataset/alloys"},
        "compositional_stratified_splitting": True,
        "rotational_invariance": False,
        "normalize_features": False,
        "Descriptors": {"SphericalCoordinates": False, "PointPairFeatures": False},
        "node_features": {"name": ["Z"], "dim": [1], "column_index": [0]},
        "graph_features": {"name": ["energy"], "dim": [1], "column_index": [0]},
    },
    "NeuralNetwork": {
        "Profile": {"enable": 1, "target_epoch": 5},
        "Architecture": {
            "mpnn_type": "PNA",
            "hidden_dim": 50,
            "num_conv_layers": 4,
            "radius": 6.0,
            "max_neighbours": 20,
            "periodic_boundary_conditions": True,
            "edge_features": ["lengths"],
            "equivariance": False,
            "radial_type": None,
            "distance_transform": None,
            "num_gaussians": None,
            "num_filters": None,
            "envelope_exponent": None,
            "num_after_skip": None,
            "num_before_skip": None,
            "basis_emb_size": None,
            "int_emb_size": None,
            "out_emb_size": None,
            "num_radial": 5,
            "num_spherical": None,
            "max_ell": None,
            "node_max_ell": None,
            "correlation": None,
            "global_attn_engine": "",
            "global_attn_type": "multihead",
            "global_attn_heads": 8,
            "pe_dim": 6,
            "equivariant_attn_lmax": 1,
            "equivariant_attn_num_radial": 16,
            "equivariant_attn_feedforward_multiplier": 2,
            "equivariant_attn_allow_scalar_only": False,
            "equivariant_attn_require_tensor_coupling": True,
            "equivariant_attn_chunk_size": 512,
            "equivariant_attn_coupling_mode": "parallel",
            "activation_function": "lrelu_01",
            "graph_pooling": "add",
            "enable_interatomic_potential": False,
            "energy_weight": 0.0,
            "energy_peratom_weight": 0.0,
            "force_weight": 0.0,
            "freeze_conv_layers": False,
            "initial_bias": None,
            "SyncBatchNorm": False,
            "use_graph_attr_conditioning": False,
            "graph_attr_conditioning_mode": "concat_node",
            "input_dim": 1,
            "output_dim": [1, 3],
            "output_type": ["graph", "node"],
            "num_nodes": 32,
            "edge_dim": 1,
            "pna_deg": [0, 3, 9, 27],
            "avg_num_neighbors": None,
            "output_heads": {
                "graph": {
                    "num_sharedlayers": 2,
                    "dim_sharedlayers": 5,
                    "num_headlayers": 2,
                    "dim_headlayers": [50, 25],
                },
                "node": {"num_headlayers": 2, "dim_headlayers": [50, 25], "type": "mlp"},
            },
            "task_weights": [1.0, 20.0],
        },
        "Variables_of_interest": {
            "input_node_features": [0],
            "output_names": ["energy", "forces"],
            "output_index": [0, 0],
            "output_dim": [1, 3],
            "type": ["graph", "node"],
            "denormalize_output": False,
            "minmax_node_feature": [[0.0], [1.0]],
            "minmax_graph_feature": [[0.0], [1.0]],
            "x_minmax": [[0.0, 1.0]],
            "y_minmax": [[0.0, 1.0]],
            "subsample_percentage": None,
            "input_node_feature_dims": [1],
            "graph_feature_names": ["energy"],
            "graph_feature_dims": [1],
            "node_feature_names": ["Z", "forces"],
            "node_feature_dims": [1, 3],
        },
        "Training": {
            "num_epoch": 50,
            "batch_size": 64,
            "perc_train": 0.9,
            "EarlyStopping": False,
            "patience": 10,
            "Checkpoint": True,
            "checkpoint_warmup": 3,
            "CheckRemainingTime": False,
            "continue": 0,
            "startfrom": "existing_model",
            "epoch_start": 0,
            "conv_checkpointing": False,
            "global_attn_redraw_interval": 1000,
            "precision": "fp32",
            "loss_function_type": "mse",
            "Batching": {
                "mode": "node_budget",
                "max_nodes": 1024,
                "max_graphs": 64,
                "shuffle": True,
                "seed": 0,
                "oversized_sample": "error",
                "drop_last": False,
            },
            "Optimizer": {"type": "AdamW", "learning_rate": 1e-3, "use_zero_redundancy": False},
        },
    },
    "Visualization": {
        "plot_init_solution": True,
        "plot_hist_solution": False,
        "create_plots": True,
    },
}

# Section, key, a value that switches something on, and words of the reason or the remedy.
OFF_ONLY = [
    ("", "ds_config", {"train_batch_size": 8}, "DeepSpeed"),
    ("Architecture", "model_type", "SchNet", "write mpnn_type"),
    ("Variables_of_interest", "subsample_percentage", 0.1, "used whole"),
    ("Training", "continue", 1, "same command"),
    ("Training", "epoch_start", 5, "same command"),
    ("Training.Batching", "drop_last", True, "every graph"),
    ("Training.Batching", "seed", 1, "the run's seed"),
    ("Training.Batching", "shuffle", False, "shuffled anew"),
]


def section(values, path):
    inner = values["NeuralNetwork"]
    for key in filter(None, path.split(".")):
        inner = inner[key]
    return inner


def test_a_file_with_every_key_is_accepted_unchanged(tmp_path):
    path = tmp_path / "hydragnn.json"
    path.write_text(json.dumps(HYDRAGNN))
    network = load_network(path)
    assert network.Architecture.mpnn_type == "PNA"
    assert network.Architecture.num_gaussians == 50
    assert network.Architecture.output_heads.graph is not None
    assert [head.dim_headlayers for head in network.Architecture.output_heads.graph] == [(50, 25)]
    assert network.Architecture.task_weights == (1.0, 20.0)
    assert network.Variables_of_interest.output_names == ("energy", "forces")
    assert network.Variables_of_interest.output_dim == (1, 3)
    assert network.Training.Optimizer.learning_rate == 1e-3


def test_path_content_section_and_checked_configuration_are_the_same(tmp_path):
    path = tmp_path / "hydragnn.json"
    path.write_text(json.dumps(HYDRAGNN))
    network = load_network(str(path))
    assert load_network(HYDRAGNN) == network
    plain = {k: v for k, v in HYDRAGNN["NeuralNetwork"].items() if k != "Profile"}
    assert load_network(plain) == network
    assert load_network(network) is network


@pytest.mark.parametrize("key", ["Verbosity", "Dataset", "Visualization"])
def test_sections_of_hydragnns_drivers_may_be_absent(key):
    assert load_network({k: v for k, v in HYDRAGNN.items() if k != key}) == load_network(HYDRAGNN)


@pytest.mark.parametrize(("place", "key", "value", "reason"), OFF_ONLY)
def test_what_is_not_honoured_is_refused_by_name(place, key, value, reason, tmp_path):
    values = copy.deepcopy(HYDRAGNN)
    section(values, place)[key] = value
    path = tmp_path / "hydragnn.json"
    path.write_text(json.dumps(values))
    with pytest.raises(InputError) as caught:
        load_network(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: {place}{': ' if place else ''}{key!r} cannot be honoured")
    assert reason in message
    assert "\n" not in message


def test_every_key_of_the_architecture_can_be_left_out_or_is_asked_for():
    for key in HYDRAGNN["NeuralNetwork"]["Architecture"]:
        values = copy.deepcopy(HYDRAGNN)
        del section(values, "Architecture")[key]
        try:
            load_network(values)
        except InputError as error:
            assert key in str(error)


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


def test_no_key_is_read_and_dropped_at_once():
    sections = {
        "NeuralNetwork": HydraNetwork,
        "Architecture": Architecture,
        "Variables_of_interest": VariablesOfInterest,
        "Training": Training,
        "Optimizer": Optimizer,
        "Batching": BatchLimits,
    }
    assert set(sections) == set(IGNORED) == set(REFUSED)
    for name, section in sections.items():
        assert not set(section.model_fields) & (set(IGNORED[name]) | set(REFUSED[name]))
        assert not set(IGNORED[name]) & set(REFUSED[name])


@pytest.mark.parametrize("mpnn_type", ["schnet", "TransformerConv", ""])
def test_other_message_passing_types_are_refused(mpnn_type, network, change):
    place = ("NeuralNetwork", "Architecture", "mpnn_type")
    with pytest.raises(InputError, match=r"mpnn_type: (.*'SchNet', 'EGNN'|this key is required)"):
        load_network(change(network, place, mpnn_type))


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


def test_a_potential_needs_a_weight_and_one_output(network, change):
    unweighted = change(network, ("NeuralNetwork", "Architecture", "force_weight"), 0.0)
    place = ("NeuralNetwork", "Architecture", "energy_peratom_weight")
    with pytest.raises(InputError, match="energy_weight, energy_peratom_weight and force_weight"):
        load_network(change(unweighted, place, 0.0))
    two = change(network, ("NeuralNetwork", "Architecture", "task_weights"), [1.0, 1.0])
    two = change(two, ("NeuralNetwork", "Variables_of_interest", "type"), ["node", "node"])
    place = ("NeuralNetwork", "Variables_of_interest", "output_names")
    with pytest.raises(InputError, match="exactly one output"):
        load_network(change(two, place, ["energy", "forces"]))


@pytest.mark.parametrize("names", [["graph_energy"], ["energy"], ["total_energy"]])
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


def test_the_misspelt_early_stopping_of_a_file_of_hydragnns_is_accepted():
    values = copy.deepcopy(HYDRAGNN)
    section(values, "Training")["early_stopping"] = True
    assert load_network(values) == load_network(HYDRAGNN)
    assert "EarlyStopping" in unused_keys(values["NeuralNetwork"])["Training.early_stopping"]
