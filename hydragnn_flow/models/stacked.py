"""Stacked networks: several networks of equal architecture that are computed together.

A batch of graphs is one large graph of unconnected components. So the batches of several networks,
concatenated, are one batch too. Everything that acts on rows of atoms and edges acts on all of them
at once: gathers, sums over neighbours, functions of lengths, activations. Only layers with weights
need to know which rows belong to which network. Here each network has the same number of
consecutive rows, and a linear layer is one batched matrix product.

torch's ``vmap`` over the weights computes the same, but without our kernels, with twice as many
operations, and only for the same graphs in all networks.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GraphNorm

from hydragnn_flow.errors import InputError
from hydragnn_flow.models.geometry import sum_by
from hydragnn_flow.models.kernels.spline import Interpolation, KnotRows, Knots
from hydragnn_flow.models.layers import QuietLinear
from hydragnn_flow.models.mpnn.gin import GINConvolution
from hydragnn_flow.models.mpnn.painn import Filter


class StackedNetwork(nn.Module):
    """Module that computes several networks of equal architecture on their concatenated batches.

    It has no weights until :meth:`put` sets them. The batches of all networks must have the same
    numbers of atoms, edges and graphs.

    Parameters
    ----------
    network
        One of the networks, whose layers are copied; it is not changed.
    members
        Number of networks in the stack.

    Raises
    ------
    InputError
        If the network has layers that cannot be stacked.
    """

    def __init__(self, network: nn.Module, members: int) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        # A network computes in the precision of its first parameter, and no other one is left.
        precision = nn.Parameter(next(network.parameters()).new_empty(0))
        self._places: dict[str, tuple[nn.Module, str]] = {}
        for path, layer in list(self.network.named_modules()):
            kind, own = type(layer), [name for name, _ in layer.named_parameters(recurse=False)]
            if own and kind not in _STACKED:
                raise InputError(f"layers of the kind {kind.__name__} cannot be fused")
            for name in own:
                self._places[f"{path}.{name}"] = layer, name
                delattr(layer, name)
                # A buffer, which recomputed layers can find; weights of all networks are no leaf.
                layer.register_buffer(name, None, persistent=False)
            if kind in _STACKED:
                # The copy keeps its other attributes; only its computation is replaced.
                layer.__class__ = _STACKED[kind]
                layer.members = members
            if isinstance(layer, StackedKnots):
                layer.lengths = layer.lengths.repeat(members, 1)
        self.network.register_parameter("precision", precision)

    def put(self, members: Sequence[Mapping[str, Tensor]]) -> None:
        """Set the weights of all stacked networks in place.

        ``members`` has a dict for each network, from parameter name to tensor. Gradients flow back
        into these tensors.
        """
        for name, (layer, attribute) in self._places.items():
            weights = [named[name] for named in members]
            if isinstance(layer, StackedLinear) and attribute == "weight":
                weights = [weight.t() for weight in weights]
            setattr(layer, attribute, torch.stack(weights))

    def forward(self, batch: object) -> dict[str, Tensor]:
        """Compute the outputs of all networks by name, with rows in the order of the networks.

        ``batch`` is the concatenation of their batches.
        """
        outputs: dict[str, Tensor] = self.network(batch)
        return outputs


class StackedLinear(nn.Linear):
    """Linear layers of all stacked networks; the weight is [members, inputs, outputs].

    The weight is transposed relative to ``nn.Linear``, so that its gradient has the same memory
    order.
    """

    members: int

    def forward(self, input: Tensor) -> Tensor:
        """Apply each network's layer to its own rows, [members * n, …, inputs].

        The result is [members * n, …, outputs].
        """
        rows = input.reshape(self.members, -1, input.shape[-1])
        if self.bias is None:
            values = torch.bmm(rows, self.weight)
        else:
            values = torch.baddbmm(self.bias[:, None], rows, self.weight)
        return values.view(*input.shape[:-1], values.shape[-1])


class StackedFilter(Filter):
    """PaiNN's edge filters of all stacked networks; the weight is [members, inputs, width]."""

    members: int

    def forward(self, features: Tensor) -> Tensor:
        """Apply each network's filter to its edges: [members * n, inputs] to [..., width]."""
        rows = features.view(self.members, -1, features.shape[1])
        return torch.bmm(rows, self.weight).flatten(0, 1)


class StackedEmbedding(nn.Embedding):
    """Embedding tables of all stacked networks; the weight is [members, entries, width]."""

    members: int

    def forward(self, input: Tensor) -> Tensor:
        """Look up indices ``input`` [members * n] in the tables: rows [members * n, width].

        The first n indices refer to the first network's table, the next n to the second's, and so
        on.
        """
        all_entries = self.members * self.num_embeddings
        first = torch.arange(0, all_entries, self.num_embeddings, device=input.device)
        entries = input.view(self.members, -1) + first[:, None]
        return functional.embedding(entries.view(-1), self.weight.flatten(0, 1))


class StackedLayerNorm(nn.LayerNorm):
    """Layer normalisations of all stacked networks; weight and bias are [members, width]."""

    members: int

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each row, with the weights of its network, [members * n, width]."""
        normed = functional.layer_norm(input, self.normalized_shape, None, None, self.eps)
        rows = normed.view(self.members, -1, normed.shape[-1])
        return torch.addcmul(self.bias[:, None], rows, self.weight[:, None]).view_as(normed)


class StackedGraphNorm(GraphNorm):  # type: ignore[misc]  # without types
    """GraphNorms of all stacked networks; weight, bias and mean_scale are [members, width]."""

    members: int

    def forward(
        self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None
    ) -> Tensor:
        """Normalise features graph by graph, with the weights of each graph's network.

        Features are [members * n, width].
        """
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
    """PReLU activations of all stacked networks; the weight is [members, 1]."""

    members: int

    def forward(self, input: Tensor) -> Tensor:
        """Apply each network's activation to its rows, element by element, [members * n, …]."""
        rows = input.reshape(self.members, -1)
        return torch.where(rows < 0, rows * self.weight, rows).view_as(input)


class StackedGINConvolution(GINConvolution):
    """GIN convolutions of all stacked networks, with an ε for each network [members, 1]."""

    members: int

    def own(self, nodes: Tensor) -> Tensor:
        """Compute (1 + ε) times each atom's own features [members * n, width].

        ε is that of the atom's network.
        """
        rows = nodes.view(self.members, -1, nodes.shape[1])
        return ((1.0 + self.epsilon[:, None]) * rows).view_as(nodes)


class StackedKnots(Knots):
    """Spline knots of all stacked networks, concatenated [members * n_knots, 1]."""

    members: int

    def forward(self, lengths: Tensor, factor: Tensor | None = None) -> Interpolation:
        """Return a spline interpolation in which each network's edges read its own knots."""
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
