"""Functions of the length and the attributes of edges, for invariant types."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels.spline import Interpolation, Knots
from hydragnn_flow.models.radial import GaussianBasis

if TYPE_CHECKING:
    from hydragnn_flow.models.mpnn.base import DatasetStatistics


class EdgeReader(nn.Module):
    """Prepares the functions of a batch's edges.

    Parameters
    ----------
    basis
        Module from lengths [n, 1] in Å to features [n, basis_size]; None to ignore lengths.
    basis_size
        Number of features of the basis.
    intervals
        Number of spline intervals between zero and the cutoff, several per feature.
    attributes
        Number of edge features other than the length.
    cutoff
        Cutoff of the neighbour list [Å].
    """

    def __init__(
        self,
        basis: nn.Module | None,
        basis_size: int,
        intervals: int,
        attributes: int,
        cutoff: float,
    ) -> None:
        super().__init__()
        self.basis = basis
        self.attributes = attributes
        self.size = attributes if basis is None else basis_size + attributes
        """Number of input features of the functions; 0 if edges have no features."""
        # Edges of equal length may have different attributes, so knots would not suffice.
        self.knots = Knots(intervals, cutoff) if basis is not None and not attributes else None

    def forward(self, geometry: Geometry, factor: Tensor | None = None) -> EdgeFunctions:
        """Prepare to compute functions, each multiplied by a factor [n_edges, 1]."""
        if self.knots is not None:
            assert self.basis is not None
            interpolation = self.knots(geometry.lengths, factor)
            return EdgeFunctions(self.basis(self.knots.lengths), interpolation, None)
        features: list[Tensor] = []
        if self.basis is not None:
            features.append(self.basis(geometry.lengths))
        if self.attributes:
            assert geometry.attributes is not None  # the encoder provides them
            features.append(geometry.attributes)
        return EdgeFunctions(torch.cat(features, dim=1), None, factor)


@dataclass(frozen=True)
class EdgeFunctions:
    """Evaluator of networks on the features of edges, at knots if these are lengths alone."""

    features: Tensor
    interpolation: Interpolation | None
    factor: Tensor | None

    def of(self, network: nn.Module) -> Tensor:
        """Compute a network at every edge [n_edges, width], times the factor."""
        if self.interpolation is None:
            values: Tensor = network(self.features)
            return values if self.factor is None else values * self.factor
        return self.interpolation(self.at_knots(network))

    def at_knots(self, network: nn.Module) -> Tensor:
        """Compute a network at the knots of the interpolation, without the factor."""
        # bfloat16 would round away the differences between neighbouring knots, which make the
        # forces. There are so few knots that the precision costs no time.
        with without_autocast(self.features.device.type):
            values: Tensor = network(self.features)
            return values


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context in which operations keep their operands' precision, even under autocast."""
    available = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else nullcontext()


def gaussian_reader(
    architecture: Architecture, statistics: DatasetStatistics, *, lengths: bool = True
) -> EdgeReader:
    """Return a reader of `num_gaussians` Gaussians of the length, and of the edges' attributes.

    Parameters
    ----------
    architecture, statistics
        Arguments of the message-passing type.
    lengths
        If false, only the attributes are read.
    """
    gaussians = architecture.num_gaussians if lengths else 0
    basis = GaussianBasis(gaussians, statistics.cutoff) if gaussians else None
    # Number of knots per feature, with which a spline has relative errors of some thousandths.
    intervals = 4 * gaussians
    return EdgeReader(basis, gaussians, intervals, statistics.n_attributes, statistics.cutoff)
