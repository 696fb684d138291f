"""schnetpack's PaiNN, with the settings of its own experiment on MD17.

``configs/experiment/md17.yaml`` and ``configs/train.yaml`` of schnetpack: weights 0.01 of energies
and 0.99 of forces, AdamW, a moving average of 0.995, 20 Gaussians, the cosine cutoff. A batch of 8,
a rate of 2e-3 that falls along half a cosine of the CPU time, and twice the weight of energies do
better here than its batch of 10 and its constant 1e-3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

# schnetpack 2.1 looks there for a name that torch has meanwhile taken away.
import torch.utils.data.dataloader as _dataloader
from torch import Tensor

from peer_potentials.training import Batch, Graph, Peer, main

if not hasattr(_dataloader, "T_co"):
    from torch.utils.data.dataset import _T_co

    setattr(_dataloader, "T_co", _T_co)  # noqa: B010

import schnetpack.properties as keys
from schnetpack.atomistic import Atomwise, Forces, PairwiseDistances
from schnetpack.model import NeuralNetworkPotential
from schnetpack.nn import CosineCutoff, GaussianRBF
from schnetpack.representation import PaiNN

_CUTOFF, _WIDTH, _RATE, _ENERGIES = 5.0, 64, 2e-3, 0.02


def _peer(train: Sequence[Graph], neighbours: float) -> Peer:
    painn = PaiNN(
        n_atom_basis=_WIDTH,
        n_interactions=3,
        radial_basis=GaussianRBF(20, _CUTOFF),
        cutoff_fn=CosineCutoff(_CUTOFF),
    )
    outputs = [
        Atomwise(n_in=_WIDTH, output_key="energy"),
        Forces(energy_key="energy", force_key="forces"),
    ]
    model = NeuralNetworkPotential(
        painn, input_modules=[PairwiseDistances()], output_modules=outputs
    )

    def predict(batch: Batch) -> tuple[Tensor, Tensor]:
        n_graphs = len(batch.sizes)
        found = model(
            {
                keys.Z: batch.numbers,
                keys.R: batch.positions,
                keys.idx_j: batch.edges[0],
                keys.idx_i: batch.edges[1],
                keys.idx_m: batch.graph,
                keys.n_atoms: batch.sizes,
                keys.offsets: torch.zeros(batch.edges.shape[1], 3),
                keys.cell: torch.zeros(n_graphs, 3, 3),
                keys.pbc: torch.zeros(3 * n_graphs, dtype=torch.bool),
            }
        )
        return found["energy"], found["forces"]

    def loss(batch: Batch, energies: Tensor, forces: Tensor) -> Tensor:
        of_energies = (energies - batch.energies).square().mean()
        of_forces = (forces - batch.forces).square().mean()
        return _ENERGIES * of_energies + (1 - _ENERGIES) * of_forces

    return Peer(
        model,
        predict,
        loss,
        torch.optim.AdamW(model.parameters(), lr=_RATE),
        batch_size=8,
        ema_decay=0.995,
    )


if __name__ == "__main__":
    main(_peer)
