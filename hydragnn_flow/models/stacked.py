"""Networks of one shape, computed together: a network whose weights lie one behind the other.

A batch of graphs is a large graph whose parts do not touch. So the batches of several networks, one
behind the other, are one batch too, and whatever acts on rows of atoms and edges acts on all of
them at once: gathers, sums over neighbours, functions of lengths, activations. Only layers with
weights must know which rows are whose. Here they do: each network has as many rows as any other,
its own beside one another, and a linear layer is one product of stacks of matrices.

torch's ``vmap`` over the weights computes the same. It takes none of our kernels, twice as many
operations, and the same graphs for all networks.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GraphNorm

from hydragnn_flow.errors import InputError
from hydragnn_flow.models.geometry import sum_by
from hydragnn_flow.models.kernels.spline import Interpolation, KnotRows, Knots
from hydragnn_flow.models.mpnn.gin import GINConvolution
from hydragnn_flow.models.mpnn.painn import Filter
from hydragnn_flow.models.quiet import QuietLinear


class StackedNetwork(nn.Module):
    """Some networks of one shape as one, for the batches of all of them one behind the other.

    Each network must have as many atoms, edges and graphs in the batch as any other.

    Parameters
    ----------
    network
        One of them, which is not changed.
    members
        Number of networks.

    Raises
    ------
    InputError
        If it has layers that cannot be stacked.
    """

    def __init__(self, network: nn.Module, members: int) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        # A network computes in the precision of its first parameter, of which none is left.
        precision = nn.Parameter(next(network.parameters()).new_empty(0))
        self._places: dict[str, tuple[nn.Module, str]] = {}
        for path, layer in list(self.network.named_modules()):
            kind, own = type(layer), [name for name, _ in layer.named_parameters(recurse=False)]
            if own and kind not in _STACKED:
                raise InputError(f"layers of the kind {kind.__name__} cannot be fused")
            for name in own:
                self._places[f"{path}.{name}"] = layer, name
                delattr(layer, name)
                setattr(layer, name, None)
            if kind in _STACKED:
                # The copy keeps what else it holds; only what it computes is another.
                layer.__class__ = _STACKED[kind]
                layer.members = members
            if isinstance(layer, StackedKnots):
                layer.lengths = layer.lengths.repeat(members, 1)
        self.network.register_parameter("precision", precision)

    def is_turned(self, name: str) -> bool:
        """Whether a weight is transposed here."""
        layer, attribute = self._places[name]
        return isinstance(layer, StackedLinear) and attribute == "weight"

    def put(self, weights: Mapping[str, Tensor]) -> None:
        """Compute with weights [members, …] from now on, by their names in the network."""
        for name, weight in weights.items():
            layer, attribute = self._places[name]
            setattr(layer, attribute, weight)

    def forward(self, batch: object) -> dict[str, Tensor]:
        """Outputs of all networks, one behind the other."""
        outputs: dict[str, Tensor] = self.network(batch)
        return outputs


class StackedLinear(nn.Linear):
    """A linear layer of each network: weight [members, inputs, outputs].

    The other way round than in ``nn.Linear``: so the gradient comes in the weight's own order.
    """

    members: int

    def forward(self, input: Tensor) -> Tensor:
        """From [members * n, …, inputs] to [members * n, …, outputs]."""
        rows = input.reshape(self.members, -1, input.shape[-1])
        if self.bias is None:
            values = torch.bmm(rows, self.weight)
        else:
            values = torch.baddbmm(self.bias[:, None], rows, self.weight)
        return values.view(*input.shape[:-1], values.shape[-1])


class StackedFilter(Filter):
    """PaiNN's linear map of edge features: weight [members, inputs, width]."""

    members: int

    def forward(self, features: Tensor) -> Tensor:
        """From [members * n, inputs] to [members * n, width]."""
        rows = features.view(self.members, -1, features.shape[1])
        return torch.bmm(rows, self.weight).flatten(0, 1)


