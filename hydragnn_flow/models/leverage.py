"""Leverage of structures: how far a trained network extrapolates to them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from ase.data import covalent_radii
from torch import Tensor, nn

from hydragnn_flow.models.geometry import GraphBatch
from hydragnn_flow.models.heads import pool

LEVERAGE = ".leverage"  # begins with a dot, unlike names of targets
"""Name of the output of a model that has a :class:`Leverage`."""
# Least variance of a combination of features, as a fraction of the usual one; its square is that of
# rounding, as a fraction of the mean square.
_RIDGE = 1e-6


class Leverage(nn.Module):
    """Leverage of structures in a linear regression on the features that a network has learnt.

    It says how far the network extrapolates to a structure. A structure's features are the means
    over its atoms of the features that the output heads read, and, if nodes are atoms, of their
    packing: the sums of x⁻³, x⁻⁶ and x⁻⁹ over the neighbours. The distance x of two atoms is in
    units of the sum of their covalent radii, and at least 0.5.

    The leverage is ``zᵀ C⁻¹ z / k``, where z are the k features minus their means, and C is their
    covariance. Means and covariance are those of the training data, where the mean leverage is
    about 1. New structures have a larger leverage, and a much larger one if there are fewer
    training structures than features. The variance of the regression's prediction grows in
    proportion to the leverage.

    The method is the last-layer prediction rigidity of Bigi, Chong, Ceriotti and Grasselli (Mach.
    Learn.: Sci. Technol. 5, 045018 (2024)), with the packing added. Without the packing, crystals
    that are strongly compressed or expanded have too small a leverage.

    Until it is fitted, a call returns the features.

    Parameters
    ----------
    atoms
        True if nodes are atoms, and node feature 0 is the atomic number.
    """

    mean: Tensor
    whitening: Tensor
    radii: Tensor

    def __init__(self, atoms: bool) -> None:
        super().__init__()
        self.atoms = atoms
        radii = torch.from_numpy(covalent_radii).double()
        # Not in the state dict, which is that of the network.
        self.register_buffer("radii", radii, persistent=False)
        self.register_buffer("mean", torch.empty(0), persistent=False)
        self.register_buffer("whitening", torch.empty(0), persistent=False)

    @classmethod
    def of(
        cls, atoms: bool, state: Mapping[str, Tensor], device: torch.device | str = "cpu"
    ) -> Leverage | None:
        """Return a fitted leverage on a device, from its :attr:`state`; None for an empty state."""
        if not state:
            return None
        leverage = cls(atoms)
        leverage.mean, leverage.whitening = state["mean"], state["whitening"]
        return leverage.to(device)

    @property
    def state(self) -> dict[str, Tensor]:
        """Tensors of a fitted leverage by name: mean ``[k]`` and whitening matrix ``[k, k]``."""
        return {"mean": self.mean.cpu(), "whitening": self.whitening.cpu()}

    def fit(self, moments: Tensor) -> None:
        """Fit the leverage: set its mean and whitening matrix from the training structures.

        Parameters
        ----------
        moments
            Sum of ``f fᵀ`` over the training structures, ``[k + 1, k + 1]``, float64. The vector f
            of a structure has its k features and a one.
        """
        moments = moments / moments[-1, -1]
        self.mean = moments[-1, :-1]
        covariance = moments[:-1, :-1] - torch.outer(self.mean, self.mean)
        learnt = len(self.mean) - 3 * self.atoms
        # A network's features have one unit, each sum of the packing another.
        size, square = covariance.diagonal().clone(), moments.diagonal()[:-1].clone()
        size[:learnt], square[:learnt] = size[:learnt].mean(), square[:learnt].mean()
        least = _RIDGE * size + _RIDGE**2 * square + torch.finfo(size.dtype).eps
        scale = (size + least).rsqrt()
        scaled = (covariance + least.diag()) * torch.outer(scale, scale)
        values, directions = torch.linalg.eigh(scaled)
        values = values.clamp(min=torch.finfo(size.dtype).eps)
        whitened = directions / (values * len(values)).sqrt()
        self.whitening = scale[:, None] * whitened

    def forward(self, nodes: Tensor, batch: GraphBatch) -> Tensor:
        """Return the leverage of each structure ``[n_graphs, 1]``, float64.

        Before :meth:`fit` the result is their features ``[n_graphs, k]``.

        Parameters
        ----------
        nodes
            Features of each atom that the output heads read, ``[n_atoms, d]``.
        batch
            Batch of graphs that the atoms belong to.
        """
        described = nodes.detach().double()
        if self.atoms:
            described = torch.cat([described, self._packing(batch)], dim=1)
        features = pool(described, batch.batch, batch.num_graphs, "mean")
        if not len(self.mean):
            return features
        leverage: Tensor = ((features - self.mean) @ self.whitening).square().sum(1, keepdim=True)
        return leverage

    def _packing(self, batch: GraphBatch) -> Tensor:
        """Return the packing of each atom, ``[n_atoms, 3]``."""
        sender, receiver = batch.edge_index
        radii = self.radii[batch.x[:, 0].long().clamp(0, len(self.radii) - 1)]
        vectors = batch.pos[receiver] - batch.pos[sender] + batch.edge_shifts
        distances = vectors.double().norm(dim=1) / (radii[sender] + radii[receiver])
        cubes = distances.clamp(min=0.5) ** -3
        sums = cubes.new_zeros(len(radii), 3)
        packing: Tensor = sums.index_add_(0, receiver, torch.stack([cubes, cubes**2, cubes**3], 1))
        return packing
