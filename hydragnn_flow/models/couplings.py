"""Products of equivariant features by Clebsch-Gordan coefficients.

A feature of degree l has 2l + 1 components in e3nn's order and sign, and the parity (-1)^l of a
spherical harmonic. All tables are float64 and computed once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import combinations_with_replacement

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hydragnn_flow.errors import InputError, lacking
from hydragnn_flow.models.layers import pack_exact, unpack_exact

Array = NDArray[np.float64]

Monomial = tuple[int, ...]
"""Product of feature components, as their indices in ascending order.

Component m of degree l has the index l² + m."""


class Table(nn.Module):
    """Table of constants, kept in float64 and returned in the precision of another tensor.

    Parameters
    ----------
    values
        Array of the constants, of any shape.
    """

    bits: Tensor

    def __init__(self, values: Array) -> None:
        super().__init__()
        self.shape = values.shape
        self.register_buffer("bits", pack_exact(values.ravel().tolist()), persistent=False)

    def forward(self, like: Tensor) -> Tensor:
        """Return the table's constants in the data type of the tensor ``like``."""
        return unpack_exact(self.bits).to(like.dtype).view(self.shape)


def components(degree: int) -> slice:
    """Return the slice of one degree's components among the components of all degrees.

    Degree l has 2l + 1 components. They follow those of the lower degrees.
    """
    return slice(degree**2, (degree + 1) ** 2)


@cache
def clebsch_gordan(first: int, second: int, degree: int) -> Array:
    """Return the Clebsch-Gordan coefficients of a product of two equivariant features.

    They couple features of the degrees ``first`` and ``second`` to ``degree``. Their shape is [2
    first + 1, 2 second + 1, 2 degree + 1]. The product of independent factors with components of
    variance one has components of variance one.

    Raises
    ------
    InputError
        If e3nn is not installed.
    """
    try:
        from e3nn import o3  # takes seconds to import
    except ImportError:
        raise InputError(lacking("e3nn", "e3nn")) from None

    # e3nn computes with torch and caches the result, so not on the current default device.
    with torch.device("cpu"):
        symbols = o3.wigner_3j(first, second, degree, dtype=torch.float64).numpy()
    scaled: Array = symbols * math.sqrt(2 * degree + 1)
    return scaled


def couple_to(first: int, second: int, degree: int) -> bool:
    """Return whether features of degrees ``first`` and ``second`` have a product of ``degree``.

    Only products with the parity of harmonics, (-1)^degree, count.
    """
    return abs(first - second) <= degree <= first + second and _even(first, second, degree)


def _even(*degrees: int) -> bool:
    return sum(degrees) % 2 == 0


class SphericalHarmonics(nn.Module):
    """Real spherical harmonics of all degrees up to the highest, of mean square one on the sphere.

    Harmonics of a degree are computed from those of the next lower degree and the direction. For a
    zero vector all degrees except zero vanish.

    Parameters
    ----------
    highest
        Highest degree of the harmonics.
    """

    def __init__(self, highest: int) -> None:
        super().__init__()
        self.steps = nn.ModuleList(Table(self._step(degree)) for degree in range(2, highest + 1))

    @staticmethod
    def _step(degree: int) -> Array:
        """Return the matrix that computes harmonics of ``degree`` from the next lower degree.

        It maps products of harmonics of degree - 1 and components of the direction. Its shape is
        [(2 degree - 1) * 3, 2 degree + 1].
        """
        table = clebsch_gordan(degree - 1, 1, degree)
        # Along y, e3nn's polar axis, only the middle component is nonzero; it is the root of 2
        # degree + 1.
        pole = table[degree - 1, 1, degree] * math.sqrt((2 * degree - 1) * 3)
        scaled: Array = table * (math.sqrt(2 * degree + 1) / pole)
        return scaled.reshape(-1, 2 * degree + 1)

    def forward(self, directions: Tensor) -> Tensor:
        """Compute the spherical harmonics [n, (highest + 1)²] of unit vectors [n, 3]."""
        first = directions * math.sqrt(3.0)
        degrees = [torch.ones_like(directions[:, :1]), first]
        for step in self.steps:
            products = degrees[-1][:, :, None] * first[:, None, :]
            degrees.append(products.flatten(1) @ step(directions))
        return torch.cat(degrees, dim=1)


