"""Weights of HydraGNN's give the outputs that HydraGNN gives: recorded, and of a checkout."""

import json
from pathlib import Path

import pytest
import torch
from ase.build import bulk
from hydragnn_weight_cases import (
    RECORDED,
    by_rule,
    compare,
    largest_difference,
    manifest_of,
    network,
    our_outputs,
    structures,
)

from hydragnn_flow.config import load_network
from hydragnn_flow.config.network.hydragnn_layers import DIFFERENT, EQUAL, as_hydragnn_has_it
from hydragnn_flow.config.network.mpnn_types import MPNN_TYPES
from hydragnn_flow.config.start_from import StartConfig, find_origin
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model
from hydragnn_flow.models.hydragnn.weights import read_hydragnn_weights
from hydragnn_flow.testing.networks import alloy, as_batch

OUTPUTS = json.loads(RECORDED.read_text())
CLOSE = 1e-5


def write(folder, name, **changes):
    """The recorded checkpoint of a type, with some of its weights replaced or left out."""
    found = OUTPUTS[name]
    state = {key: torch.tensor(values) for key, values in found["kept"].items()}
    for number, (key, shape) in enumerate([*found["weights"].items(), *found["positive"].items()]):
        state[key] = by_rule(number, shape, positive=key in found["positive"])
    state |= changes
    file = folder / "trained.pk"
    # DDP puts a word before each name, and HydraGNN's wrapper of potentials another.
    state = {f"module.model.{key}": value for key, value in state.items() if value is not None}
    torch.save({"model_state_dict": state, "optimizer_state_dict": {}}, file)
    file.with_name("config.json").write_text(json.dumps(found["config"]))
    return file


def model_of(file):
    origin = find_origin(StartConfig(path=file))
    levels = origin.network["Variables_of_interest"]["type"]
    return build_model(origin.network, manifest_of(origin.network)), levels


@pytest.mark.parametrize("name", EQUAL)
def test_outputs_are_those_that_were_recorded(name, tmp_path):
    given = our_outputs(write(tmp_path, name), structures(0, whole=name != "SchNet"))
    expected = {key: torch.tensor(values) for key, values in OUTPUTS[name]["outputs"].items()}
    assert largest_difference(given, expected) < CLOSE


@pytest.mark.parametrize("name", EQUAL)
def test_they_are_trained_on(name, tmp_path):
    """Gradients reach all parameters and are finite, on an ideal lattice too."""
    model, _ = model_of(write(tmp_path, name))
    lattice = as_batch(bulk("Cu", "fcc", a=3.6, cubic=True), alloy())
    lattice.dataset_name = torch.tensor([[0], [1]])
    outputs = model.train()(lattice)
    sum(value.square().sum() for value in outputs.values()).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key


def test_outputs_are_those_of_a_checkout(request):
    checkout = request.config.getoption("--hydragnn")
    if checkout is None:
        pytest.skip("needs a checkout of HydraGNN, named by --hydragnn=PATH")
    differences = compare(checkout)
    assert all(value < CLOSE for value in differences.values()), differences


def test_runs_recorded_with_the_former_path_are_read(tmp_path):
    values = as_hydragnn_has_it(network("EGNN"), tmp_path / "a.pk")
    values["Architecture"]["mpnn_type"] = "hydragnn_flow.models.hydragnn_layers:EGNN"
    assert load_network(values).Architecture.mpnn_type.endswith(":EGNN")


def test_every_type_is_read_or_refused():
    assert {*EQUAL, *DIFFERENT} == MPNN_TYPES.keys()


@pytest.mark.parametrize("name", DIFFERENT)
def test_other_types_are_refused_by_name(name):
    with pytest.raises(InputError, match=rf"a\.pk is a {name} of HydraGNN's.*{DIFFERENT[name]}"):
        as_hydragnn_has_it(network(name), Path("a.pk"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"global_attn_engine": "GPS"}, "global_attn_engine"),
        ({"edge_features": ["lengths"]}, "edge_features"),
        ({"use_graph_attr_conditioning": True}, "use_graph_attr_conditioning"),
        ({"potential": True, "output_heads": {"graph": {}}}, None),
    ],
)
def test_what_computes_otherwise_is_refused(changes, words):
    section = network("EGNN", **changes)
    if words is None:
        section["Variables_of_interest"]["type"] = ["graph"]
        words = "a graph head of a potential"
    with pytest.raises(InputError, match=rf"a\.pk was trained with {words}"):
        as_hydragnn_has_it(section, Path("a.pk"))


@pytest.mark.parametrize("key", ["x_minmax", "y_minmax", "denormalize_output"])
def test_scaled_data_are_refused(key):
    section = network("EGNN")
    section["Variables_of_interest"][key] = [[0.0], [1.0]]
    with pytest.raises(InputError, match=r"a\.pk was trained with .*, so it"):
        as_hydragnn_has_it(section, Path("a.pk"))


def test_heads_that_are_not_wanted_may_be_any():
    section = network("EGNN")
    section["Training"]["loss_function_type"] = "GaussianNLLLoss"
    with pytest.raises(InputError, match="GaussianNLLLoss"):
        as_hydragnn_has_it(section, Path("a.pk"))
    found = as_hydragnn_has_it(section, Path("a.pk"), heads="new")
    assert found["Architecture"]["mpnn_type"].endswith(":EGNN")


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    missing = write(tmp_path, "SAGE", **{"graph_convs.1.module_0.lin_l.weight": None})
    with pytest.raises(InputError, match=r"trained\.pk is of another network.*lin_l\.weight"):
        read_hydragnn_weights(missing, *model_of(missing))
    more = write(tmp_path, "SAGE", **{"graph_convs.7.module_0.lin_l.weight": torch.zeros(1)})
    with pytest.raises(InputError, match=r"nothing reads its graph_convs\.7"):
        read_hydragnn_weights(more, *model_of(more))


def test_a_damaged_checkpoint_is_refused(tmp_path):
    file = write(tmp_path, "SAGE")
    model = model_of(file)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"trained\.pk is no readable checkpoint of HydraGNN's"):
        read_hydragnn_weights(file, *model)
    torch.save({"weights": {}}, file)
    with pytest.raises(InputError, match=r"trained\.pk is no readable checkpoint of HydraGNN's"):
        read_hydragnn_weights(file, *model)
