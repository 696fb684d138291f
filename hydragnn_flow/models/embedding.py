"""Embedding of the input node features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

ATOMIC_NUMBER = "atomic_number"
"""Name of the node-feature column that chooses a row of the embedding."""

N_ELEMENTS = 119
"""Number of rows in a table indexed by atomic number."""


class NodeEmbedding(nn.Module):
    """Embedding of chemical elements, plus a linear map of the other input columns.

    HydraGNN feeds the atomic number as a number. With a learned row per element, neighbours in the
    periodic table need not be similar.

    Parameters
    ----------
    columns
        Names of all node-feature columns of the store.
    inputs
        Indices of the columns that are read, `Variables_of_interest.input_node_features`.
    width
        Width of the resulting node features.
    encodings
        Number of columns of positional encodings, which a linear map adds; 0 for none. HydraGNN
        joins both embeddings by another linear map: the same functions, with more weights.
    """

    def __init__(
        self, columns: Sequence[str], inputs: Sequence[int], width: int, encodings: int = 0
    ) -> None:
        super().__init__()
        self.n_columns = len(columns)
        self.inputs = tuple(inputs)
        self.number_column = columns.index(ATOMIC_NUMBER) if ATOMIC_NUMBER in columns else None
        chosen = [index for index in inputs if columns[index] == ATOMIC_NUMBER]
        self.element_column = chosen[0] if chosen else None
        self.other_columns = [index for index in inputs if index not in chosen]
        self.elements = nn.Embedding(N_ELEMENTS, width) if chosen else None
        self.others = (
            nn.Linear(len(self.other_columns), width, bias=not chosen)
            if self.other_columns
            else None
        )
        self.encodings = nn.Linear(encodings, width, bias=False) if encodings else None

    def elements_of(self, x: Tensor) -> Tensor | None:
        """Return atomic numbers int64 [n_atoms] from node features; None if these lack them."""
        if self.number_column is None:
            return None
        return x[:, self.number_column].long()

    def forward(self, x: Tensor, dtype: torch.dtype, encodings: Tensor | None = None) -> Tensor:
        """Return the embedding of node features, [n_atoms, width].

        Parameters
        ----------
        x
            Node features [n_atoms, n_columns].
        dtype
            Data type of the result; that of the model's parameters.
        encodings
            Positional encodings of the atoms [n_atoms, encodings], if the network reads them.
        """
        terms: list[Tensor] = []
        if self.elements is not None:
            terms.append(self.elements(x[:, self.element_column].long()))
        if self.others is not None:
            # Indexing by a list would copy the list to an accelerator in every step.
            columns = torch.stack([x[:, column] for column in self.other_columns], dim=1)
            terms.append(self.others(columns.to(dtype)))
        if self.encodings is not None:
            terms.append(self.encodings(encodings))
        return sum(terms[1:], start=terms[0])
