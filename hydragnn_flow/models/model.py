"""Base classes of models, the encoder, and models of separate graph and node targets."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hydragnn_flow.models.batch_inputs import BatchInputs
from hydragnn_flow.models.branches import branch_of_graph
from hydragnn_flow.models.embedding import NodeEmbedding
from hydragnn_flow.models.geometry import (
    Geometry,
    GraphBatch,
    edge_vectors,
    largest_graph,
    padding,
    space_of,
)
from hydragnn_flow.models.heads import Heads, pool
from hydragnn_flow.models.layers import Join
from hydragnn_flow.models.leverage import LEVERAGE, Leverage
from hydragnn_flow.models.mpnn import MessagePassing


class Encoder(nn.Module):
    """Encoder of a network: turns a batch into node features by embedding and message passing.

    Parameters
    ----------
    embedding
        Embedding of the input node features.
    layers
        Stack of message-passing layers.
    cutoff
        Edge length at which the envelope, which weights messages, reaches zero [Å].
    inputs
        Optional keys of a batch that the network reads.
    fusion
        Layer that joins each graph's pooled features with its ``graph_attr``; None for no such
        layer.
    """

    def __init__(
        self,
        embedding: NodeEmbedding,
        layers: MessagePassing,
        cutoff: float,
        inputs: BatchInputs,
        fusion: Join | None = None,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = layers
        self.cutoff = cutoff
        self.inputs = inputs
        self.fusion = fusion

    def forward(self, batch: GraphBatch, positions: Tensor) -> tuple[Tensor, Geometry]:
        """Return node features [n_atoms, hidden_dim] after all layers, and the batch's geometry.

        Parameters
        ----------
        batch
            Batch of graphs with the keys that the network reads.
        positions
            Positions of the batch's atoms [n_atoms, 3] in Å; the network computes in their data
            type.

        Raises
        ------
        InputError
            If the graphs lack a key that the network reads.
        """
        geometry = self.geometry(batch, positions)
        encodings = self.inputs.node_encodings(batch, positions.dtype)
        nodes = self.embedding(batch.x, positions.dtype, encodings)
        return self.layers(nodes, geometry), geometry

    def geometry(self, batch: GraphBatch, positions: Tensor) -> Geometry:
        """Return the geometry of a batch: edges, their vectors [Å], and further inputs of layers.

        Atoms are at ``positions`` [n_atoms, 3] in Å, not at those in the batch.
        """
        places = None
        if self.inputs.whole_graphs:
            places = padding(batch.batch, batch.num_graphs, largest_graph(batch))
        return Geometry(
            sender=batch.edge_index[0],
            receiver=batch.edge_index[1],
            vectors=edge_vectors(batch, positions),
            cutoff=self.cutoff,
            graph=batch.batch,
            n_graphs=batch.num_graphs,
            elements=self.embedding.elements_of(batch.x),
            attributes=self.inputs.edge_attributes(batch, positions.dtype),
            graph_attr=self.inputs.graph_features(batch, positions.dtype),
            padding=places if self.inputs.whole_graphs else None,
            space=space_of(batch, positions) if self.inputs.space else None,
        )


class Model(nn.Module):
    """Base class of the models that :func:`~hydragnn_flow.models.build_model` returns.

    A call with a batch returns a dict from output name to a tensor in the data's units: [n_graphs,
    d] for a graph target, [n_atoms, d] for a node target. Inputs are cast to the precision of the
    parameters, in which the model computes. Graph targets are float64. The batch is not changed.
    A model with a :attr:`leverage` returns that too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.leverage: Leverage | None = None

    def levered(self, nodes: Tensor, batch: GraphBatch) -> dict[str, Tensor]:
        """Return each structure's leverage [n_graphs, 1], under its output name :data:`.LEVERAGE`.

        The leverage says how far the network extrapolates. The result is empty if the model has
        none.

        ``nodes`` are the features of each atom that the output heads read, ``[n_atoms, d]``.
        """
        return {} if self.leverage is None else {LEVERAGE: self.leverage(nodes, batch)}

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the parameters, in which the model computes."""
        return next(self.parameters()).dtype

    def node_features(self, batch: GraphBatch) -> Tensor:
        """Return the features of each atom that the output heads read, [n_atoms, k].

        Raises
        ------
        InputError
            If an engine (external library) has built the network, and its module does not provide
            node features.
        """
        raise NotImplementedError

    def is_of_encoder(self, name: str) -> bool:
        """Return whether the state-dict tensor called ``name`` belongs to the encoder.

        Tensors of output heads, and constants such as scales, do not.
        """
        raise NotImplementedError


class HydraModel(Model):
    """Model whose layers are this package's own, not those of an engine (external library)."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def node_features(self, batch: GraphBatch) -> Tensor:
        """Return the encoder's node features [n_atoms, hidden_dim] for a batch."""
        nodes, _ = self.encoder(batch, batch.pos.to(self.dtype))
        features: Tensor = nodes
        return features

    def is_of_encoder(self, name: str) -> bool:
        """Return whether the state-dict tensor called ``name`` belongs to the encoder."""
        return name.startswith("encoder.")


class PropertyModel(HydraModel):
    """Model that predicts graph and node targets, each with a head of its own.

    Parameters
    ----------
    encoder
        Encoder that computes node features.
    graph_heads, node_heads
        Heads of the graph targets and of the node targets; None if there is no such target.
    pooling
        HydraGNN's `graph_pooling`, by which node features become graph features: ``mean``, ``max``,
        ``add`` or ``sum``.
    """

    def __init__(
        self, encoder: Encoder, graph_heads: Heads | None, node_heads: Heads | None, pooling: str
    ) -> None:
        super().__init__(encoder)
        self.graph_heads = graph_heads
        self.node_heads = node_heads
        self.pooling = pooling
        self.n_branches = max(len(heads.branches) for heads in (graph_heads, node_heads) if heads)

    def forward(self, batch: GraphBatch) -> dict[str, Tensor]:
        """Return predictions by output name, [n_graphs, d] or [n_atoms, d], in the data's units."""
        nodes, geometry = self.encoder(batch, batch.pos.to(self.dtype))
        branch = branch_of_graph(batch, self.n_branches)
        outputs: dict[str, Tensor] = {}
        if self.graph_heads is not None:
            pooled = pool(nodes, geometry.graph, geometry.n_graphs, self.pooling)
            if self.encoder.fusion is not None:
                pooled = self.encoder.fusion.pooled(pooled, geometry)
            outputs |= self.graph_heads(pooled, geometry, branch)
        if self.node_heads is not None:
            of_atom = None if branch is None else branch.index_select(0, geometry.graph)
            outputs |= self.node_heads(nodes, geometry, of_atom)
        return outputs | self.levered(nodes, batch)
