"""MACE's algebra against e3nn's, and what its parameters ask for."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from e3nn import o3

from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model
from hydragnn_flow.models.couplings import SphericalHarmonics, symmetric_basis
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn.mace import (
    AgnesiTransform,
    ChebyshevBasis,
    Degrees,
    SoftTransform,
    SymmetricContraction,
    plan,
)
from hydragnn_flow.testing.networks import alloy, as_batch, network


def _random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _turned(highest, rotation, mirror):
    """How components of degree 0 to the highest turn with ``mirror * rotation``."""
    irreps = o3.Irreps([(1, (degree, (-1) ** degree)) for degree in range(highest + 1)])
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # e3nn's generators of rotations are in this precision
    try:
        return irreps.D_from_matrix(mirror * rotation)
    finally:
        torch.set_default_dtype(usual)


@pytest.fixture
def rotation():
    frame, _ = torch.linalg.qr(_random(3, 3))
    return frame * torch.linalg.det(frame).sign()


@pytest.mark.parametrize("highest", [1, 2, 3, 4])
def test_harmonics_are_those_of_e3nn(highest):
    directions = torch.nn.functional.normalize(_random(20, 3), dim=1)
    expected = o3.spherical_harmonics(
        list(range(highest + 1)), directions, normalize=True, normalization="component"
    )
    torch.testing.assert_close(SphericalHarmonics(highest)(directions), expected)


def test_harmonics_of_no_direction_are_zero_and_smooth():
    directions = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    harmonics = SphericalHarmonics(3)(directions)
    assert harmonics[0, 0] == 1 and not harmonics[0, 1:].any()
    (slope,) = torch.autograd.grad(harmonics.sum(), directions, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), directions)
    assert second.isfinite().all()


def _every_coupling(factors, highest, order, degree):
    """Products of ``order`` factors [n, components], coupled by e3nn in every order and way.

    Returns [n_couplings, n * (2 degree + 1)].
    """
    start = [
        (level, factors[:, level**2 : (level + 1) ** 2], level) for level in range(highest + 1)
    ]

    def coupled(left, right, *degrees):
        factors = left, right, o3.wigner_3j(*degrees, dtype=left.dtype)
        return torch.einsum("ni,nj,ijk->nk", *factors)

    grown = start
    for _ in range(order - 1):
        grown = [
            (result, coupled(left, right, first, second, result), total + second)
            for (first, left, total), (second, right, _) in product(grown, start)
            for result in range(abs(first - second), first + second + 1)
        ]
    # The parity of the product must be that of a spherical harmonic.
    found = [
        x.flatten() for level, x, total in grown if level == degree and (total - level) % 2 == 0
    ]
    return torch.stack(found)


@pytest.mark.parametrize(
    ("highest", "order", "degree"),
    [*product((1, 2), (1, 2, 3), (0, 1, 2)), (3, 2, 0), (3, 2, 3), (3, 3, 1)],
)
def test_products_are_all_that_there_are(highest, order, degree):
    """They span what e3nn's couplings span, and none is a sum of the others."""
    factors = _random(60, (highest + 1) ** 2)
    monomials, coefficients = symmetric_basis(highest, order, degree)
    every = _every_coupling(factors, highest, order, degree) if degree <= order * highest else None
    if every is None or not len(monomials):
        assert every is None or float(every.abs().max()) < 1e-9
        return
    powers = torch.stack([factors[:, list(m)].prod(dim=1) for m in monomials])
    ours = torch.einsum("fcm,mn->fnc", torch.from_numpy(coefficients), powers).flatten(1)
    assert torch.linalg.matrix_rank(ours) == len(ours)
    assert torch.linalg.matrix_rank(every) == len(ours)
    assert torch.linalg.matrix_rank(torch.cat([ours, every]), rtol=1e-10) == len(ours)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_contraction_weighs_the_products_by_element(order):
    torch.manual_seed(0)
    highest, outputs, elements = 2, (0, 1, 2), torch.tensor([1, 0, 2, 1, 0])
    contraction = SymmetricContraction(highest, outputs, order, 2, 3).double()
    factors = _random(9, 5, 3)
    for degree, weight, found in zip(
        outputs, contraction.weights, contraction(factors, elements), strict=True
    ):
        expected = torch.zeros(2 * degree + 1, 5, 3, dtype=torch.float64)
        # The last row, for elements that were never seen, is the mean.
        table = torch.cat([weight, weight.mean(dim=1, keepdim=True)], dim=1)
        feature = 0
        for power in range(1, order + 1):
            monomials, coefficients = symmetric_basis(highest, power, degree)
            values = torch.stack([factors[list(m)].prod(dim=0) for m in monomials])
            for rows in torch.from_numpy(coefficients):
                expected += torch.einsum("cm,mnw->cnw", rows, values) * table[feature, elements]
                feature += 1
        assert feature == len(weight)
        torch.testing.assert_close(found, expected)


def _geometry(vectors, n_atoms=4):
    """Every atom with every other, along the given vectors."""
    pairs = [pair for pair in product(range(n_atoms), repeat=2) if pair[0] != pair[1]]
    sender, receiver = torch.tensor(pairs).T
    graph = torch.zeros(n_atoms, dtype=torch.int64)
    elements = torch.tensor([29, 79, 29, 79])
    return Geometry(sender, receiver, vectors, 4.0, graph, 1, elements=elements)


