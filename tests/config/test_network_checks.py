"""Keys of a network that must fit each other, and the forms of its heads."""

import copy
import sys

import pytest

from hydragnn_flow.config import load_config, load_network, run
from hydragnn_flow.config.network import Architecture, HydraNetwork
from hydragnn_flow.config.network.architecture import GraphHead, NodeHead, OutputHeads
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import couplings

GRAPH = {"num_sharedlayers": 1, "dim_sharedlayers": 8, "num_headlayers": 1, "dim_headlayers": [9]}
NODE = {"num_headlayers": 2, "dim_headlayers": [7, 6], "type": "conv"}


def architecture(network, **changes):
    """The network with keys of its Architecture set."""
    values = copy.deepcopy(network)
    values["NeuralNetwork"]["Architecture"] |= changes
    return values


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


def test_types_that_couple_features_need_an_extra_and_those_of_first_runs_do_not(
    network, quickstart, change, write, configs, tmp_path, monkeypatch
):
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    load_config(configs / "quickstart.yaml")  # types as of `init`
    kinds = ("search", "space", "Architecture.mpnn_type")
    searched = write(change(quickstart, kinds, {"choices": ["SchNet", "EGNN", "PNA", "MACE"]}))
    for path in (configs / "acac_mace.yaml", searched):
        with pytest.raises(InputError, match=r"MACE: e3nn is not installed.*flow\[e3nn\]"):
            load_config(path, data=tmp_path)
    load_network(architecture(network, mpnn_type="MACE"))  # as of a finished run, for its report


def test_networks_that_couple_features_say_what_they_lack(monkeypatch):
    monkeypatch.setitem(sys.modules, "e3nn", None)
    with pytest.raises(InputError, match="e3nn is not installed"):
        couplings.clebsch_gordan.__wrapped__(1, 1, 2)


def test_each_engine_reads_keys_of_its_own(network):
    def unread(engine):
        given = {"mpnn_type": "PAINN", "global_attn_engine": engine}
        found = load_network(architecture(network, **given)).Architecture.unread()
        of_others = ("global_attn", "equivariant_attn", "pe_dim", "dropout")
        return {key for key in found if key.startswith(of_others)}

    equivariant = {key for key in Architecture.model_fields if key.startswith("equivariant_attn")}
    assert unread("GPS") == equivariant
    assert unread("EquivariantTransformer") == {"global_attn_type", "pe_dim", "dropout"}
    of_any = {"global_attn_type", "global_attn_heads", "pe_dim", "dropout"}
    assert unread("") == equivariant | of_any


def branches(*heads):
    """HydraGNN's form of several branches, the last one first."""
    named = [{"type": f"branch-{n}", "architecture": head} for n, head in enumerate(heads)]
    return named[::-1]


def test_one_mapping_is_one_branch_and_several_are_read_in_order_and_written_back(network):
    heads = OutputHeads.model_validate({"graph": GRAPH, "node": branches(NODE)})
    assert heads.graph == (GraphHead.model_validate(GRAPH),)
    assert heads.node == (NodeHead.model_validate(NODE),)
    assert heads.branches == 1
    assert heads.model_dump(mode="json") == {"graph": GRAPH, "node": NODE}
    three = (GRAPH, GRAPH | {"dim_headlayers": [3]}, GRAPH)
    heads = OutputHeads.model_validate({"graph": branches(*three)})
    assert [head.dim_headlayers for head in heads.graph] == [(9,), (3,), (9,)]
    assert heads.branches == 3
    assert heads.model_dump(mode="json")["graph"] == branches(*three)[::-1]
    two = {"node": branches(NODE, NODE)}
    read = load_network(architecture(network, output_heads=two, edge_features=["lengths"]))
    assert HydraNetwork.model_validate_json(read.model_dump_json()) == read
    assert load_network(read.model_dump()) == read


def searched(quickstart, space, **base):
    """The quickstart with another search space, and keys of its Architecture set."""
    values = copy.deepcopy(quickstart)
    values["search"]["space"] = space
    values["network"] = architecture(values["network"], **base)
    return values


def test_parameters_are_tried_where_they_exist(quickstart, write):
    # 6 heads do not share a width of 64, but the engine that asks for them comes from the search
    engine = "Architecture.global_attn_engine"
    heads = {"choices": [4, 6], "when": {engine: ["GPS"]}}
    space = {engine: {"choices": ["", "GPS"]}, "Architecture.global_attn_heads": heads}
    with pytest.raises(InputError, match=r"hidden_dim = 64 cannot be divided among .* = 6"):
        load_config(write(searched(quickstart, space)))
    width = {"Architecture.hidden_dim": {"choices": [48, 96]}}
    assert load_config(write(searched(quickstart, space, hidden_dim=48)))
    assert load_config(write(searched(quickstart, width | space, hidden_dim=48)))


@pytest.mark.parametrize(
    ("name", "domain", "training"),
    [
        ("Scheduler.factor", {"choices": [0.3]}, {"Scheduler": {"type": "ReduceLROnPlateau"}}),
        ("Scheduler.patience", {"int": [2, 9]}, {"Scheduler": {"type": "ReduceLROnPlateau"}}),
        ("Scheduler.min_lr", {"float": [1e-6, 1e-4]}, {"Scheduler": {"type": "cosine"}}),
    ],
)
def test_a_parameter_may_be_searched_where_it_is_read(name, domain, training, quickstart, write):
    """The table of refusals has the same parameters where nothing reads them."""
    values = searched(quickstart, {f"Training.{name}": domain})
    values["network"]["NeuralNetwork"]["Training"] |= training
    assert load_config(write(values))


def test_a_parameter_that_some_trials_read_may_be_searched(quickstart, write):
    types = {"Architecture.mpnn_type": {"choices": ["EGNN", "MACE"]}}
    degree = {"Architecture.max_ell": {"int": [1, 3]}}
    assert load_config(write(searched(quickstart, types | degree, mpnn_type="EGNN")))
    head = {"graph": {"num_headlayers": 1, "dim_headlayers": [8]}}
    pooling = {"Architecture.graph_pooling": {"choices": ["add"]}}
    values = searched(quickstart, pooling, output_heads=head, graph_pooling="add")
    values["network"]["NeuralNetwork"]["Variables_of_interest"]["type"] = ["graph"]
    assert load_config(write(values))
