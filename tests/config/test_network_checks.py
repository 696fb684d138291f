"""Keys of a network that must fit each other, and the forms of its heads."""

import copy

import pytest

from hydragnn_flow.config import load_config, load_network
from hydragnn_flow.config.network import (
    Architecture,
    GraphHead,
    HydraNetwork,
    NodeHead,
    OutputHeads,
)
from hydragnn_flow.errors import InputError

GRAPH = {"num_sharedlayers": 1, "dim_sharedlayers": 8, "num_headlayers": 1, "dim_headlayers": [9]}
NODE = {"num_headlayers": 2, "dim_headlayers": [7, 6], "type": "conv"}


def architecture(network, **changes):
    """The network with keys of its Architecture set."""
    values = copy.deepcopy(network)
    values["NeuralNetwork"]["Architecture"] |= changes
    return values


def test_a_variance_does_not_fit_a_stress(network):
    values = copy.deepcopy(network)
    values["NeuralNetwork"]["Training"]["loss_function_type"] = "GaussianNLLLoss"
    load_network(values)
    values["NeuralNetwork"]["Architecture"]["stress_weight"] = 0.1
    with pytest.raises(InputError, match=r"GaussianNLLLoss.*set stress_weight to 0, or write"):
        load_network(values)


@pytest.mark.parametrize(
    ("given", "lengths", "columns"),
    [
        (None, False, ()),
        ([], False, ()),
        (["lengths"], True, ()),
        (["bond_length"], True, ()),
        (["length", "order", "conjugated"], True, (1, 2)),
        (["order"], False, (0,)),
    ],
)
def test_edge_features_are_lengths_or_columns(given, lengths, columns, network):
    values = architecture(network, edge_features=given, enable_interatomic_potential=False)
    read = load_network(values).Architecture
    assert read.asks_for_lengths == lengths
    assert read.attribute_columns == columns


def test_what_users_write_for_no_attention_and_no_limit_is_accepted(network):
    off = {"global_attn_engine": "", "global_attn_type": "", "global_attn_heads": 0, "pe_dim": 1}
    read = load_network(architecture(network, **off, max_neighbours=100000, radius=7)).Architecture
    assert read.global_attn_engine is None
    assert (read.max_neighbours, read.radius) == (100000, 7.0)


@pytest.mark.parametrize("chunk", [None, 7])
def test_equivariant_attention_may_be_in_one_chunk(chunk, network):
    """HydraGNN writes null for it, and for other keys that are not given."""
    engine = {"global_attn_engine": "EquivariantTransformer", "equivariant_attn_chunk_size": chunk}
    values = architecture(network, mpnn_type="PAINN", equivariant_attn_lmax=None, **engine)
    read = load_network(values)
    assert read.Architecture.equivariant_attn_chunk_size == chunk
    assert HydraNetwork.model_validate_json(read.model_dump_json()) == read


def test_each_engine_reads_keys_of_its_own(network):
    def unread(engine):
        given = {"mpnn_type": "PAINN", "global_attn_engine": engine}
        found = load_network(architecture(network, **given)).Architecture.unread()
        of_others = ("global_attn", "equivariant_attn", "pe_dim", "dropout")
        return {key for key in found if key.startswith(of_others)}

    equivariant = {key for key in Architecture.model_fields if key.startswith("equivariant_attn")}
    assert unread("GPS") == equivariant
    assert unread("EquivariantTransformer") == {"global_attn_type", "pe_dim", "dropout"}
    assert unread("") == equivariant | {
        "global_attn_type",
        "global_attn_heads",
        "pe_dim",
        "dropout",
    }


def branches(*heads):
    """HydraGNN's form of several branches, the last one first."""
    named = [{"type": f"branch-{n}", "architecture": head} for n, head in enumerate(heads)]
    return named[::-1]


def test_one_mapping_is_one_branch():
    heads = OutputHeads.model_validate({"graph": GRAPH, "node": branches(NODE)})
    assert heads.graph == (GraphHead.model_validate(GRAPH),)
    assert heads.node == (NodeHead.model_validate(NODE),)
    assert heads.branches == 1
    assert heads.model_dump(mode="json") == {"graph": GRAPH, "node": NODE}


def test_branches_are_read_in_order_and_written_back():
    other = GRAPH | {"dim_headlayers": [3]}
    heads = OutputHeads.model_validate({"graph": branches(GRAPH, other, GRAPH)})
    assert heads.graph is not None
    assert [head.dim_headlayers for head in heads.graph] == [(9,), (3,), (9,)]
    assert heads.branches == 3
    written = heads.model_dump(mode="json")
    assert written["graph"] == branches(GRAPH, other, GRAPH)[::-1]
    assert OutputHeads.model_validate(written) == heads
    assert OutputHeads.model_validate_json(heads.model_dump_json()) == heads


