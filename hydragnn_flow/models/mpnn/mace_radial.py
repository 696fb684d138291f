"""MACE's radial features: a basis of the length, which may first be transformed by element."""

from __future__ import annotations

import ase.data
import torch
from torch import Tensor, nn

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn.base import DatasetStatistics
from hydragnn_flow.models.radial import BesselBasis, GaussianBasis


class ChebyshevBasis(nn.Module):
    """Chebyshev polynomials of degree 1 … size over the lengths from zero to the cutoff.

    Parameters
    ----------
    size
        Number of polynomials in the basis.
    cutoff
        Length at which their argument is 1 [Å].
    """

    def __init__(self, size: int, cutoff: float) -> None:
        super().__init__()
        self.size = size
        self.cutoff = cutoff

    def forward(self, lengths: Tensor) -> Tensor:
        """Compute features [n_edges, size] of lengths [n_edges, 1] in Å."""
        # Outside ±1 they grow without bound, so lengths are mapped to that interval. HydraGNN uses
        # lengths in Å as they are.
        x = lengths * (2.0 / self.cutoff) - 1.0
        polynomials = [torch.ones_like(x), x]
        while len(polynomials) <= self.size:
            polynomials.append(2.0 * x * polynomials[-1] - polynomials[-2])
        return torch.cat(polynomials[1:], dim=1)


class AgnesiTransform(nn.Module):
    """Transform that falls from the cutoff at zero length to 0, steepest about at bond lengths.

    Witt et al., doi:10.1063/5.0158783, with the constants of MACE. There it falls from 1 to 0, but
    a basis for lengths up to the cutoff hardly changes in this range.

    Parameters
    ----------
    cutoff
        Cutoff of the basis [Å].
    """

    q, p, a = 0.9183, 4.5791, 1.0805

    def __init__(self, cutoff: float) -> None:
        super().__init__()
        self.cutoff = cutoff

    def forward(self, lengths: Tensor, radii: Tensor) -> Tensor:
        """Transform lengths, given sums of covalent radii, [n_edges, 1] in Å each."""
        x = lengths / (0.5 * radii)
        # x^q / (1 + x^(q - p)) without negative powers, which overflow at short lengths.
        return self.cutoff / (1.0 + self.a * x.pow(self.p) / (1.0 + x.pow(self.p - self.q)))


class SoftTransform(nn.Module):
    """Transform that changes the length less below bond lengths; as in MACE.

    Parameters
    ----------
    cutoff
        Cutoff of the basis [Å]; not used.
    """

    a, b = 0.2, 3.0

    def __init__(self, cutoff: float) -> None:
        super().__init__()

    def forward(self, lengths: Tensor, radii: Tensor) -> Tensor:
        """Transform lengths, given sums of covalent radii, [n_edges, 1] in Å each."""
        x = lengths / (0.25 * radii)
        return lengths + 0.5 * torch.tanh(-x - self.a * x.pow(self.b)) + 0.5


class RadialFeatures(nn.Module):
    """Features of the edges other than their directions.

    Parameters
    ----------
    architecture
        Section with `radial_type`, `num_radial` and `distance_transform`.
    statistics
        Statistics of the training split.
    """

    radii: Tensor

    def __init__(self, architecture: Architecture, statistics: DatasetStatistics) -> None:
        super().__init__()
        size, kind = architecture.num_radial, architecture.radial_type
        if kind == "gaussian" and size < 2:
            raise InputError(
                "network: Architecture.num_radial must be at least 2 for radial_type 'gaussian'"
            )
        self.transform: nn.Module | None = None
        if architecture.distance_transform is not None:
            if not statistics.elements:
                raise InputError(
                    f"network: Architecture.distance_transform = "
                    f"{architecture.distance_transform!r} needs the node feature 'atomic_number' "
                    f"in the store; remove it or prepare the store with it"
                )
            radii = torch.tensor(ase.data.covalent_radii.tolist())[:, None]
            self.register_buffer("radii", radii, persistent=False)
            transforms = {"Agnesi": AgnesiTransform, "Soft": SoftTransform}
            self.transform = transforms[architecture.distance_transform](statistics.cutoff)
        bases = {"bessel": BesselBasis, "gaussian": GaussianBasis, "chebyshev": ChebyshevBasis}
        self.basis = bases[kind](size, statistics.cutoff)
        # Scale of Bessel functions that makes their mean square within the cutoff one.
        self.factor = (statistics.cutoff**3 / 3) ** 0.5 if kind == "bessel" else 1.0
        self.size = size + statistics.n_attributes

    def forward(self, geometry: Geometry) -> Tensor:
        """Compute features [n_edges, size]: the basis, then the attributes of the edges."""
        lengths = geometry.lengths
        if self.transform is not None:
            assert geometry.elements is not None  # the constructor has checked the store
            radii = self.radii.index_select(0, geometry.elements)
            radii = geometry.of_sender(radii) + geometry.of_receiver(radii)
            lengths = self.transform(lengths, radii)
        features: Tensor = self.basis(lengths) * self.factor
        if geometry.attributes is None:
            return features
        return torch.cat([features, geometry.attributes], dim=1)