@pytest.mark.parametrize("mirror", [1, -1], ids=["rotation", "reflection"])
@pytest.mark.parametrize(
    ("max_ell", "node_max_ell", "correlation"),
    [(1, 1, 1), (1, 1, 2), (1, 2, 3), (2, 1, 2), (2, 2, 3), (3, 1, 3), (3, 3, 2)],
)
def test_features_turn_with_the_frame(make, rotation, max_ell, node_max_ell, correlation, mirror):
    options = {"max_ell": max_ell, "node_max_ell": node_max_ell, "correlation": correlation}
    stack = make("MACE", **options).double().encoder.layers
    vectors = 3.0 * torch.nn.functional.normalize(_random(12, 3), dim=1)
    states = []
    for edges in (vectors, mirror * vectors @ rotation.T):
        geometry = _geometry(edges)
        features = stack.edge_features(geometry)
        state = stack.layers[0](stack.begin(_random(4, 12), geometry), features, geometry)
        states.append((state, stack.layers[1](state, features, geometry)))
    (between, after), (turned, turned_after) = states
    highest = math.isqrt(between.tensors.shape[1] + 1) - 1
    frame = _turned(highest, rotation, mirror)[1:, 1:]
    largest = float(between.tensors.detach().abs().max())
    assert largest > 1e-2
    expected = torch.einsum("ij,njc->nic", frame, between.tensors)
    torch.testing.assert_close(turned.tensors, expected, rtol=0, atol=1e-12 * largest)
    torch.testing.assert_close(turned.scalars, between.scalars)
    torch.testing.assert_close(turned_after.scalars, after.scalars)
    assert after.tensors is None


@pytest.mark.parametrize(
    ("max_ell", "node_max_ell", "correlation"),
    [(1, 1, (2, 1, 1)), (1, 3, (3, 2, 1)), (2, 1, (1, 1, 3)), (1, 2, (1, 1, 1)), (2, 0, (2, 2, 2))],
)
@pytest.mark.parametrize("potential", [True, False], ids=["potential", "properties"])
def test_no_parameter_is_idle(make, potential, max_ell, node_max_ell, correlation):
    """Whatever degrees can arise in a layer, it has parameters only for those that matter."""
    degrees = {"max_ell": max_ell, "node_max_ell": node_max_ell, "correlation": correlation}
    model = make("MACE", potential=potential, num_conv_layers=3, **degrees)
    outputs = model(as_batch(alloy(0), alloy(1)))
    sum(value.float().square().sum() for value in outputs.values()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # By element too: none of those in the data goes without.
        by_element = parameter.grad.abs().sum(dim=-1) if "contraction" in name else parameter.grad
        assert by_element.abs().sum() > 0 and not (by_element == 0).all(dim=0).any(), name


def test_plan_of_degrees():
    assert plan(1, 1, [2, 2]) == [Degrees(0, 1, 1, 1, 1), Degrees(1, 1, 1, 0, 0)]
    # A last layer that multiplies nothing reads only what has a scalar product with the edges.
    assert plan(1, 3, [3, 1]) == [Degrees(0, 1, 1, 1, 1), Degrees(1, 1, 0, 0, 0)]
    # Degrees above those of the edges arise as products of several.
    assert plan(1, 3, [2, 2])[0].outputs == 2


@pytest.mark.parametrize("transform", [None, "Agnesi", "Soft"])
@pytest.mark.parametrize("kind", ["bessel", "gaussian", "chebyshev"])
def test_radial_features_matter_and_are_smooth(make, kind, transform):
    options = {"radial_type": kind, "distance_transform": transform, "num_radial": 5}
    model = make("MACE", potential=False, **options)
    stack = model.encoder.layers
    vectors = torch.zeros(12, 3)
    vectors[:, 0] = torch.linspace(0.0, 4.0, 12)
    vectors.requires_grad_(True)
    features = stack.radial(_geometry(vectors))
    assert features.shape == (12, 5) and features.abs().max() < 20
    (slope,) = torch.autograd.grad(features[1:].square().sum(), vectors, create_graph=True)
    (slope.square().sum() + stack.radial(_geometry(vectors)).sum()).backward()
    assert vectors.grad is not None and vectors.grad.isfinite().all()
    assert (slope[2:-1, 0].abs() > 1e-6).all()


def test_bases_and_transforms_are_those_of_the_literature():
    lengths = torch.linspace(0.5, 4.0, 8, dtype=torch.float64)[:, None]
    numpys = np.polynomial.chebyshev.chebvander(lengths[:, 0].numpy() / 2 - 1, 4)[:, 1:]
    np.testing.assert_allclose(ChebyshevBasis(4, 4.0)(lengths).numpy(), numpys)
    radii = torch.full_like(lengths, 2.6)
    x = lengths / 1.3
    agnesi = 1 / (1 + 1.0805 * x**0.9183 / (1 + x ** (0.9183 - 4.5791)))
    torch.testing.assert_close(AgnesiTransform(4.0)(lengths, radii), 4.0 * agnesi)
    x = lengths / 0.65
    soft = lengths + 0.5 * torch.tanh(-x - 0.2 * x**3) + 0.5
    torch.testing.assert_close(SoftTransform(4.0)(lengths, radii), soft)


def test_an_element_that_was_never_seen_has_an_energy(make):
    model = make("MACE").eval()
    strange = alloy()
    strange.numbers[0] = 47
    energies = model(as_batch(strange, alloy()))["energy"]
    assert energies.isfinite().all() and energies[0] != energies[1]


def test_what_radial_features_cannot_be_is_refused(make, manifest):
    with pytest.raises(InputError, match=r"Architecture\.num_radial"):
        make("MACE", radial_type="gaussian", num_radial=1)
    manifest.node_features[:] = ["coordination", "magnetic_moment"]
    with pytest.raises(InputError, match="distance_transform"):
        build_model(network("MACE", potential=False, distance_transform="Soft"), manifest)