def test_a_checked_network_reads_back_the_same(network):
    heads = {"node": branches(NODE, NODE)}
    read = load_network(architecture(network, output_heads=heads, edge_features=["lengths"]))
    assert HydraNetwork.model_validate_json(read.model_dump_json()) == read
    assert load_network(read.model_dump()) == read


HEADS = {"Architecture.global_attn_heads": {"choices": [4, 6]}}
ENGINE = {"Architecture.global_attn_engine": {"choices": ["", "GPS"]}}
WITH_ENGINE = {"when": {"Architecture.global_attn_engine": ["GPS"]}}


def searched(quickstart, space, **base):
    """The quickstart with another search space, and keys of its Architecture set."""
    values = copy.deepcopy(quickstart)
    values["search"]["space"] = space
    values["network"] = architecture(values["network"], **base)
    return values


def test_parameters_are_tried_where_they_exist(quickstart, write):
    # 6 heads do not share a width of 64, but the engine that asks for them comes from the search
    heads = {
        "Architecture.global_attn_heads": HEADS["Architecture.global_attn_heads"] | WITH_ENGINE
    }
    path = write(searched(quickstart, ENGINE | heads))
    with pytest.raises(InputError, match=r"hidden_dim = 64 cannot be divided among .* = 6"):
        load_config(path)
    width = {"Architecture.hidden_dim": {"choices": [48, 96]}}
    assert load_config(write(searched(quickstart, ENGINE | heads, hidden_dim=48)))
    assert load_config(write(searched(quickstart, ENGINE | width | heads, hidden_dim=48)))


@pytest.mark.parametrize(
    ("space", "said"),
    [
        # both ends are multiples of 8, what lies between is not
        ({"Architecture.hidden_dim": {"int": [32, 64]}}, "hidden_dim = 33"),
        (
            {"Architecture.hidden_dim": {"choices": [48, 64]}} | HEADS,
            r"hidden_dim = 64 does not go with Architecture.global_attn_heads = 6",
        ),
    ],
)
def test_a_search_for_networks_that_cannot_be_is_refused(space, said, quickstart, write):
    base = {"global_attn_engine": "GPS", "global_attn_heads": 8, "hidden_dim": 48}
    with pytest.raises(InputError, match=said):
        load_config(write(searched(quickstart, space, **base)))


SCHEDULE = "Training.Scheduler.type"
SCALING = "Training.Optimizer.batch_scaling"
RATES = {"float": [1e-6, 1e-4], "log": True}


@pytest.mark.parametrize(
    ("name", "domain", "other", "read", "unread"),
    [
        ("Training.Scheduler.factor", {"choices": [0.3, 0.5]}, SCHEDULE, "ReduceLROnPlateau", 0),
        ("Training.Scheduler.patience", {"int": [2, 9]}, SCHEDULE, "ReduceLROnPlateau", "cosine"),
        ("Training.Scheduler.min_lr", RATES, SCHEDULE, "cosine", "one_cycle"),
        ("Training.Optimizer.reference_batch", {"choices": [8, 16]}, SCALING, "sqrt", "none"),
        ("Architecture.graph_pooling", {"choices": ["add", "mean"]}, "", "graph", "node"),
    ],
)
def test_a_parameter_that_nothing_reads_is_refused(
    name, domain, other, read, unread, quickstart, write
):
    for value, accepted in ((read, True), (unread or "constant", False)):
        values = searched(quickstart, {name: domain})
        section = values["network"]["NeuralNetwork"]
        if other:
            *parents, key = other.split(".")
            place = section
            for parent in parents:
                place = place.setdefault(parent, {})
            place[key] = value
            if other == SCALING:
                place["reference_batch"] = 4
        else:
            head = {"num_headlayers": 1, "dim_headlayers": [8]}
            section["Architecture"] |= {"output_heads": {value: head}, "graph_pooling": "add"}
            section["Variables_of_interest"]["type"] = [value]
        if accepted:
            assert load_config(write(values))
            continue
        with pytest.raises(InputError, match=rf"search\.space\.{name}: changes nothing"):
            load_config(write(values))


def test_a_parameter_some_types_read_may_be_searched_with_others(quickstart, write):
    types = {"Architecture.mpnn_type": {"choices": ["EGNN", "MACE"]}}
    degree = {"Architecture.max_ell": {"int": [1, 3]}}
    assert load_config(write(searched(quickstart, types | degree, mpnn_type="EGNN")))
    never = {"Architecture.max_ell": {"int": [1, 3], "when": {"Architecture.mpnn_type": ["EGNN"]}}}
    with pytest.raises(InputError, match="max_ell: changes nothing"):
        load_config(write(searched(quickstart, types | never, mpnn_type="EGNN")))