@cache
def symmetric_basis(highest: int, order: int, degree: int) -> tuple[list[Monomial], Array]:
    """Return all linearly independent products of a feature with itself that have a given degree.

    The feature has components of the degrees 0 to ``highest``, and is a factor ``order`` times. The
    products are those of Batatia et al., arXiv:2206.07697, equation 10, reduced to linearly
    independent ones: some depend on each other because factors commute.

    Parameters
    ----------
    highest
        Highest degree of the factors.
    order
        Number of factors in each product.
    degree
        Degree of the products.

    Returns
    -------
    monomials
        Monomials (products of components) that the products consist of, sorted.
    coefficients
        Coefficients [n_features, 2 degree + 1, n_monomials]; factors of variance one give products
        of variance about one.
    """
    features = [
        feature
        for factors in combinations_with_replacement(range(highest + 1), order)
        if _even(*factors, degree)
        for feature in _independent(
            [_polynomial(factors, tree) for tree in _trees(factors, degree)]
        )
    ]
    monomials = sorted({monomial for feature in features for _, monomial in feature})
    column = {monomial: number for number, monomial in enumerate(monomials)}
    coefficients = np.zeros((len(features), 2 * degree + 1, len(monomials)))
    for row, feature in enumerate(features):
        for (component, monomial), value in feature.items():
            coefficients[row, component, column[monomial]] = value
    return monomials, coefficients * math.sqrt((2 * degree + 1) / math.factorial(order))


Polynomial = dict[tuple[int, Monomial], float]
"""Coefficients of a polynomial by (component of the product, monomial)."""


def _trees(factors: Sequence[int], degree: int) -> list[Array]:
    """Return all ways to couple factors, from left to right, to a product of ``degree``.

    ``factors`` are the degrees l₁, l₂, … of the factors. Each coupling is a tensor of coefficients
    [2 l₁ + 1, 2 l₂ + 1, …, 2 degree + 1].
    """
    # Intermediate products may have either parity.
    trees = {factors[0]: [np.eye(2 * factors[0] + 1)]}
    for factor in factors[1:]:
        grown: dict[int, list[Array]] = {}
        for middle, tensors in trees.items():
            for result in range(abs(middle - factor), middle + factor + 1):
                table = clebsch_gordan(middle, factor, result)
                products = [np.tensordot(tensor, table, axes=1) for tensor in tensors]
                grown.setdefault(result, []).extend(products)
        trees = grown
    return trees.get(degree, [])


def _polynomial(factors: Sequence[int], tree: Array) -> Polynomial:
    """Return the polynomial of the coupling ``tree`` if all factors are the same feature.

    ``factors`` are the degrees of the factors.
    """
    found: Polynomial = {}
    for *indices, component in np.argwhere(np.abs(tree) > 1e-12).tolist():
        places = zip(factors, indices, strict=True)
        monomial = tuple(sorted(degree**2 + index for degree, index in places))
        key = (component, monomial)
        found[key] = found.get(key, 0.0) + float(tree[(*indices, component)])
    return found


def _independent(polynomials: list[Polynomial]) -> list[Polynomial]:
    """Return orthonormal polynomials that span the given ones.

    Gram and Schmidt's method, unlike a matrix decomposition, gives the same result on every
    machine; the weights of a network refer to it.
    """
    keys = sorted({key for polynomial in polynomials for key in polynomial})
    # Norms are those of the symmetric tensor that has each monomial in all orders of its factors.
    scales = np.array([_orders(monomial) ** -0.5 for _, monomial in keys])
    basis: list[Array] = []
    for polynomial in polynomials:
        vector = np.array([polynomial.get(key, 0.0) for key in keys]) * scales
        for _ in range(2):  # twice against rounding
            for other in basis:
                vector = vector - other * (other @ vector)
        rest = float(np.linalg.norm(vector))
        if rest > 1e-6:
            basis.append(vector / rest)
    return [
        {
            key: float(value)
            for key, value in zip(keys, vector / scales, strict=True)
            if abs(value) > 1e-12
        }
        for vector in basis
    ]


def _orders(monomial: Monomial) -> int:
    """Return the number of distinct orders of a monomial's factors."""
    repeats = math.prod(math.factorial(count) for count in Counter(monomial).values())
    return math.factorial(len(monomial)) // repeats
