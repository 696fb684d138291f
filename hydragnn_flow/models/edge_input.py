"""What invariant types read of the edges: the length in a radial basis, and given attributes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.radial import GaussianBasis


class EdgeInput(nn.Module):
    """Gaussians of the lengths, and the attributes of the edges.

    Parameters
    ----------
    gaussians
        Their number; 0 leaves the lengths out.
    attributes
        Number of other edge features.
    cutoff
        Centre of the last Gaussian [Å].
    """

    def __init__(self, gaussians: int, attributes: int, cutoff: float) -> None:
        super().__init__()
        self.basis = GaussianBasis(gaussians, cutoff) if gaussians else None
        self.attributes = attributes
        self.size = gaussians + attributes

    def forward(self, geometry: Geometry) -> Tensor:
        """Features [n_edges, size]."""
        parts: list[Tensor] = []
        if self.basis is not None:
            parts.append(self.basis(geometry.lengths))
        if self.attributes:
            assert geometry.attributes is not None  # the encoder has read them
            parts.append(geometry.attributes)
        if not parts:
            return geometry.vectors.new_empty((geometry.sender.shape[0], 0))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
