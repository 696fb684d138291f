"""What comes out of build_model: units, precision, modes, and errors that name the key."""

from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch

from hydragnn_flow.data import Target
from hydragnn_flow.data.neighbours import Truncation
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model
from hydragnn_flow.testing.networks import COPPER, GOLD, alloy, as_batch, lively, network

PROPERTY = {"potential": False}


def test_targets_come_in_the_datas_units(mpnn, make):
    """A head that says nothing predicts the training mean; its scale is the training deviation."""
    model = make(mpnn, potential=False)
    batch = as_batch(alloy(0), alloy(1))
    for heads in (model.graph_heads, model.node_heads):
        last = [layer for layer in heads.modules() if isinstance(layer, torch.nn.Linear)][-1]
        torch.nn.init.zeros_(last.weight)
        torch.nn.init.ones_(last.bias)
    outputs = model(batch)
    torch.testing.assert_close(outputs["gap"], torch.tensor([[1.5, 1.0]] * 2).double())
    torch.testing.assert_close(outputs["charge"], torch.full((8, 1), 0.12))


@pytest.mark.parametrize("pooling", ["mean", "add", "sum", "max"])
def test_pooling(make, pooling):
    """Twice the same cell changes a sum only, and no pooling mixes graphs."""
    model = make("SchNet", potential=False, graph_pooling=pooling).double().eval()
    one, two, both = alloy(0), alloy(0).repeat((2, 1, 1)), as_batch(alloy(0), alloy(1))
    small, large = model(as_batch(one))["gap"], model(as_batch(two))["gap"]
    assert torch.allclose(small, large, rtol=1e-9) == (pooling in ("mean", "max"))
    torch.testing.assert_close(model(both)["gap"][:1], small, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["relu", "prelu", "selu", "lrelu_01", "gelu", "tanh", "sigmoid"])
def test_activations(make, name):
    model = make("PNA", potential=False, activation_function=name)
    assert model(as_batch(alloy()))["charge"].std() > 0


def test_potential_needs_no_caller_gradient(potential_type, make):
    potential, batch = lively(make(potential_type)), as_batch(alloy())
    with torch.no_grad():
        quiet = potential(batch)
    loud = potential(batch)
    for name, value in quiet.items():
        assert not value.requires_grad and not loud[name].requires_grad
        torch.testing.assert_close(value, loud[name], rtol=0, atol=0)
    assert batch.pos.grad is None and not batch.pos.requires_grad
    training = potential.train()(batch)
    assert training["energy"].requires_grad and training["forces"].requires_grad
    torch.testing.assert_close(training["forces"].detach(), loud["forces"])


def test_large_references_cost_no_precision(potential_type, manifest):
    """In float32 a molecule's -9391 eV has a spacing of 1 meV; the output must not."""
    energies = {COPPER: -9391.123456789, GOLD: -1234.5}
    statistics = manifest.statistics.model_copy(update={"element_energies": energies})
    torch.manual_seed(0)
    model = build_model(
        network(potential_type), manifest.model_copy(update={"statistics": statistics})
    )
    batch = as_batch(alloy())
    outputs, references = model.eval()(batch), model.references(batch)
    assert outputs["energy"].dtype == references.dtype == torch.float64
    assert outputs["forces"].dtype == torch.float32
    torch.testing.assert_close(references, torch.tensor([[2 * sum(energies.values())]]).double())
    exact = model.double()(batch)["energy"]
    assert abs(float(outputs["energy"] - exact)) < 1e-5
    # A round trip through float32 rounds the weights, never the references.
    torch.testing.assert_close(model.float().references(batch), references, rtol=0, atol=0)


def test_shorter_radius_than_the_stores(potential_type, make):
    """Edges beyond the network's radius say nothing."""
    model = make(potential_type, radius=3.0).double().eval()
    batch, near = as_batch(alloy()), as_batch(alloy())
    keep = near.edge_attr[:, 0] < 3.0
    near.edge_index, near.edge_shifts = near.edge_index[:, keep], near.edge_shifts[keep]
    torch.testing.assert_close(model(batch)["forces"], model(near)["forces"])


def test_other_node_features(mpnn, manifest):
    values = network(mpnn, potential=False)
    for columns in ([0, 1], [1]):
        values["Variables_of_interest"]["input_node_features"] = columns
        model = build_model(values, manifest)
        batch = as_batch(alloy())
        before = model(batch)["charge"]
        batch.x[:, 1] = torch.randn(4)
        assert not torch.equal(model(batch)["charge"], before)


