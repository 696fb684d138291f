"""Embedding of the input node features."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import torch
from ase.data import covalent_radii
from torch import Tensor, nn
from torch.nn import functional

ATOMIC_NUMBER = "atomic_number"
"""Name of the node-feature column that chooses a row of the embedding."""

N_ELEMENTS = 119
"""Number of rows in a table indexed by atomic number."""


class NodeEmbedding(nn.Module):
    """Embedding of an atom's input columns as features [n_atoms, width].

    It is the sum of a learned row for the chemical element and a linear map of the other columns.
    HydraGNN feeds the atomic number as a number instead. Rows of elements close in the periodic
    table begin alike, so that what is learnt of one element holds for the other, which may be rare
    in the training data.

    Parameters
    ----------
    columns
        Names of all node-feature columns of the store.
    inputs
        Indices of the columns that are read, which are `Variables_of_interest.input_node_features`.
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
        self.elements = _element_table(width) if chosen else None
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


def _element_table(width: int) -> nn.Embedding:
    """Return an embedding whose rows are random linear maps of the elements' periodic features."""
    table = nn.Embedding(N_ELEMENTS, width)
    features = periodic_features()
    own = 0.1  # mean part of the rows' squares that no other element shares
    common = features @ torch.randn(features.shape[1], width) / features.shape[1] ** 0.5
    with torch.no_grad():
        table.weight.mul_(own**0.5).add_(common, alpha=(1 - own) ** 0.5)
    return table


def periodic_features() -> Tensor:
    """Return nine features of each chemical element, of mean 0 and deviation 1, [N_ELEMENTS, 9].

    Rows are in the order of atomic numbers; row 0, which stands for no element, is zero. The
    features are group, period, number of f elements passed in the period, Pauling's
    electronegativity (1.3 where there is none), covalent radius of ASE, logarithm of the atomic
    number, and whether the element is in the s, d or p block.
    """
    # Electronegativities in hundredths, from hydrogen to curium; 0 where there is none.
    # fmt: off
    pauling = (
        220, 0, 98, 157, 204, 255, 304, 344, 398, 0, 93, 131, 161, 190, 219, 258, 316, 0, 82, 100,
        136, 154, 163, 166, 155, 183, 188, 191, 190, 165, 181, 201, 218, 255, 296, 300, 82, 95,
        122, 133, 160, 216, 190, 220, 228, 220, 193, 169, 178, 196, 205, 210, 266, 260, 79, 89,
        110, 112, 113, 114, 113, 117, 120, 120, 110, 122, 123, 124, 125, 110, 127, 130, 150, 236,
        190, 220, 220, 228, 254, 200, 162, 233, 202, 200, 220, 220, 79, 90, 110, 130, 150, 138,
        136, 128, 113, 128,
    )
    # fmt: on
    rows = []
    closed = (0, 2, 10, 18, 36, 54, 86, 118)  # noble gases, with which periods end
    for number in range(1, N_ELEMENTS):
        period = bisect_left(closed, number)
        place, left = number - closed[period - 1], closed[period] - number
        f_elements = min(max(place - 3, 0), 14) if place + left == 32 else 0
        group = place if place <= 2 and number != 2 else max(18 - left, 3)
        blocks = (group <= 2, 3 <= group <= 12, group >= 13)
        attraction = pauling[number - 1] if number <= len(pauling) else 0
        sizes = float(covalent_radii[number]), math.log(number)
        rows.append((group, period, f_elements, attraction or 130, *sizes, *blocks))
    found = torch.tensor(rows)
    return functional.pad((found - found.mean(0)) / found.std(0), (0, 0, 1, 0))
