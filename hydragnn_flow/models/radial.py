"""Radial bases, which turn a length into smooth features, and envelopes that end them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class GaussianBasis(nn.Module):
    """Gaussians at equal distances from zero to the cutoff, as wide as their distance.

    Schütt et al., SchNet, arXiv:1706.08566.

    Parameters
    ----------
    size
        Number of Gaussians, at least 2.
    cutoff
        Centre of the last one [Å].
    """

    centres: Tensor

    def __init__(self, size: int, cutoff: float) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.0, cutoff, size), persistent=False)
        spacing = cutoff / (size - 1)
        self.exponent = -0.5 / spacing**2

    def forward(self, lengths: Tensor) -> Tensor:
        """Compute features [n_edges, size] of lengths [n_edges, 1] in Å."""
        return torch.exp(self.exponent * (lengths - self.centres).square())


class BesselBasis(nn.Module):
    """Spherical Bessel functions of order zero, √(2/c) sin(nπd/c) / d for n = 1 … size.

    They have no envelope: each is zero at the cutoff c, but its slope is not. See
    :func:`polynomial_envelope`. Gasteiger et al., DimeNet, arXiv:2003.03123, equation 7.

    Parameters
    ----------
    size
        Number of functions in the basis.
    cutoff
        Cutoff c of the neighbour list [Å].
    """

    frequencies: Tensor

    def __init__(self, size: int, cutoff: float) -> None:
        super().__init__()
        frequencies = torch.arange(1, size + 1) * (math.pi / cutoff)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.factor = math.sqrt(2.0 / cutoff)

    def forward(self, lengths: Tensor) -> Tensor:
        """Compute features [n_edges, size] of lengths [n_edges, 1] in Å; finite at zero length."""
        # Constant below a thousandth of an Å, where the quotient and its derivatives would be
        # noise.
        lengths = lengths.clamp(min=1e-3)
        return torch.sin(lengths * self.frequencies) * (self.factor / lengths)


def polynomial_envelope(lengths: Tensor, cutoff: float, exponent: int) -> Tensor:
    """Compute a polynomial that is 1 at zero, and 0 with its first two derivatives at the cutoff.

    u(x) = 1 - (p+1)(p+2)/2 xᵖ + p(p+2) xᵖ⁺¹ - p(p+1)/2 xᵖ⁺² with x = d / c, and 0 beyond. Gasteiger
    et al., DimeNet, arXiv:2003.03123, equation 8.

    Parameters
    ----------
    lengths
        Lengths d of any shape, in Å.
    cutoff
        Cutoff c of the neighbour list [Å].
    exponent
        Exponent p, at least 2: the larger, the longer the envelope stays near 1.
    """
    x = (lengths / cutoff).clamp(max=1.0)
    p = exponent
    bracket = (p + 1) * (p + 2) / 2 - x * (p * (p + 2) - x * (p * (p + 1) / 2))
    return 1.0 - x.pow(p) * bracket
