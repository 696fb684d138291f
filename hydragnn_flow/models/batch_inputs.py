"""Optional keys of a batch: edge attributes, positional encodings, graph features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hydragnn_flow.errors import InputError
from hydragnn_flow.models.geometry import GraphBatch


@dataclass(frozen=True)
class BatchInputs:
    """Optional keys of a batch of graphs that a network reads, with the number of columns of each.

    Attributes
    ----------
    edge_columns
        Indices of the columns of ``edge_attr`` (edge features) that are read.
    encodings
        Number of columns of the atoms' positional encodings, ``pe``; 0 for none.
    edge_encodings
        Number of columns of the edges' positional encodings, ``rel_pe``; 0 for none.
    graph_attr
        Number of features per graph in ``graph_attr``; 0 for none.
    whole_graphs
        True if layers (global attention) work on all atoms of a graph at once.
    space
        True if layers read positions of atoms, in addition to vectors of edges.
    """

    edge_columns: tuple[int, ...] = ()
    encodings: int = 0
    edge_encodings: int = 0
    graph_attr: int = 0
    whole_graphs: bool = False
    space: bool = False

    @property
    def n_edge_attributes(self) -> int:
        """Number of features of an edge, other than its length, that layers read."""
        return len(self.edge_columns) + self.edge_encodings

    def node_encodings(self, batch: GraphBatch, dtype: torch.dtype) -> Tensor | None:
        """Return the atoms' positional encodings [n_atoms, encodings] as ``dtype``.

        The result is None if the network reads none.
        """
        if not self.encodings:
            return None
        return _read(batch, "pe").view(-1, self.encodings).to(dtype)

    def edge_attributes(self, batch: GraphBatch, dtype: torch.dtype) -> Tensor | None:
        """Return the edge features that the network reads [n_edges, k] as ``dtype``.

        The result is None if the network reads none. Columns of ``edge_attr`` come first, then the
        edges' positional encodings.
        """
        columns: list[Tensor] = []
        if self.edge_columns:
            table = _read(batch, "edge_attr")
            if table.shape[1] <= max(self.edge_columns):
                raise InputError(
                    f"the network reads column {max(self.edge_columns)} of the key 'edge_attr' of "
                    f"the graphs, but these have {table.shape[1]}; give graphs that bring it, as "
                    f"the training data do"
                )
            # Indexing by a list would copy the list to an accelerator in every step.
            columns = [table[:, column : column + 1] for column in self.edge_columns]
        if self.edge_encodings:
            columns.append(_read(batch, "rel_pe").view(-1, self.edge_encodings))
        return torch.cat(columns, dim=1).to(dtype) if columns else None

    def graph_features(self, batch: GraphBatch, dtype: torch.dtype) -> Tensor | None:
        """Return the features of each graph [n_graphs, graph_attr] as ``dtype``.

        The result is None if the network reads none.
        """
        if not self.graph_attr:
            return None
        # Collating may have concatenated the graphs' vectors to one long vector.
        return _read(batch, "graph_attr").reshape(batch.num_graphs, self.graph_attr).to(dtype)


def _read(batch: GraphBatch, key: str) -> Tensor:
    value: Tensor | None = getattr(batch, key, None)
    if value is None:
        raise InputError(
            f"the network reads the key {key!r} of the graphs, but these do not have it; "
            f"give graphs that bring it, as the training data do"
        )
    return value
