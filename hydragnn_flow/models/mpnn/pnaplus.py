"""PNAPlus: PNA whose messages are multiplied by functions of the length, as in HydraGNN."""

from __future__ import annotations

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.edge_functions import EdgeReader
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn.base import DatasetStatistics, MessagePassing
from hydragnn_flow.models.mpnn.layers import convolutions
from hydragnn_flow.models.mpnn.pna import (
    WeightedEdges,
    WeightedPNAConvolution,
    mean_log_degree,
)
from hydragnn_flow.models.radial import BesselBasis, polynomial_envelope

# The highest Bessel function has a wavelength of two cutoffs divided by the number of functions.
_KNOTS_PER_FUNCTION = 16


class PNAPlus(MessagePassing):
    """PNA with Bessel functions of the length, which also gate the messages.

    In HydraGNN messages fade with these functions. Here the same envelope also weights each edge in
    the mean, the deviation and the degree.
    """

    def __init__(
        self, architecture: Architecture, statistics: DatasetStatistics, width: int, depth: int
    ) -> None:
        super().__init__(architecture, statistics, width, depth)
        size = architecture.num_radial
        self.exponent = architecture.envelope_exponent
        self.reader = EdgeReader(
            BesselBasis(size, statistics.cutoff),
            size,
            _KNOTS_PER_FUNCTION * size,
            statistics.n_attributes,
            statistics.cutoff,
        )
        logs = mean_log_degree(statistics)
        self.layers = convolutions(
            architecture,
            width,
            depth,
            lambda: WeightedPNAConvolution(width, self.reader.size, logs, gated=True),
        )

    def edge_features(self, geometry: Geometry) -> WeightedEdges:
        """Compute Bessel functions of the lengths, attributes, and the polynomial envelope."""
        envelope = polynomial_envelope(geometry.lengths, geometry.cutoff, self.exponent)
        degree = geometry.sum_at_receiver(envelope) + 1.0
        return WeightedEdges(self.reader(geometry), envelope, degree)
