"""`start_from`: its keys, and which weights are for which networks."""

import copy
from pathlib import Path

import pytest
from campaign_cases import CONFIG
from segment_cases import NETWORK

from hydragnn_flow.config.origins import StartConfig
from hydragnn_flow.config.run import resolve_config
from hydragnn_flow.errors import InputError

ENGINE = copy.deepcopy(NETWORK) | {"engine": "own_engine:build"}
ENGINE["Architecture"] = {"radius": 4.0, "enable_interatomic_potential": True, "force_weight": 1.0}


def resolved(start, network=NETWORK, **space):
    values = copy.deepcopy(CONFIG) | {"network": network, "start_from": start}
    values["search"]["space"] = {"Training.batch_size": {"choices": [2, 4]}, **space}
    return resolve_config(values, Path("/somewhere/run.yaml"))


def test_names_of_what_is_frozen():
    assert StartConfig(path=Path("a")).frozen == ()
    assert StartConfig(path=Path("a"), freeze=("x.y",)).frozen == ("x.y",)
    assert "encoder.layers" in StartConfig(path=Path("a"), freeze="encoder").frozen


def test_a_path_is_relative_to_the_file():
    for start in ("runs/a", {"path": "runs/a"}):
        assert resolved(start).start_from == StartConfig(path=Path("/somewhere/runs/a"))


@pytest.mark.parametrize(
    ("start", "space", "words"),
    [
        ("a.pt", "", r"start_from: .*a\.pt is of a network that is built here"),
        ({"path": "a.pk", "freeze": "encoder"}, "", r"start_from\.freeze: .*\[network\.model\]"),
        ("a.pk", "Architecture.width", r"search\.space\.Architecture\.width: .*a\.pk.*remove it"),
    ],
)
def test_what_an_engine_cannot_begin_with(start, space, words):
    varied = {space: {"int": [4, 8]}} if space else {}
    with pytest.raises(InputError, match=words):
        resolved(start, ENGINE, **varied)


def test_a_search_with_an_engine_may_vary_how_it_trains():
    weights = {"Architecture.force_weight": {"float": [0.5, 2.0]}}
    config = resolved({"path": "a.pk", "freeze": ["network.element"]}, ENGINE, **weights)
    assert config.start_from.frozen == ("network.element",)
