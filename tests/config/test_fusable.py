"""Fused members are refused where no network of the campaign can be one."""

import copy

import pytest
from campaign_cases import CONFIG
from segment_cases import network_with

from hydragnn_flow.config import RunConfig

LEARNING_RATE = {"Training.Optimizer.learning_rate": {"float": [1e-3, 1e-2]}}


def config(network, **sections):
    values = copy.deepcopy(CONFIG)
    values |= {"network": network, "resources": {"fused_members": 4}}
    values["search"]["space"] = LEARNING_RATE
    for name, changes in sections.items():
        values[name] |= changes
    return RunConfig.model_validate(values)


@pytest.mark.parametrize(
    ("network", "sections", "reason"),
    [
        ({"Architecture__mpnn_type": "MACE"}, {}, "networks of the type MACE cannot be fused"),
        ({"Training__Optimizer__type": "Adagrad"}, {}, "optimiser Adagrad cannot be fused"),
        ({"Training__precision": "bf16"}, {}, "training in bf16 cannot be fused"),
        ({}, {"data": {"mode": "stream"}}, "streamed"),
        ({}, {"search": {"budget": {"seconds": 60.0}}, "ensemble": {"epochs": 8}}, "by time"),
    ],
)
def test_what_cannot_be_fused_is_refused_before_anything_starts(network, sections, reason):
    if "ensemble" in sections:
        sections = {**sections, "ensemble": {"epochs": None, "budget": {"seconds": 90.0}}}
    with pytest.raises(ValueError, match=rf"resources\.fused_members: .*{reason}.*; remove it"):
        config(network_with(**network), **sections)


def test_a_search_that_has_other_types_too_is_not_refused():
    space = {"Architecture.mpnn_type": {"choices": ["MACE", "SchNet"]}}
    network = network_with(Architecture__mpnn_type="MACE")
    assert config(network, search={"space": space}).resources.fused_members == 4
    assert config(network_with()).resources.fused_members == 4
