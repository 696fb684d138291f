"""A network: node embedding and message passing, then heads for graph and node targets."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hydragnn_flow.models.embedding import NodeEmbedding
from hydragnn_flow.models.geometry import GraphBatch, edge_geometry
from hydragnn_flow.models.heads import Heads
from hydragnn_flow.models.mpnn import MessagePassing
from hydragnn_flow.models.pooling import pool


class Encoder(nn.Module):
    """From a batch to node features.

    Parameters
    ----------
    embedding
        Of the input node features.
    layers
        The message-passing stack.
    cutoff
        Where the edges' envelope ends [Å].
    """

    def __init__(self, embedding: NodeEmbedding, layers: MessagePassing, cutoff: float) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = layers
        self.cutoff = cutoff

    def forward(self, batch: GraphBatch, positions: Tensor) -> Tensor:
        """Node features [n_atoms, hidden_dim] of a batch with its atoms at ``positions``."""
        nodes = self.embedding(batch.x, positions.dtype)
        features: Tensor = self.layers(nodes, edge_geometry(batch, positions, self.cutoff))
        return features


class HydraModel(nn.Module):
    """What :func:`~hydragnn_flow.models.build_model` returns.

    Called with a batch, a model returns a dict from output name to a tensor in the data's units,
    [n_graphs, d] or [n_atoms, d]. It computes in the precision of its parameters, to which it
    casts what it reads of the batch; graph-level outputs are float64. The batch is not changed.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the parameters."""
        return next(self.parameters()).dtype


class PropertyModel(HydraModel):
    """Graph and node targets from separate heads.

    Parameters
    ----------
    encoder
        Embedding and message passing.
    graph_heads, node_heads
        Heads by level, where there are any.
    pooling
        HydraGNN's `graph_pooling`.
    """

    def __init__(
        self, encoder: Encoder, graph_heads: Heads | None, node_heads: Heads | None, pooling: str
    ) -> None:
        super().__init__(encoder)
        self.graph_heads = graph_heads
        self.node_heads = node_heads
        self.pooling = pooling

    def forward(self, batch: GraphBatch) -> dict[str, Tensor]:
        """Predictions by output name, in the data's units."""
        nodes = self.encoder(batch, batch.pos.to(self.dtype))
        outputs: dict[str, Tensor] = {}
        if self.graph_heads is not None:
            outputs |= self.graph_heads(pool(nodes, batch, self.pooling))
        if self.node_heads is not None:
            outputs |= self.node_heads(nodes)
        return outputs
