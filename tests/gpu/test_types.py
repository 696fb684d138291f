"""Every message-passing type on the device, against the CPU in float64."""

import copy
from typing import Any

import pytest
import torch
from device_cases import BLIND, HEADS, POTENTIALS
from segment_cases import network_with

from hydragnn_flow import build_model
from hydragnn_flow.config.network import MPNN_TYPES
from hydragnn_flow.training.loading import moved

pytestmark = pytest.mark.gpu

# Largest error allowed, relative to the size of what is compared, by precision: of outputs, and of
# the gradient of the weights. A CPU's are 3e-6 in float32 and 0.21 in bfloat16, in DimeNet's heads,
# whose gradient nearly cancels with these first weights (0.01 to 0.04 with five others).
TOLERANCES = {"fp64": (1e-9, 1e-9), "fp32": (5e-5, 5e-5), "bf16": (0.25, 0.3)}
CASES = [(name, potential) for name in MPNN_TYPES for potential in (True, False)]
CASES = [(name, potential) for name, potential in CASES if not potential or name in POTENTIALS]


def computed(model, batch, precision):
    """Outputs, without what a target's mean adds to them, and the gradient of the weights."""
    device = next(model.parameters()).device
    batch = moved(copy.copy(batch), device)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        outputs = model(batch)
    if "forces" in outputs:
        outputs["energy"] = outputs["energy"] - model.references(batch)
    else:
        outputs["energy"] = outputs["energy"] - outputs["energy"].detach().mean()
    torch.stack([value.double().square().mean() for value in outputs.values()]).sum().backward()
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    found = {name: value.detach().double().cpu() for name, value in outputs.items()}
    return found, gradient.double().cpu()


def error(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize(
    ("name", "potential"), CASES, ids=[f"{n}-{'potential' if p else 'heads'}" for n, p in CASES]
)
def test_outputs_and_gradients_are_those_of_the_cpu(
    alloy_store, device, name, potential, precision
):
    changes: dict[str, Any] = {"Architecture__mpnn_type": name, "Architecture__hidden_dim": 32}
    if not potential:
        changes |= HEADS
        if name not in BLIND:
            changes["Architecture__edge_features"] = ["lengths"]
    torch.manual_seed(0)
    model = build_model(network_with(**changes), alloy_store).train()
    batch = alloy_store["trainset"].batch(range(8))
    expected, gradient = computed(copy.deepcopy(model).double(), batch, "fp64")
    if precision == "fp64":
        model = model.double()
    found, its_gradient = computed(model.to(device), batch, precision)
    of_outputs, of_gradient = TOLERANCES[precision]
    for output, values in expected.items():
        assert error(found[output], values) < of_outputs, output
    assert error(its_gradient, gradient) < of_gradient
