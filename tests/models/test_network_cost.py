"""The cost of a step, counted without computing, against a step that was run."""

from itertools import accumulate

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from hydragnn_flow.models import network_cost
from hydragnn_flow.models.cost import NetworkCost, _with_muon, weight_matrices
from hydragnn_flow.testing.networks import alloy, as_batch
from hydragnn_flow.training.optimizers import Muon


class _TorchsOwnCount(TorchDispatchMode):
    """torch's formulas; its FlopCounterMode does not work where forces are taken."""

    flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            self.flops += flop_registry[func.overloadpacket](
                *args, **(kwargs or {}), out_val=result
            )
        return result


def assert_counted(model, batch, factor=1.0, **known):
    """A network's cost is the operations of a real step and of AdamW, or more by up to a factor."""
    cost = network_cost(model, batch.num_nodes, batch.num_edges, batch.num_graphs, **known)
    assert cost.parameters == sum(parameter.numel() for parameter in model.parameters())
    with _TorchsOwnCount() as counter:
        loss = sum(value.float().square().mean() for value in model(batch).values())
        # As in training: nobody wants the gradient of a potential's positions.
        loss.backward(inputs=list(model.parameters()))
    assert counter.flops <= cost.flops - 12 * cost.parameters <= factor * counter.flops


def test_flops_of_a_property_are_those_of_a_real_step(mpnn, make):
    assert_counted(make(mpnn, potential=False), as_batch(alloy(0), alloy(1)), _more(mpnn))


def test_flops_of_a_potential_are_those_of_a_real_step(potential_type, make):
    assert_counted(make(potential_type), as_batch(alloy(0), alloy(1)), _more(potential_type))


def _more(mpnn_type):
    """Where degrees are at hand, DimeNet leaves out some that it must reckon with without them."""
    return 1.5 if mpnn_type == "DimeNet" else 1.0


def test_counting_changes_nothing(mpnn, make):
    model = make(mpnn, potential=False).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    network_cost(model, 10, 100, 1)
    assert not model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("potential_type", ["SchNet", "PNA", "PAINN", "MACE"])
def test_cost_grows_with_what_it_should(potential_type, make):
    model = make(potential_type)
    small, more_edges = (network_cost(model, 100, edges, 4) for edges in (2000, 4000))
    double = network_cost(make(potential_type).double(), 100, 2000, 4)
    assert double.peak_bytes == pytest.approx(2 * small.peak_bytes, rel=0.1)
    assert more_edges.launches == small.launches
    assert small.peak_bytes < more_edges.peak_bytes < 2.1 * small.peak_bytes
    # Where all that is multiplied for an edge comes from a spline, no product grows with them.
    assert small.flops <= more_edges.flops and small.bytes < more_edges.bytes
    deeper = network_cost(make(potential_type, num_conv_layers=3), 100, 2000, 4)
    assert deeper.launches > 1.2 * small.launches and deeper.parameters > small.parameters
    plain = network_cost(make(potential_type, potential=False), 100, 2000, 4)
    assert plain.launches < small.launches and plain.peak_bytes < small.peak_bytes


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("some_type", ["SchNet", "PAINN", "GAT", "MACE"])
def test_memory_is_what_torch_allocates_in_a_real_step(some_type, make, checkpointing):
    """As its profiler sees it: what is saved, what the backward pass makes, and gradients."""
    model = make(some_type, hidden_dim=32)
    model.encoder.layers.checkpointing = checkpointing
    batch = as_batch(*(alloy(number) for number in range(8)))
    counted = network_cost(model, batch.num_nodes, batch.num_edges, 8).peak_bytes
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        loss = sum(value.float().square().mean() for value in model(batch).values())
        loss.backward(inputs=list(model.parameters()))
        del loss
    events = seen.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    peak = max(accumulate(change for _, change in changes))
    assert 0.8 * counted < peak < 1.05 * counted


def test_the_cost_of_muon_is_that_of_its_products():
    """Counted by torch: a step with Muon has that many operations more."""
    model = nn.Sequential(nn.Linear(40, 24), nn.Linear(24, 56), nn.Embedding(30, 24))
    assert [*weight_matrices(model)] == [model[0].weight, model[1].weight]
    optimizer = Muon(model.parameters(), 0.01, matrices=weight_matrices(model))
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    with _TorchsOwnCount() as counted:
        optimizer.step()
    none = NetworkCost(parameters=0, flops=0, bytes=0, launches=0, peak_bytes=0)
    assert _with_muon(none, model).update_flops == counted.flops
