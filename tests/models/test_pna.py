"""PNA: its extremes, and where it is continuous."""

from collections.abc import Callable

import ase
import pytest
import torch

from hydragnn_flow.models import HydraModel
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels.extremes import EXTREMES, extreme
from hydragnn_flow.testing.networks import CUTOFF, energy_and_forces

Make = Callable[..., HydraModel]


@pytest.fixture
def star():
    """Four edges to atom 0, one to atom 1, none to atom 2."""
    return Geometry(
        sender=torch.tensor([1, 2, 1, 2, 0]),
        receiver=torch.tensor([0, 0, 0, 0, 1]),
        vectors=torch.zeros(5, 3),
        cutoff=CUTOFF,
        graph=torch.zeros(3, dtype=torch.int64),
        n_graphs=1,
    )


def test_extremes_and_their_gradients(star):
    """Those that tie share the gradient; the atom's own zero has none."""
    messages = torch.tensor([[2.0], [3.0], [3.0], [1.0], [-5.0]], requires_grad=True)
    found = {}
    for own_zero in (False, True):
        for which in EXTREMES:
            values = extreme(messages, star, which, own_zero=own_zero)
            (gradient,) = torch.autograd.grad(values.sum(), messages)
            found[which, own_zero] = values[:, 0].tolist(), gradient[:, 0].tolist()
    assert found == {
        ("amin", False): ([1.0, -5.0, 0.0], [0.0, 0.0, 0.0, 1.0, 1.0]),
        ("amax", False): ([3.0, -5.0, 0.0], [0.0, 0.5, 0.5, 0.0, 1.0]),
        ("amin", True): ([0.0, -5.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]),
        ("amax", True): ([3.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0, 0.0]),
    }


def test_extremes_have_a_second_derivative(star):
    torch.manual_seed(0)
    messages = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)

    def squared(messages):
        return extreme(messages.square(), star, "amax", own_zero=True).square()

    assert torch.autograd.gradgradcheck(squared, messages)


@pytest.mark.parametrize("mpnn_type", ["PNA", "PNAPlus"])
def test_energy_closes_at_the_cutoff(make, mpnn_type):
    """The difference across the cutoff shrinks with the distance to it."""
    model = make(mpnn_type).double().eval()

    def trimer(distance):
        return ase.Atoms("CuAuCu", [[0, 0, 0], [distance, 0, 0], [0, 2.5, 0]])

    jumps = []
    for gap in (1e-2, 1e-3, 1e-4):
        energies, _ = energy_and_forces(model, trimer(CUTOFF - gap), trimer(CUTOFF + gap))
        jumps.append(abs(energies[0] - energies[1]))
    assert jumps[1] < 0.2 * jumps[0] and jumps[2] < 0.2 * jumps[1]
