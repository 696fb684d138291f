"""mace-torch's MACE, with settings of its ``mace_run_train`` and of its pages, and a cosine.

Its defaults are amsgrad at 0.01, the decay of weights, gradients up to 10 and a weight of 100 of
forces; its pages recommend batches of 5 and a moving average of 0.99. Energies per atom have a
weight of 100 here and the rate falls along half a cosine. With a weight of 1 and, in the last
quarter, a second stage of a weight of 1000 and a rate of 0.001, energies erred four times as much
in so few epochs, and forces the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from e3nn import o3
from mace import modules
from torch import Tensor, nn
from torch.nn import functional

from peer_potentials.training import Batch, Graph, Peer, main

_CUTOFF, _WIDTH, _RATE = 5.0, 64, 1e-2


def _peer(train: Sequence[Graph], neighbours: float) -> Peer:
    elements = sorted({int(number) for graph in train for number in graph.numbers})
    rows = torch.zeros(elements[-1] + 1, dtype=torch.int64)
    rows[elements] = torch.arange(len(elements))
    forces_rms = float(torch.cat([graph.forces for graph in train]).square().mean().sqrt())
    model = modules.ScaleShiftMACE(
        r_max=_CUTOFF,
        num_bessel=8,
        num_polynomial_cutoff=5,
        max_ell=2,
        interaction_cls=modules.RealAgnosticResidualInteractionBlock,
        interaction_cls_first=modules.RealAgnosticInteractionBlock,
        num_interactions=2,
        num_elements=len(elements),
        hidden_irreps=o3.Irreps(f"{_WIDTH}x0e + {_WIDTH}x1o"),
        MLP_irreps=o3.Irreps("16x0e"),
        # Of molecules of one composition: their mean energy is taken away before.
        atomic_energies=np.zeros(len(elements)),
        avg_num_neighbors=neighbours,
        atomic_numbers=elements,
        correlation=2,
        gate=functional.silu,
        radial_MLP=[64, 64, 64],
        atomic_inter_scale=forces_rms,
        atomic_inter_shift=0.0,
    )

    def predict(batch: Batch) -> tuple[Tensor, Tensor]:
        n_graphs, n_edges = len(batch.sizes), batch.edges.shape[1]
        found = model(
            {
                "positions": batch.positions,
                "node_attrs": functional.one_hot(rows[batch.numbers], len(elements)).float(),
                "edge_index": batch.edges,
                "shifts": torch.zeros(n_edges, 3),
                "unit_shifts": torch.zeros(n_edges, 3),
                "cell": torch.zeros(3 * n_graphs, 3),
                "batch": batch.graph,
                "ptr": functional.pad(torch.cumsum(batch.sizes, 0), (1, 0)),
                "head": torch.zeros(n_graphs, dtype=torch.int64),
            },
            training=model.training,
        )
        return found["energy"], found["forces"]

    def loss(batch: Batch, energies: Tensor, forces: Tensor) -> Tensor:
        of_energies = ((energies - batch.energies) / batch.sizes).square().mean()
        of_forces = (forces - batch.forces).square().mean()
        return 100.0 * of_energies + 100.0 * of_forces

    return Peer(
        model,
        predict,
        loss,
        torch.optim.AdamW(_groups(model), lr=_RATE, amsgrad=True),
        batch_size=5,
        ema_decay=0.99,
        clip=10.0,
    )


def _groups(model: nn.Module) -> list[dict[str, object]]:
    """Weights that decay, and those that do not."""
    decaying: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        mixes = name.startswith("interactions") and (
            "linear.weight" in name or "skip_tp_full.weight" in name
        )
        (decaying if mixes or name.startswith("products") else others).append(weight)
    return [{"params": decaying, "weight_decay": 5e-7}, {"params": others, "weight_decay": 0.0}]


if __name__ == "__main__":
    main(_peer)
