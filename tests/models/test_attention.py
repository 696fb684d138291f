"""Attention over all atoms of a graph, and positional encodings."""

from collections.abc import Callable
from typing import Any

import ase
import pytest
import torch
from geometry_cases import clusters
from torch.utils.flop_counter import FlopCounterMode

from hydragnn_flow.errors import InputError
from hydragnn_flow.models import HydraModel, build_model, network_cost
from hydragnn_flow.models.geometry import padding
from hydragnn_flow.models.global_attention.attention import (
    GlobalAttention,
    PerformerAttention,
    orthogonal_directions,
)
from hydragnn_flow.testing.networks import CUTOFF, alloy, as_batch, lively, network, outputs

Make = Callable[..., HydraModel]
GPS: dict[str, Any] = {"global_attn_engine": "GPS", "global_attn_heads": 3}


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


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
def test_precisions(make, gps, precision):
    model, batch = make("CGCNN", **gps).eval(), as_batch(alloy(0), alloy(1))
    expected = model(batch)["forces"].double()
    if precision == torch.float64:
        found = model.double()(batch)["forces"]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    else:
        with torch.autocast("cpu", precision):
            found = model(batch)["forces"].double()
        assert (found - expected).norm() < 0.1 * expected.norm()


def test_dropout_is_of_training_alone(make, gps):
    model, batch = make("CGCNN", potential=False, dropout=0.5, **gps), as_batch(alloy())
    assert not torch.equal(model(batch)["gap"], model(batch)["gap"])
    model.eval()
    assert torch.equal(model(batch)["gap"], model(batch)["gap"])


def test_performer_estimates_attention():
    geometry = clusters()
    torch.manual_seed(0)
    nodes = torch.randn(geometry.n_atoms, 16).double()
    exact = GlobalAttention(16, 2, 0.0).double()
    estimate = PerformerAttention(16, 2, 0.0).double()
    estimate.load_state_dict(exact.state_dict(), strict=False)
    expected = exact(nodes, geometry).detach()
    errors = []
    for draws in (1, 100):
        estimate.directions = torch.cat([orthogonal_directions(8).double() for _ in range(draws)])
        errors.append(
            float((estimate(nodes, geometry).detach() - expected).norm() / expected.norm())
        )
    assert errors[0] < 0.3
    assert errors[1] < errors[0] / 2


def test_large_features_do_not_overflow(gps):
    geometry = clusters()
    torch.manual_seed(0)
    kind = PerformerAttention if gps["global_attn_type"] == "performer" else GlobalAttention
    nodes = (100.0 * torch.randn(geometry.n_atoms, 16)).requires_grad_()
    attention = kind(16, 2, 0.0)(nodes, geometry)
    (gradient,) = torch.autograd.grad(attention.sum(), nodes)
    assert attention.isfinite().all() and gradient.isfinite().all()


def test_directions_belong_to_the_state(make):
    """Drawn anew, a network that was trained would be another one."""
    performer = GPS | {"global_attn_type": "performer"}
    first, second = (make("CGCNN", potential=False, **performer) for _ in range(2))
    torch.manual_seed(1)
    assert set(second.state_dict()) == set(first.state_dict())
    assert sum("directions" in name for name in first.state_dict()) == 2
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])


def test_padding_goes_there_and_back():
    graph = torch.tensor([0, 0, 0, 1, 2, 2])
    places = padding(graph, 3, 3)
    rows = torch.arange(1.0, 13.0).view(6, 2)
    padded = places.pad(rows)
    assert padded.shape == (3, 3, 2)
    assert torch.equal(padded[1], torch.tensor([[7.0, 8.0], [0.0, 0.0], [0.0, 0.0]]))
    assert torch.equal(places.unpad(padded), rows)
    assert places.present.tolist() == [[True] * 3, [True, False, False], [True, True, False]]


def test_cost_is_that_of_a_real_step(make, gps):
    model = make("CGCNN", potential=False, **gps)
    batch = as_batch(alloy(0), alloy(1))
    cost = network_cost(model, batch.num_nodes, batch.num_edges, 2)
    with FlopCounterMode(display=False) as counter:
        sum(value.float().square().mean() for value in model(batch).values()).backward()
    assert cost.flops - 12 * cost.parameters == counter.get_total_flops()


def _encoded(manifest, *keys):
    described = manifest.keys["x"]
    new = {
        "pe": described.model_copy(update={"shape": (2,)}),
        "rel_pe": described.model_copy(update={"shape": (2,), "node": False, "edge": True}),
    }
    return manifest.model_copy(update={"keys": manifest.keys | {key: new[key] for key in keys}})


def _encoded_batch():
    batch = as_batch(alloy(0), alloy(1))
    batch.pe, batch.rel_pe = torch.randn(batch.num_nodes, 2), torch.randn(batch.num_edges, 2)
    return batch


@pytest.mark.parametrize("mpnn_type", ["PNA", "EGNN"])
def test_positional_encodings_matter(mpnn_type, manifest):
    torch.manual_seed(0)
    section = network(mpnn_type, potential=False, pe_dim=2, **GPS)
    model, batch = build_model(section, _encoded(manifest, "pe", "rel_pe")), _encoded_batch()
    model.eval()
    before = model(batch)["gap"]
    for key in ("pe", "rel_pe"):
        other = batch.clone()
        other[key] = other[key] + 1.0
        assert not torch.equal(model(other)["gap"], before), key
    network_cost(model, 8, 100, 2)
    del batch.pe
    with pytest.raises(InputError, match="reads the key 'pe'"):
        model(batch)


@pytest.mark.parametrize(("keys", "missing"), [((), "pe"), (("pe",), "rel_pe")])
def test_missing_encodings_are_refused(keys, missing, manifest):
    section = network("PNA", pe_dim=2, **GPS)
    with pytest.raises(InputError, match=f"pe_dim = 2 needs the key '{missing}' .* set pe_dim to"):
        build_model(section, _encoded(manifest, *keys))
