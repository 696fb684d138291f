"""Layers of potentials that are recomputed: the same gradients, and memory for one layer only."""

import ase
import numpy as np
import pytest
import torch

from hydragnn_flow.models import network_cost
from hydragnn_flow.testing.networks import alloy, as_batch

VARIANTS = {
    "moving atoms": ("EGNN", {"equivariance": True, "num_conv_layers": 3}),
    "GPS": ("PAINN", {"global_attn_engine": "GPS", "global_attn_heads": 3}),
    "positions": (
        "PAINN",
        {"global_attn_engine": "EquivariantTransformer", "global_attn_heads": 2},
    ),
    "graph norm": ("SchNet", {"normalization": "graph"}),
    # Drawn again after the forward pass, its zeros would be in other places.
    "dropout": ("GAT", {"dropout": 0.5}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_gradients(variant, make):
    """The conformance suite has all types as they are."""
    mpnn_type, architecture = VARIANTS[variant]
    cluster = ase.Atoms("CuAuCu2Au", np.random.default_rng(0).uniform(0, 4, (5, 3)))
    batch = as_batch(alloy(0), cluster)
    gradients = []
    for checkpointing in (False, True):
        model = make(mpnn_type, **architecture).double()
        model.encoder.layers.checkpointing = checkpointing
        torch.manual_seed(1)
        found = model(batch)
        (found["energy"].sum() + found["forces"].square().sum()).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(again, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("potential_type", "part"), [("SchNet", 0.6), ("PAINN", 0.6), ("MACE", 0.5), ("DimeNet", 0.45)]
)
def test_a_part_of_the_memory(potential_type, part, make):
    model = make(potential_type, hidden_dim=32, num_conv_layers=3)
    whole = network_cost(model, 100, 2000, 4)
    model.encoder.layers.checkpointing = True
    again = network_cost(model, 100, 2000, 4)
    assert again.peak_bytes < part * whole.peak_bytes
    assert again.launches > whole.launches
