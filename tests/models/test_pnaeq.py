"""How PNAEq aggregates messages."""

import torch

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn.pnaeq import N_SCALERS, Aggregation


def test_aggregates_are_scaled_five_ways():
    """One atom with two messages; an atom counts as one neighbour that says zero."""
    receiver = torch.tensor([0, 0])
    geometry = Geometry(receiver, receiver, torch.zeros(2, 3), 4.0, torch.tensor([0]), 1)
    aggregation = Aggregation(1, 2.0, 5.0)
    with torch.no_grad():
        aggregation.aggregate.weight.zero_()
        # Each scaler gets the largest message and a number of its own.
        aggregation.aggregate.weight[:, 2] = torch.tensor([1.0, 10.0, 100.0, 1e3, 1e4])
    degree = torch.tensor([[3.0]])
    found = aggregation(torch.tensor([[0.5], [-1.0]]), degree, geometry)
    log = torch.log(degree + 1.0) / 2.0
    expected = 1.0 + 10.0 * log + 100.0 / log + 1e3 * degree / 5.0 + 1e4 * 5.0 / degree
    torch.testing.assert_close(found, 0.5 * expected * N_SCALERS**-0.5)


def test_a_faded_message_changes_nothing():
    messages = torch.tensor([[0.5], [-1.0], [0.0]])
    receiver = torch.zeros(3, dtype=torch.int64)
    both = Geometry(receiver, receiver, torch.zeros(3, 3), 4.0, torch.tensor([0]), 1)
    one_less = Geometry(receiver[:2], receiver[:2], torch.zeros(2, 3), 4.0, torch.tensor([0]), 1)
    aggregation, degree = Aggregation(1, 2.0, 5.0), torch.tensor([[3.0]])
    with_it = aggregation(messages, degree, both)
    assert torch.equal(with_it, aggregation(messages[:2], degree, one_less))
    assert with_it.abs().max() > 0
