"""PNAPlus: PNA whose messages are multiplied by functions of the length, as in HydraGNN."""

from __future__ import annotations

from torch import nn

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.layers import BesselBasis, EdgeReader, polynomial_envelope
from hydragnn_flow.models.mpnn.layers import Convolutions
from hydragnn_flow.models.mpnn.pna import (
    WeightedEdges,
    WeightedPNAConvolution,
    mean_log_degree,
)


class PNAPlus(Convolutions):
    """Stack of PNA layers that read Bessel functions of the length and gate messages by them.

    In HydraGNN messages fade with these functions. Here the same envelope also weights each edge in
    the mean, the deviation and the degree.
    """

    def prepare(self) -> None:
        """Build ``reader``, the module that makes edge features; set the envelope."""
        size = self.architecture.num_radial
        self.exponent = self.architecture.envelope_exponent
        # The highest Bessel function has a wavelength of two cutoffs divided by the number of
        # functions.
        self.reader = EdgeReader(
            BesselBasis(size, self.statistics.cutoff),
            size,
            16 * size,
            self.statistics.n_attributes,
            self.statistics.cutoff,
        )

    def convolution(self, width: int) -> nn.Module:
        """Return the PNAPlus convolution of one layer, for node features [n_atoms, width]."""
        logs = mean_log_degree(self.statistics)
        return WeightedPNAConvolution(width, self.reader.size, logs, gated=True)

    def edge_features(self, geometry: Geometry) -> WeightedEdges:
        """Return functions that apply networks to each edge's features, and the weights of edges.

        The features are length and attributes. The weights are the polynomial envelope.
        """
        envelope = polynomial_envelope(geometry.lengths, geometry.cutoff, self.exponent)
        degree = geometry.sum_at_receiver(envelope) + 1.0
        return WeightedEdges(self.reader(geometry), envelope, degree)
