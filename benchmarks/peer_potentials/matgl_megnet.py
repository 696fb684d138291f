"""matgl's MEGNet, in the sizes of its paper (Chen et al., arXiv:1812.05055).

The rate falls along half a cosine of the CPU time, and weights are averaged, as in the other peers.
Batch and rate were not searched. Of matgl's networks M3GNet erred more: 0.227 against 0.206 eV/atom
after 120 CPU-seconds on 1,080 structures, at a rate of 1e-3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ase.data import chemical_symbols
from matgl.config import DEFAULT_ELEMENTS
from matgl.models import MEGNet
from torch import Tensor
from torch.nn.functional import mse_loss
from torch_geometric.data import Data

from peer_potentials.training import Batch, Graph, Peer, main

_CUTOFF, _RATE = 5.0, 3e-3


def _peer(train: Sequence[Graph], neighbours: float) -> Peer:
    model = MEGNet(
        dim_node_embedding=16,
        dim_edge_embedding=100,
        dim_state_embedding=2,
        nblocks=3,
        hidden_layer_sizes_input=(64, 32),
        hidden_layer_sizes_conv=(64, 64, 32),
        hidden_layer_sizes_output=(32, 16),
        include_state=True,
        cutoff=_CUTOFF,
        gauss_width=0.5,
    )
    spread = float(torch.tensor([graph.energy for graph in train]).std())
    place = {chemical_symbols.index(symbol): k for k, symbol in enumerate(DEFAULT_ELEMENTS)}

    def predict(batch: Batch) -> tuple[Tensor, Tensor]:
        graphs = Data(
            node_type=torch.tensor([place[number] for number in batch.numbers.tolist()]),
            pos=batch.positions,
            edge_index=batch.edges,
            pbc_offshift=batch.shifts,
            batch=batch.graph,
            num_graphs=len(batch.sizes),
        )
        found = model(graphs, state_attr=torch.zeros(len(batch.sizes), 2))
        return spread * found.view(-1), torch.zeros_like(batch.forces)

    return Peer(
        model,
        predict,
        lambda batch, values, _: mse_loss(values / spread, batch.energies / spread),
        torch.optim.Adam(model.parameters(), lr=_RATE),
        batch_size=32,
        ema_decay=0.99,
        potential=False,
    )


if __name__ == "__main__":
    main(_peer)
