"""Radial basis: a length as a vector of smooth features."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GaussianBasis(nn.Module):
    """Gaussians at equal distances from zero to the cutoff, as wide as they are apart.

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
        """Features [n_edges, size] of lengths [n_edges, 1] in Å."""
        return torch.exp(self.exponent * (lengths - self.centres).square())
