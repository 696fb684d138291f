"""Attention over all atoms of a graph, and positional encodings."""

import ase
import pytest
import torch
from test_network_cost import assert_counted

from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model, network_cost
from hydragnn_flow.models.global_attention.attention import (
    GlobalAttention,
    PerformerAttention,
    orthogonal_directions,
)
from hydragnn_flow.testing.networks import CUTOFF, alloy, as_batch, lively, network, outputs

GPS = {"global_attn_engine": "GPS", "global_attn_heads": 3}


@pytest.fixture(params=["multihead", "performer"])
def gps(request):
    return GPS | {"global_attn_type": request.param}


def test_atoms_out_of_reach_are_seen(make, gps):
    def charge_of_first(model, other):
        atoms = ase.Atoms(f"Cu{other}", [[0, 0, 0], [3 * CUTOFF, 0, 0]])
        return float(outputs(model, atoms)["charge"][0, 0])

    without, with_attention = (lively(make("GIN", potential=False, **o)) for o in ({}, gps))
    assert charge_of_first(without, "Cu") == charge_of_first(without, "Au")
    assert abs(charge_of_first(with_attention, "Cu") - charge_of_first(with_attention, "Au")) > 1e-4


def test_precisions(make, gps):
    model, batch = make("CGCNN", **gps).eval(), as_batch(alloy(0), alloy(1))
    expected = model(batch)["forces"].double()
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(batch)["forces"].double()
    assert (rough - expected).norm() < 0.1 * expected.norm()
    exact = model.double()(batch)["forces"]
    torch.testing.assert_close(exact, expected, rtol=1e-4, atol=1e-4)


def test_dropout_is_of_training_alone(make, gps):
    model, batch = make("CGCNN", potential=False, dropout=0.5, **gps), as_batch(alloy())
    for training in (True, False):
        model.train(training)
        assert torch.equal(model(batch)["gap"], model(batch)["gap"]) != training


def test_performer_estimates_attention(clusters):
    nodes = torch.randn(clusters.n_atoms, 16).double()
    exact = GlobalAttention(16, 2, 0.0).double()
    estimate = PerformerAttention(16, 2, 0.0).double()
    estimate.load_state_dict(exact.state_dict(), strict=False)
    expected = exact(nodes, clusters)
    errors = []
    for draws in (1, 100):
        estimate.directions = torch.cat([orthogonal_directions(8).double() for _ in range(draws)])
        errors.append((estimate(nodes, clusters) - expected).norm() / expected.norm())
    assert errors[0] < 0.3
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("kind", [GlobalAttention, PerformerAttention])
def test_large_features_do_not_overflow(kind, clusters):
    nodes = (100.0 * torch.randn(clusters.n_atoms, 16)).requires_grad_()
    attention = kind(16, 2, 0.0)(nodes, clusters)
    (gradient,) = torch.autograd.grad(attention.sum(), nodes)
    assert attention.isfinite().all() and gradient.isfinite().all()


def test_directions_belong_to_the_state(make):
    """Drawn anew, a network that was trained would be another one."""
    state = make("CGCNN", potential=False, **GPS, global_attn_type="performer").state_dict()
    assert sum("directions" in name for name in state) == 2


def test_cost_is_that_of_a_real_step(make, gps):
    assert_counted(make("CGCNN", potential=False, **gps), as_batch(alloy(0), alloy(1)))


def _encoded(manifest, *keys):
    described = manifest.keys["x"]
    new = {
        "pe": described.model_copy(update={"shape": (2,)}),
        "rel_pe": described.model_copy(update={"shape": (2,), "node": False, "edge": True}),
    }
    return manifest.model_copy(update={"keys": manifest.keys | {key: new[key] for key in keys}})


@pytest.mark.parametrize("mpnn_type", ["PNA", "EGNN"])
def test_positional_encodings_matter_and_must_be_there(mpnn_type, manifest):
    section = network(mpnn_type, potential=False, pe_dim=2, **GPS)
    torch.manual_seed(0)
    model = build_model(section, _encoded(manifest, "pe", "rel_pe")).eval()
    batch = as_batch(alloy(0), alloy(1))
    batch.pe, batch.rel_pe = torch.randn(batch.num_nodes, 2), torch.randn(batch.num_edges, 2)
    before = model(batch)["gap"]
    for key in ("pe", "rel_pe"):
        other = batch.clone()
        other[key] = other[key] + 1.0
        assert not torch.equal(model(other)["gap"], before), key
    network_cost(model, 8, 100, 2)
    del batch.pe
    with pytest.raises(InputError, match="'pe'"):
        model(batch)
    for keys, missing in (((), "pe"), (("pe",), "rel_pe")):
        with pytest.raises(InputError, match=f"pe_dim = 2 needs the key '{missing}'"):
            build_model(section, _encoded(manifest, *keys))
