"""An interatomic potential: an energy, and forces as minus its gradient."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hydragnn_flow.models.embedding import N_ELEMENTS
from hydragnn_flow.models.exact import pack_exact, unpack_exact
from hydragnn_flow.models.geometry import GraphBatch, sum_by
from hydragnn_flow.models.model import Encoder, HydraModel


class PotentialModel(HydraModel):
    """Energy as a sum over atoms: ``Σ scale * ε(node features) + Σ element_energies[Z]``.

    The first sum is computed in the precision of the parameters; the second, which can be
    thousands of eV, is added in float64, so that nothing of the first is lost. A loss in float64
    on ``energy`` is therefore exact; :meth:`references` gives the second sum by itself.

    A graph head acts on each atom before the sum, like a node head; HydraGNN applies it to the sum
    of the features, which makes the energy of two equal cells differ from twice that of one.

    Parameters
    ----------
    encoder
        Embedding and message passing.
    atomic_energy
        Node features [n_atoms, hidden_dim] to [n_atoms, 1].
    scale
        Energy [eV] of an output of one.
    element_energies
        Reference energy [eV] by atomic number; zero where not given.
    number_column
        Column of the node features that holds the atomic number.
    """

    scale: Tensor
    element_energies: Tensor

    def __init__(
        self,
        encoder: Encoder,
        atomic_energy: nn.Module,
        scale: float,
        element_energies: Mapping[int, float],
        number_column: int,
    ) -> None:
        super().__init__(encoder)
        self.atomic_energy = atomic_energy
        self.number_column = number_column
        self.register_buffer("scale", pack_exact([scale]))
        energies = [element_energies.get(number, 0.0) for number in range(N_ELEMENTS)]
        self.register_buffer("element_energies", pack_exact(energies))

    def references(self, batch: GraphBatch) -> Tensor:
        """Sum of the element energies [n_graphs, 1] in eV, float64."""
        numbers = batch.x[:, self.number_column].long()
        energies = unpack_exact(self.element_energies).index_select(0, numbers)
        return sum_by(energies[:, None], batch.batch, batch.num_graphs)

    def forward(self, batch: GraphBatch) -> dict[str, Tensor]:
        """Energy [n_graphs, 1] in eV, float64, and forces [n_atoms, 3] in eV/Å.

        While training, gradients flow through both. In evaluation mode, or where the caller has
        switched gradients off, both come detached. ``torch.inference_mode`` is not supported: it
        forbids the gradient that makes the forces.
        """
        differentiable = self.training and torch.is_grad_enabled()
        with torch.enable_grad():
            positions = batch.pos.detach().to(self.dtype).requires_grad_(True)
            raw = self.atomic_energy(self.encoder(batch, positions))
            (gradient,) = torch.autograd.grad(raw.sum(), positions, create_graph=differentiable)
            interaction = sum_by(raw, batch.batch, batch.num_graphs)
        if not differentiable:
            interaction = interaction.detach()
        scale = unpack_exact(self.scale)
        energy = interaction.double() * scale + self.references(batch)
        return {"energy": energy, "forces": gradient * -scale.to(gradient.dtype)}