class StackedEmbedding(nn.Embedding):
    """A table of each network: weight [members, entries, width]."""

    members: int

    def forward(self, input: Tensor) -> Tensor:
        """Rows [members * n, width] of the numbers [members * n]."""
        all_entries = self.members * self.num_embeddings
        first = torch.arange(0, all_entries, self.num_embeddings, device=input.device)
        entries = input.view(self.members, -1) + first[:, None]
        return functional.embedding(entries.view(-1), self.weight.flatten(0, 1))


class StackedLayerNorm(nn.LayerNorm):
    """Layer normalisation of each network: weight and bias [members, width]."""

    members: int

    def forward(self, input: Tensor) -> Tensor:
        """Row by row, [members * n, width]."""
        normed = functional.layer_norm(input, self.normalized_shape, None, None, self.eps)
        rows = normed.view(self.members, -1, normed.shape[-1])
        return torch.addcmul(self.bias[:, None], rows, self.weight[:, None]).view_as(normed)


class StackedGraphNorm(GraphNorm):  # type: ignore[misc]  # without types
    """GraphNorm of each network: weight, bias and mean_scale [members, width]."""

    members: int

    def forward(
        self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None
    ) -> Tensor:
        """Graph by graph, [members * n, width]."""
        assert batch is not None and batch_size is not None
        counts = sum_by(torch.ones_like(x[:, :1]), batch, batch_size).clamp(min=1.0)
        mean = (sum_by(x, batch, batch_size) / counts).index_select(0, batch)
        out = x - self._of_rows(mean, self.mean_scale)
        deviation = (sum_by(out.square(), batch, batch_size) / counts + self.eps).sqrt()
        scaled = self._of_rows(out, self.weight) / deviation.index_select(0, batch)
        moved: Tensor = scaled.view(self.members, -1, x.shape[1]) + self.bias[:, None]
        return moved.view_as(x)

    def _of_rows(self, rows: Tensor, factors: Tensor) -> Tensor:
        scaled: Tensor = rows.view(self.members, -1, rows.shape[1]) * factors[:, None]
        return scaled.view_as(rows)


class StackedPReLU(nn.PReLU):
    """A slope of each network: weight [members, 1]."""

    members: int

    def forward(self, input: Tensor) -> Tensor:
        """Element by element, [members * n, …]."""
        rows = input.reshape(self.members, -1)
        return torch.where(rows < 0, rows * self.weight, rows).view_as(input)


class StackedGINConvolution(GINConvolution):
    """GIN's sums with an ε of each network [members, 1]."""

    members: int

    def own(self, nodes: Tensor) -> Tensor:
        """(1 + ε) times the atoms' features [members * n, width]."""
        rows = nodes.view(self.members, -1, nodes.shape[1])
        return ((1.0 + self.epsilon[:, None]) * rows).view_as(nodes)


class StackedKnots(Knots):
    """Knots of each network, one behind the other [members * n_knots, 1]."""

    members: int

    def forward(self, lengths: Tensor, factor: Tensor | None = None) -> Interpolation:
        """As that of :class:`.Knots`; the edges of a network read its own knots."""
        one = super().forward(lengths, factor)
        all_knots = self.lengths.shape[0]
        knots = all_knots // self.members
        first = torch.arange(0, all_knots, knots, device=lengths.device)
        start = (one.rows.start.view(self.members, -1) + first[:, None]).view(-1)
        # No edge begins in the last three knots of a network, which are beyond its last interval.
        intervals = self.intervals + knots * (self.members - 1)
        return Interpolation(KnotRows(start, intervals), one.weights)


_STACKED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: StackedLinear,
    QuietLinear: StackedLinear,
    Filter: StackedFilter,
    nn.Embedding: StackedEmbedding,
    nn.LayerNorm: StackedLayerNorm,
    GraphNorm: StackedGraphNorm,
    nn.PReLU: StackedPReLU,
    GINConvolution: StackedGINConvolution,
    Knots: StackedKnots,
}
