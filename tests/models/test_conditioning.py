"""Features of whole graphs, and layers that are not trained."""

import numpy as np
import pytest
import torch

from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model, network_cost
from hydragnn_flow.testing.networks import alloy, as_batch, network

FEATURES = [1.0, 2.0, 3.0], [0.0, 1.0, 0.0]
MODES = ["concat_node", "film", "fuse_pool"]


def _with_features(manifest, **described):
    key = manifest.keys["x"].model_copy(update={"node": False, **described})
    return manifest.model_copy(update={"keys": manifest.keys | {"graph_attr": key}})


@pytest.fixture
def conditioned(manifest):
    """Of a store whose graphs have three features."""
    return _with_features(manifest, shape=(), rows=3)


def _model(manifest, mode, mpnn_type="PNA", **options):
    torch.manual_seed(0)
    conditions = {"use_graph_attr_conditioning": True, "graph_attr_conditioning_mode": mode}
    return build_model(network(mpnn_type, **conditions, **options), manifest).double().eval()


def _batch(*features):
    batch = as_batch(*(alloy(number) for number in range(len(features))))
    batch.graph_attr = torch.tensor(features).flatten()
    return batch


@pytest.mark.parametrize("mode", MODES)
def test_features_act_on_their_own_graph(mode, conditioned):
    model = _model(conditioned, mode, potential=False)
    before = model(_batch(*FEATURES))
    after = model(_batch(FEATURES[0], [0.0, 1.0, 0.5]))
    assert torch.equal(after["gap"][0], before["gap"][0])
    assert not torch.equal(after["gap"][1], before["gap"][1])
    assert torch.equal(after["charge"][:4], before["charge"][:4])
    # HydraGNN's fuse_pool acts on what is pooled, so on graph outputs alone.
    assert torch.equal(after["charge"], before["charge"]) == (mode == "fuse_pool")


def test_one_row_for_each_graph_is_the_same(manifest, conditioned):
    """HydraGNN takes either shape."""
    batch = _batch(*FEATURES)
    expected = _model(conditioned, "film", potential=False)(batch)["gap"]
    batch.graph_attr = batch.graph_attr.view(2, 3)
    in_rows = _model(_with_features(manifest, shape=(3,), rows=1), "film", potential=False)
    assert torch.equal(in_rows(batch)["gap"], expected)


@pytest.mark.parametrize("head", ["node", "graph"])
@pytest.mark.parametrize("mode", MODES)
def test_a_potential_stays_proportional_to_its_cell(mode, head, conditioned):
    pooling = {"graph_pooling": "add"} if head == "graph" else {}
    model = _model(conditioned, mode, "SchNet", head=head, **pooling)
    cell, supercell = as_batch(alloy()), as_batch(alloy().repeat(2))
    cell.graph_attr = supercell.graph_attr = torch.tensor([1.0, 2.0, 3.0])
    small, large = model(cell), model(supercell)
    np.testing.assert_allclose(large["energy"], 8 * small["energy"], rtol=1e-12)
    np.testing.assert_allclose(large["forces"], small["forces"].repeat(8, 1), atol=1e-10)
    before = small["energy"].clone()
    cell.graph_attr = torch.tensor([1.0, 2.0, 4.0])
    assert abs(float(model(cell)["energy"] - before)) > 1e-4


@pytest.mark.parametrize("potential", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_gradient_reaches_every_parameter(mode, potential, conditioned):
    """HydraGNN makes these layers after the optimiser, which then never trains them."""
    model = _model(conditioned, mode, potential=potential).train()
    values = model(_batch(*FEATURES)).values()
    torch.stack([value.square().sum() for value in values]).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_features_that_do_not_fit_are_refused(manifest, conditioned):
    with pytest.raises(InputError, match="needs the key 'graph_attr'"):
        _model(manifest, "film")
    with pytest.raises(InputError, match="as many features in every graph"):
        _model(_with_features(manifest, shape=(), rows=None), "film")
    with pytest.raises(InputError, match="reads the key 'graph_attr'"):
        _model(conditioned, "film")(as_batch(alloy()))
    fused = {"use_graph_attr_conditioning": True, "graph_attr_conditioning_mode": "fuse_pool"}
    section = network("PNA", potential=False, **fused)
    section["Variables_of_interest"] |= {"output_names": ["charge"], "type": ["node"]}
    with pytest.raises(InputError, match="'fuse_pool' acts on graph outputs"):
        build_model(section, conditioned)


@pytest.mark.parametrize("mode", ["fuse_pool", "film"])
@pytest.mark.parametrize("potential", [True, False])
def test_frozen_layers_stay_as_they_are(potential, mode, conditioned):
    model = _model(conditioned, mode, potential=potential, freeze_conv_layers=True).float().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, fused=True)
    values = model(_batch(*FEATURES)).values()
    torch.stack([value.float().square().sum() for value in values]).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    moved = {
        name for name, value in model.named_parameters() if not torch.equal(value, before[name])
    }
    assert moved == trained
    of_encoder = {name for name in trained if name.startswith("encoder.")}
    # What is fused with the graphs' features after the last layer belongs to the heads.
    assert len(of_encoder) == (3 if mode == "fuse_pool" else 0)
    sizes = [value.numel() for value in model.parameters() if value.requires_grad]
    assert network_cost(model, 8, 100, 2).parameters == sum(sizes)