ENERGY_ALONE = {"targets": {"energy": Target(level="graph", dim=1, unit="eV")}}


@pytest.mark.parametrize(
    ("change", "asked", "variables", "said"),
    [
        ({}, PROPERTY, {"output_names": ["gap", "spin"]}, "output_names.*'spin'"),
        ({}, PROPERTY, {"output_names": ["gap", "gap"], "type": ["graph"] * 2}, "output_names"),
        ({}, PROPERTY, {"type": ["node", "node"]}, "type says 'node' for 'gap'"),
        ({}, PROPERTY, {"output_dim": [1, 1]}, "output_dim says 1 for 'gap'"),
        ({}, PROPERTY, {"output_dim": [2]}, "output_dim"),
        ({}, PROPERTY, {"input_node_features": [2]}, "input_node_features"),
        ({}, PROPERTY, {"input_node_features": []}, "input_node_features"),
        ({}, {}, {"type": ["graph"]}, "graph_pooling"),
        ({}, {}, {"output_dim": [7]}, r"output_dim is \[7\].*write \[1\]"),
        ({"targets": {}}, {}, {}, "energy"),
        (ENERGY_ALONE, {}, {}, "force_weight"),
        ({"node_features": ["charge"]}, {}, {}, "atomic_number"),
        ({"cutoff": None}, {"radius": None}, {}, "Architecture.radius"),
        ({}, {"radius": 5.0}, {}, "Architecture.radius"),
        ({}, PROPERTY | {"radius": 3.0}, {}, "edge_features"),
        (
            *({"max_neighbours": 20}, {"max_neighbours": 3}, {}),
            r"max_neighbours = 3, but the store's .* keep 20; write",
        ),
    ],
)
def test_stores_that_a_network_cannot_use(manifest, change, asked, variables, said):
    values = network("PNA", **asked)
    values["Variables_of_interest"] |= variables
    with pytest.raises(InputError, match=said):
        build_model(values, manifest.model_copy(update=change))


def test_an_energy_alone_trains_without_forces(manifest):
    assert build_model(network("EGNN", force_weight=0.0), manifest.model_copy(update=ENERGY_ALONE))


CUT = Truncation(atoms=3, of_atoms=9, edges=12, of_edges=90, most=31, nearest=3.2)


@pytest.mark.parametrize(
    ("found", "asked", "said"),
    [
        ({"max_neighbours": 20, "truncation": CUT}, {}, r"max_neighbours = 20 leaves out 13 %.*31"),
        (
            {"truncation": CUT, "provenance": {"own_edges": True}},
            {},
            r"the edges that the data bring leave out .*; lower Architecture\.radius to 3\.2,",
        ),
        # Only what networks see counts: their edges end at the radius.
        ({"max_neighbours": 20, "truncation": CUT}, {"radius": 3.1}, None),
        ({"max_neighbours": 20, "truncation": Truncation(of_atoms=9)}, {}, None),
        # Nobody has counted: 14 atoms of the training split have 13 neighbours or more, up to 16.
        ({"max_neighbours": 13}, {}, r"max_neighbours = 13 may leave out neighbours of 14 atoms"),
        ({"max_neighbours": 17}, {}, None),
        ({"max_neighbours": None}, {"max_neighbours": 13}, None),
        ({"cutoff": None}, {"max_neighbours": 13}, r"= 13 may leave out neighbours of 14 atoms"),
        ({"cutoff": None}, {}, None),
    ],
)
def test_a_potential_needs_whole_neighbour_lists(manifest, found, asked, said):
    store = manifest.model_copy(update=found)
    assert build_model(network("EGNN", potential=False, **asked), store)
    assert build_model(network("EGNN", truncated_neighbours="allow", **asked), store)
    with pytest.raises(InputError, match=said) if said else nullcontext():
        build_model(network("EGNN", **asked), store)


def test_of_every_pair_of_relu_units_one_is_on(manifest):
    """Or a narrow layer whose inputs hardly differ may begin with all of its units off."""
    for seed in range(20):
        torch.manual_seed(seed)
        section = network("SAGE", potential=False, activation_function="relu")
        model = build_model(section, manifest)
        linear, relu = next(
            pair
            for layers in model.graph_heads.modules()
            if isinstance(layers, torch.nn.Sequential)
            for pair in pairwise(layers)
            if isinstance(pair[1], torch.nn.ReLU)
        )
        # The same inputs for all, as pooled features nearly are.
        hidden = relu(linear(torch.randn(1, linear.in_features)))
        assert (hidden > 0).sum() == linear.out_features // 2
