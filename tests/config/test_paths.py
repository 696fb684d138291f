"""Paths of a search space, into lists and branches as well."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.config import load_config
from hydragnn_flow.config.run import set_path, value_at
from hydragnn_flow.errors import InputError

HEADS = "Architecture.output_heads.graph"
HEAD = {"num_sharedlayers": 1, "num_headlayers": 2, "dim_headlayers": [50, 25]}


def branched(n):
    heads = [{"type": f"branch-{i}", "architecture": copy.deepcopy(HEAD)} for i in range(n)]
    return {"Architecture": {"output_heads": {"graph": heads}}}


def heads(values):
    return [branch["architecture"] for branch in values["Architecture"]["output_heads"]["graph"]]


@given(st.integers(1, 5), st.data())
def test_a_number_is_one_place_and_a_name_all_of_them(n, data):
    values, chosen = branched(n), data.draw(st.integers(0, n - 1))
    entered = data.draw(st.sampled_from(["", ".architecture"]))
    set_path(values, f"{HEADS}{entered}.dim_headlayers", 7)
    assert [head["dim_headlayers"] for head in heads(values)] == [[7, 7]] * n
    set_path(values, path := f"{HEADS}.{chosen}{entered}.dim_headlayers.1", 9)
    assert value_at(values, path) == 9
    set_path(values, f"{HEADS}.{chosen}{entered}.num_headlayers", 1)
    for i, head in enumerate(heads(values)):
        assert head["dim_headlayers"] == ([7, 9] if i == chosen else [7, 7])
        assert head["num_headlayers"] == (1 if i == chosen else 2)
        assert head["num_sharedlayers"] == 1


def test_a_path_into_heads_is_the_same_for_one_branch_and_for_several():
    one = {"Architecture": {"output_heads": {"graph": copy.deepcopy(HEAD)}}}
    for values in (one, several := branched(2)):
        set_path(values, f"{HEADS}.dim_headlayers", 3)
    assert [one["Architecture"]["output_heads"]["graph"]] * 2 == heads(several)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (f"{HEADS}.2.num_headlayers", "asks for place 2 of a list of 2"),
        (f"{HEADS}.dim_headlayers.2", "asks for place 2 of a list of 2"),
        (f"{HEADS}.dim_headlayers.first", "does not lead into a mapping or a list"),
        (f"{HEADS}.num_headlayers.x", "does not lead into a mapping or a list"),
        ("Architecture.empty.x", "leads into a list that is empty"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(path, said):
    values = branched(2)
    values["Architecture"]["empty"] = []
    with pytest.raises(InputError, match=said) as error:
        set_path(values, path, 1)
    assert str(error.value).startswith(f"network: {path!r} ")


def test_a_space_widens_heads_of_branches(quickstart, change, write):
    of_all = "Architecture.output_heads.node.architecture.dim_headlayers"
    of_one = "Architecture.output_heads.node.1.num_headlayers"
    head = {"num_headlayers": 1, "dim_headlayers": [8, 8], "type": "mlp"}
    two = [{"type": f"branch-{i}", "architecture": head} for i in range(2)]
    place = ("network", "NeuralNetwork", "Architecture", "output_heads")
    values = change(quickstart, place, {"node": two})
    values["search"]["space"] = {of_all: {"choices": [16, 32]}, of_one: {"int": [1, 2]}}
    values["search"]["enqueue"] = [{of_all: 32, of_one: 2}]
    config = load_config(write(values))
    node = config.network_with(config.search.enqueue[0]).Architecture.output_heads.node
    assert [head.dim_headlayers for head in node] == [(32, 32)] * 2
    assert [head.num_headlayers for head in node] == [1, 2]
    untouched = config.network_with({}).Architecture.output_heads.node
    assert [head.dim_headlayers for head in untouched] == [(8, 8)] * 2  # the file's, still
