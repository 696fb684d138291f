"""MACE's product basis: many-body features from powers of the sum over neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from hydragnn_flow.models.couplings import Array, Monomial, Table, symmetric_basis


class SymmetricContraction(nn.Module):
    """Independent products of up to ``order`` factors, summed with weights of the atom's element.

    Batatia et al., arXiv:2206.07697, equations 10 and 11. All monomials of the components are
    computed first; one matrix turns them into the products. Components are the first dimension, so
    this is a single matrix product for all atoms and channels.

    Parameters
    ----------
    highest
        Highest degree of the factors.
    outputs
        Degrees of the products.
    order
        Largest number of factors.
    elements
        Number of elements with weights of their own.
    width
        Number of channels; they do not mix.
    """

    def __init__(
        self, highest: int, outputs: Sequence[int], order: int, elements: int, width: int
    ) -> None:
        super().__init__()
        bases = [
            [symmetric_basis(highest, power, degree) for power in range(1, order + 1)]
            for degree in outputs
        ]
        needed = {m for powers in bases for monomials, _ in powers for m in monomials}
        by_power = _computable(needed, (highest + 1) ** 2, order)
        self.powers = nn.ModuleList(_Power(lower, here) for lower, here in pairwise(by_power))
        column = {m: number for number, m in enumerate(m for power in by_power for m in power)}
        rows: list[Array] = []
        self.shapes: list[tuple[int, int]] = []
        self.weights = nn.ParameterList()
        for degree, powers in zip(outputs, bases, strict=True):
            for monomials, coefficients in powers:
                block = np.zeros((*coefficients.shape[:2], len(column)))
                block[:, :, [column[monomial] for monomial in monomials]] = coefficients
                rows.append(block.reshape(-1, len(column)))
            features = sum(len(coefficients) for _, coefficients in powers)
            self.shapes.append((features, 2 * degree + 1))
            scale = max(features, 1) ** -0.5
            self.weights.append(nn.Parameter(torch.randn(features, elements, width) * scale))
        self.products = Table(np.concatenate(rows))

    def forward(self, factors: Tensor, elements: Tensor) -> list[Tensor]:
        """Compute weighted sums of products of each output degree, [2 degree + 1, n_atoms, width].

        Parameters
        ----------
        factors
            Components of the factors [(highest + 1)², n_atoms, width].
        elements
            Index of each atom's weights, int64 [n_atoms]; the number of elements stands for the
            mean of all.
        """
        monomials = [factors]
        for power in self.powers:
            monomials.append(power(monomials[-1], factors))
        every = torch.cat(monomials).flatten(1)
        products = torch.split(
            self.products(every) @ every, [features * size for features, size in self.shapes]
        )
        sums: list[Tensor] = []
        for (features, size), product, weight in zip(
            self.shapes, products, self.weights, strict=True
        ):
            table = torch.cat([weight, weight.mean(dim=1, keepdim=True)], dim=1)
            of_atom = table.index_select(1, elements)[:, None]
            by_feature = product.view(features, size, *factors.shape[1:])
            sums.append((by_feature * of_atom).sum(dim=0))
        return sums


class _Power(nn.Module):
    """Product that extends ``lower`` monomials by one factor to ``monomials``."""

    rest: Tensor
    last: Tensor

    def __init__(self, lower: list[Monomial], monomials: list[Monomial]) -> None:
        super().__init__()
        place = {monomial: number for number, monomial in enumerate(lower)}
        rest = torch.tensor([place[monomial[:-1]] for monomial in monomials], dtype=torch.int64)
        last = torch.tensor([monomial[-1] for monomial in monomials], dtype=torch.int64)
        self.register_buffer("rest", rest, persistent=False)
        self.register_buffer("last", last, persistent=False)

    def forward(self, lower: Tensor, factors: Tensor) -> Tensor:
        """Compute the monomials [n_monomials, n_atoms, width]."""
        return lower.index_select(0, self.rest) * factors.index_select(0, self.last)


def _computable(needed: set[Monomial], n_components: int, order: int) -> list[list[Monomial]]:
    """Return needed monomials and those they are computed from, by number of factors."""
    by_power = [sorted(m for m in needed if len(m) == power) for power in range(1, order + 1)]
    for power in range(order - 1, 0, -1):
        smaller = {monomial[:-1] for monomial in by_power[power]}
        by_power[power - 1] = sorted(smaller.union(by_power[power - 1]))
    by_power[0] = [(component,) for component in range(n_components)]
    return by_power
