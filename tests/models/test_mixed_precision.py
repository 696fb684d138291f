"""Under autocast: what is summed, and what layers hand on, stays in single precision."""

from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from hydragnn_flow.models import build_model
from hydragnn_flow.models.geometry import sum_by
from hydragnn_flow.models.kernels.neighbour_sums import filtered_sum, outer_sum
from hydragnn_flow.testing.networks import alloy, as_batch, network

HALF = torch.bfloat16


@contextmanager
def types_of(model, monkeypatch):
    """Data types of what layers hand on and of what edges are added up in."""
    seen = set()

    def handed_on(layer, given, state):
        seen.update(part.dtype for part in state if part is not None)

    for layer in model.encoder.layers.layers:
        layer.register_forward_hook(handed_on)
    with monkeypatch.context() as patch:
        for name in ("index_add", "index_add_"):
            add = getattr(Tensor, name)

            def counted(self, *given, _add=add, **named):
                seen.add(self.dtype)
                return _add(self, *given, **named)

            patch.setattr(Tensor, name, counted)
        yield seen


def assert_sums_are_precise(model, monkeypatch):
    batch = as_batch(alloy(0), alloy(1))
    batch.graph_attr = torch.ones(2, 3)
    with types_of(model, monkeypatch) as seen, torch.autocast("cpu", HALF):
        outputs = model(batch)
        sum(value.float().square().sum() for value in outputs.values()).backward()
    assert seen and HALF not in seen
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    return batch, outputs


def test_sums_of_a_property(mpnn, make, monkeypatch):
    assert_sums_are_precise(make(mpnn, potential=False), monkeypatch)


def test_sums_of_a_potential(potential_type, make, monkeypatch):
    model = make(potential_type)
    batch, rough = assert_sums_are_precise(model, monkeypatch)
    exact = model(batch)["forces"].detach()
    # The root of a small spread of messages is steep: over seeds errors are 0.07 to 0.3.
    tolerance = (0.4 if potential_type == "PNAEq" else 0.1) * float(exact.abs().max())
    torch.testing.assert_close(rough["forces"].float(), exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize("mode", ["concat_node", "film", "fuse_pool"])
@pytest.mark.parametrize("mpnn_type", ["SchNet", "PAINN"])
def test_sums_of_a_conditioned_network(mpnn_type, mode, make, manifest, monkeypatch):
    described = manifest.keys["x"].model_copy(update={"shape": (3,), "node": False, "rows": 1})
    keys = {**manifest.keys, "graph_attr": described}
    conditioned = {"use_graph_attr_conditioning": True, "graph_attr_conditioning_mode": mode}
    for potential in (False, True):
        values = network(mpnn_type, potential=potential, **conditioned)
        model = build_model(values, manifest.model_copy(update={"keys": keys}))
        assert_sums_are_precise(model, monkeypatch)


def test_long_sums_of_half_precision_lose_nothing():
    """Rounded at each addition, a sum of 4096 ones would end at 256."""
    ones = torch.ones(4096, 3, dtype=HALF)
    total = sum_by(ones, torch.zeros(4096, dtype=torch.int64), 1)
    assert total.dtype == torch.float32 and total.tolist() == [[4096.0] * 3]
    assert sum_by(torch.ones(3, dtype=torch.int64), torch.zeros(3).long(), 1).tolist() == [3]


def test_sums_over_edges_of_half_precision(clusters):
    n_edges = len(clusters.sender)
    nodes, filters = torch.randn(18, 1, 4).to(HALF), torch.randn(n_edges, 4).to(HALF)
    vectors = torch.randn(n_edges, 3).to(HALF)
    for total, operand in ((filtered_sum, nodes), (outer_sum, vectors)):
        found = total(operand, filters, clusters)
        exact = total(operand.double(), filters.double(), clusters)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-6)
