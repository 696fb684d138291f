"""DimeNet's basis, its edges in rows, and its angles without triplets."""

import ase
import numpy as np
import pytest
import torch
from scipy.special import eval_legendre

from hydragnn_flow.models.layers import smooth_silu
from hydragnn_flow.models.mpnn.dimenet import edge_table, spherical_bessel
from hydragnn_flow.testing.networks import CUTOFF, alloy, as_batch


def test_radial_functions_are_orthonormal_and_end_at_the_cutoff():
    lengths = np.linspace(0.0, CUTOFF, 4001)
    values = spherical_bessel(lengths.tolist(), CUTOFF, 7, 6)
    assert values.shape == (7, 4001, 6)
    np.testing.assert_allclose(values[:, -1], 0.0, atol=1e-12)
    shells = 3.0 * lengths**2 / CUTOFF**3 * (lengths[1] - lengths[0])
    for of_degree in values:
        products = of_degree.T @ (of_degree * shells[:, None])
        np.testing.assert_allclose(products, np.eye(6), atol=1e-6)
    # Of degree zero they are sines over the length.
    sines = np.sin(np.pi * np.arange(1, 7) * lengths[1:, None] / CUTOFF) / lengths[1:, None]
    ratios = values[0, 1:-1] / sines[:-1]
    np.testing.assert_allclose(ratios, np.broadcast_to(ratios[100], ratios.shape), rtol=1e-6)


@pytest.mark.parametrize("countable", [True, False])
@pytest.mark.parametrize("degrees", [[3, 0, 30, 12, 13], [0, 0], [24], [20, 18], [20, 0], [1, 1]])
def test_rows_hold_every_edge_once(degrees, countable):
    generator = torch.Generator().manual_seed(0)
    atoms = torch.arange(len(degrees)).repeat_interleave(torch.tensor(degrees))
    atoms = atoms[torch.randperm(len(atoms), generator=generator)]
    rows = edge_table(atoms, len(degrees), countable=countable)
    values = torch.randn(len(atoms), 2, generator=generator)
    filled = rows.fill(values)
    assert torch.equal(rows.read(filled), values)
    owners = rows.of_owner(torch.arange(len(degrees)))
    assert torch.equal(owners[rows.places // filled.shape[1]], atoms)
    assert (rows.owners is None) == (countable and degrees in ([24], [20, 18], [1, 1]))
    expected = torch.zeros(len(degrees), 2).index_add(0, atoms, values)
    torch.testing.assert_close(rows.sum(filled.sum(dim=1)), expected)


@pytest.mark.parametrize("alike", [True, False])
def test_messages_are_those_of_all_triplets(make, alike):
    """Against the sum over pairs of edges, with Legendre polynomials of the angle between them."""
    model = make("DimeNet", num_spherical=4).double()
    stack = model.encoder.layers
    # A chain beside a dense cell: atoms of very unequal degree.
    chain = ase.Atoms("CuAu" * 10, [[3.0 * place, 0.05 * place**2, 0] for place in range(20)])
    batch = as_batch(*([alloy()] if alike else [alloy(), chain]))
    geometry = model.encoder.geometry(batch, batch.pos.double())
    edges = stack.edge_features(geometry)
    assert (edges.incoming.owners is None) == alike
    angles = stack.layers[0].angles
    sent = torch.randn(len(geometry.sender), angles.width, dtype=torch.float64)
    with torch.no_grad():
        found = angles(sent, edges)
        weight = (angles.wide.weight @ angles.narrow.weight).view(angles.width, 4, -1)
        filters = [edges.at_edges(edges.by_degree[n] @ weight[:, n].T) for n in range(4)]
    cosines = (geometry.directions @ geometry.directions.T).clamp(-1.0, 1.0).numpy()
    follows = (geometry.sender[:, None] == geometry.receiver[None, :]).double()
    expected = torch.zeros_like(found)
    for degree, values in enumerate(filters):
        legendre = torch.from_numpy((2 * degree + 1) * eval_legendre(degree, cosines))
        expected += (legendre * follows) @ (values * sent)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_parameters_of_the_network_are_honoured(make):
    def size(**options):
        return sum(weight.numel() for weight in make("DimeNet", **options).parameters())

    base = size()
    for key in ("num_radial", "num_spherical", "basis_emb_size", "int_emb_size", "out_emb_size"):
        assert size(**{key: 5}) != base, key
    # A residual block more in each of two layers of width 12.
    block = 2 * (12 * 12 + 12)
    assert size(num_before_skip=2) - size(num_before_skip=1) == 2 * block
    assert size(num_after_skip=1) - size(num_after_skip=0) == 2 * block


def test_silu_has_two_derivatives():
    x = torch.linspace(-4, 4, 9, dtype=torch.float64, requires_grad=True)
    assert torch.equal(smooth_silu(x), torch.nn.functional.silu(x))
    assert torch.autograd.gradcheck(smooth_silu, x)
    assert torch.autograd.gradgradcheck(smooth_silu, x)
