"""Sums and extremes over the neighbours of atoms or over edges, with cheap derivatives.

The sums use ``embedding_bag``, which adds rows while it reads them. A gather followed by a sum
writes a tensor with a row per edge, and its backward pass another. For 20 neighbours that is ten
times slower on a CPU.

Written with torch's operations, messages of vectors are a tensor [n_edges, 3, width], and so is
each of their derivatives. Here they exist for some thousand edges at a time, which fit into a CPU's
cache: a potential's training step takes two thirds of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from hydragnn_flow.models.geometry import Geometry, sum_by
from hydragnn_flow.models.kernels.multilinear import derivative, edge_slices, on_host


class Bags(NamedTuple):
    """Index lists for sums of table rows: each bag (set of entries) has one sum.

    Each entry reads one row of the table.

    Attributes
    ----------
    rows
        Index of the row that each entry reads, int64 [n_entries].
    owners
        Index of the bag that each entry belongs to, ascending, int64 [n_entries].
    starts
        Index of the first entry of each bag, then the number of all entries, int64 [n_bags + 1].
    """

    rows: Tensor
    owners: Tensor
    starts: Tensor


@dataclass(frozen=True)
class NeighbourSums:
    """Sums of features over the neighbours of each atom, for one or more attention heads.

    The bag (set of summed rows) of an atom holds the senders of its incoming edges. For gradients,
    a second bag holds the receivers of its outgoing edges. The index of an atom's row and bag is
    head * n_atoms + atom. Tensors that only gradients need are computed on first use.

    Attributes
    ----------
    edges
        Indices of the edges, sorted by receiver, int64 [n_edges].
    senders, receivers
        Indices of the edges' atoms, in the order of ``edges``, int64 [n_edges].
    n_atoms
        Number of atoms in the batch.
    heads
        Number of heads, each with a copy of the bags.
    """

    edges: Tensor
    senders: Tensor
    receivers: Tensor
    n_atoms: int
    heads: int

    @cached_property
    def incoming(self) -> Bags:
        """Bags (sets of rows to sum) with the senders of each atom's incoming edges, by head."""
        return self._bags(self.senders, self.receivers)

    @cached_property
    def outgoing(self) -> Bags:
        """Bags (sets of rows to sum) with the receivers of each atom's outgoing edges, by head."""
        senders, order = self._by_sender
        return self._bags(self.receivers.index_select(0, order), senders)

    @cached_property
    def degrees(self) -> Tensor:
        """Number of incoming edges of each atom, repeated by head, int64 [heads * n_atoms]."""
        return self.incoming.starts.diff()

    def sum(self, nodes: Tensor) -> Tensor:
        """Sum the features [n_atoms, d] of each atom's neighbours, for a single head."""
        return derivative(self._plain, 0, nodes)

    def weighted_sum(self, values: Tensor, weights: Tensor) -> Tensor:
        """Sum the weighted values of each atom's neighbours, [n_atoms, heads, d].

        Parameters
        ----------
        values
            Values of the atoms by head [n_atoms, heads, d].
        weights
            Weights of the edges by head [n_edges, heads].
        """
        by_head = values.transpose(0, 1).to(weights.dtype)
        entries = weights.index_select(0, self.edges).t().reshape(-1)
        total = derivative(self._weighted, 0, by_head.flatten(0, 1), entries)
        return total.view(by_head.shape).transpose(0, 1)

    @cached_property
    def to_outgoing(self) -> Tensor:
        """Index in :attr:`incoming` of the same edge, for each entry (edge) of :attr:`outgoing`.

        Its shape is int64 [n_entries], where each head has its own entries.
        """
        return self._numbered(self._by_sender[1], len(self.edges))

    def _plain(self, of: int, operands: list[Any]) -> Tensor:
        """Compute the derivative of Σ_ij receivers_i · senders_j by operand ``of`` (0 or 1)."""
        receivers, senders = operands
        if of == 0:
            return _sums(self.incoming, senders, None)
        return _sums(self.outgoing, receivers, None)

    def _weighted(self, of: int, operands: list[Any]) -> Tensor:
        """Compute the derivative of Σ_ij weights_ij receivers_i · senders_j by operand ``of``.

        The operands are 0 receivers, 1 senders and 2 weights.
        """
        receivers, senders, weights = operands
        if of == 0:
            return _sums(self.incoming, senders, weights)
        if of == 1:
            return _sums(self.outgoing, receivers, weights.index_select(0, self.to_outgoing))
        return _dots(self.incoming, receivers, senders)

    @cached_property
    def _by_sender(self) -> tuple[Tensor, Tensor]:
        """Senders in ascending order, and the index in :attr:`senders` of each."""
        return torch.sort(self.senders, stable=True)

    def _bags(self, rows: Tensor, owners: Tensor) -> Bags:
        owners = self._numbered(owners, self.n_atoms)
        bags = torch.arange(self.heads * self.n_atoms + 1, device=owners.device)
        return Bags(self._numbered(rows, self.n_atoms), owners, torch.searchsorted(owners, bags))

    def _numbered(self, numbers: Tensor, each: int) -> Tensor:
        """Return indices repeated for every head, with an offset of ``each`` per head."""
        if self.heads == 1:
            return numbers
        head = torch.arange(self.heads, device=numbers.device)[:, None]
        return (numbers + head * each).flatten()


def neighbour_sums(geometry: Geometry, heads: int = 1) -> NeighbourSums:
    """Return an object that computes sums over the neighbours of each atom of a batch.

    ``heads`` is the number of attention heads. On a CPU this takes less time if edges are sorted by
    receiver.
    """
    receivers, edges = geometry.receiver, None
    # Checking costs a CPU much less than sorting, but makes an accelerator's host wait.
    if not on_host(receivers.device) or bool((receivers[1:] < receivers[:-1]).any()):
        receivers, edges = torch.sort(receivers, stable=True)
    senders = geometry.sender if edges is None else geometry.sender.index_select(0, edges)
    if edges is None:
        edges = torch.arange(len(receivers))
    return NeighbourSums(edges, senders, receivers, geometry.n_atoms, heads)


def _sums(bags: Bags, table: Tensor, weights: Tensor | None) -> Tensor:
    """Compute Σ weight * row over each bag; if ``weights`` is None, all weights are one."""
    return functional.embedding_bag(
        bags.rows,
        table.contiguous(),
        bags.starts,
        mode="sum",
        include_last_offset=True,
        per_sample_weights=weights,
    )


def _dots(bags: Bags, ours: Tensor, table: Tensor) -> Tensor:
    """Compute for each entry the scalar product of two rows [n_entries].

    One is the bag's row of ``ours``, the other the row of ``table`` that the entry reads.
    """
    # This is the gradient of embedding_bag by its weights; mode 0 is the sum.
    dots: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
        ours.contiguous(), table.contiguous(), bags.rows, bags.starts[:-1], bags.owners, 0
    )
    return dots


def filtered_sum(nodes: Tensor, filters: Tensor, geometry: Geometry) -> Tensor:
    """Sum the filtered features of each atom's neighbours: Σ_j nodes_j * filters_ij.

    The result is [n_atoms, k, width], at least in float32.

    Parameters
    ----------
    nodes
        Node features, read at the senders [n_atoms, k, width].
    filters
        Filters of the edges [n_edges, width], the same for all k.
    geometry
        Geometry with the edges.
    """
    dtype = _precise(nodes, filters)
    return derivative(partial(_filtered, geometry), 0, nodes.to(dtype), filters.to(dtype))


def outer_sum(vectors: Tensor, features: Tensor, geometry: Geometry) -> Tensor:
    """Sum outer products over the incoming edges of each atom: Σ_j vectors_ij ⊗ features_ij.

    The result is [n_atoms, 3, width], at least in float32.

    Parameters
    ----------
    vectors
        Vectors of the edges [n_edges, 3].
    features
        Features of the edges [n_edges, width].
    geometry
        Geometry with the edges.
    """
    dtype = _precise(vectors, features)
    return derivative(partial(_outer, geometry), 0, vectors.to(dtype), features.to(dtype))


def _precise(one: Tensor, other: Tensor) -> torch.dtype:
    """Return the data type for sums of products: at least float32, so that no summand is lost."""
    return torch.promote_types(torch.promote_types(one.dtype, other.dtype), torch.float32)


def _filtered(geometry: Geometry, of: int, operands: list[Any]) -> Tensor:
    """Compute the derivative of Σ_ij Σ_k receivers_ik * senders_jk * filters_ij by operand ``of``.

    The operands are 0 receivers, 1 senders and 2 filters.
    """
    receivers, senders, filters = operands
    if of == 2:
        values: Tensor = receivers.new_empty((geometry.sender.shape[0], receivers.shape[2]))
        for some in edge_slices(values):
            products = receivers.index_select(0, geometry.receiver[some])
            products.mul_(senders.index_select(0, geometry.sender[some]))
            torch.sum(products, 1, out=values[some])
        return values
    source, target = geometry.sender, geometry.receiver
    nodes = senders
    if of == 1:
        source, target = target, source
        nodes = receivers
    sums = torch.zeros_like(nodes)
    for some in edge_slices(filters):
        messages = nodes.index_select(0, source[some]).mul_(filters[some, None])
        sums.index_add_(0, target[some], messages)
    return sums


def _outer(geometry: Geometry, of: int, operands: list[Any]) -> Tensor:
    """Compute the derivative of Σ_ij Σ_c receivers_ic · vectors_ijc features_ij by operand ``of``.

    The operands are 0 receivers, 1 vectors and 2 features.
    """
    receivers, vectors, features = operands
    if of == 0:
        sums: Tensor = features.new_zeros((geometry.n_atoms, 3, features.shape[1]))
        for some in edge_slices(features):
            messages = vectors[some, :, None] * features[some, None]
            sums.index_add_(0, geometry.receiver[some], messages)
        return sums
    if of == 1:
        values: Tensor = features.new_empty((features.shape[0], 3))
        for some in edge_slices(features):
            products = receivers.index_select(0, geometry.receiver[some])
            torch.sum(products.mul_(features[some, None]), 2, out=values[some])
        return values
    dots: Tensor = vectors.new_empty((vectors.shape[0], receivers.shape[2]))
    for some in edge_slices(vectors):
        x, y, z = receivers.index_select(0, geometry.receiver[some]).unbind(1)
        torch.mul(x, vectors[some, :1], out=dots[some])
        dots[some].addcmul_(y, vectors[some, 1:2]).addcmul_(z, vectors[some, 2:])
    return dots


EXTREMES: tuple[Literal["amin"], Literal["amax"]] = ("amin", "amax")


def extreme(
    messages: Tensor, geometry: Geometry, which: Literal["amin", "amax"], *, own_zero: bool
) -> Tensor:
    """Compute the smallest or largest incoming message of each atom, component by component.

    The result [n_atoms, width] is zero for an atom without incoming messages.

    Tied messages share the gradient. torch's ``scatter_reduce`` gives the same result, but its
    backward pass is several times slower and can be differentiated only at great cost.

    Parameters
    ----------
    messages
        Messages of the edges [n_edges, width].
    geometry
        Geometry with the receivers of the edges.
    which
        Name of the reduction in torch: ``amin`` for the smallest, ``amax`` for the largest.
    own_zero
        If true, each atom also gets a zero message from itself.
    """
    apply: Any = _Extreme.apply
    value: Tensor = apply(messages, geometry, which, own_zero)
    return value


class _Extreme(Function):
    @staticmethod
    def forward(
        ctx: Any, messages: Tensor, geometry: Geometry, which: str, own_zero: bool
    ) -> Tensor:
        index = geometry.receiver[:, None].expand_as(messages)
        empty = messages.new_zeros((geometry.n_atoms, messages.shape[1]))
        peak = empty.scatter_reduce(0, index, messages, which, include_self=own_zero)
        ctx.save_for_backward(messages, peak)
        ctx.receiver, ctx.marks = geometry.receiver, None
        return peak

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        # Linear in the gradient, with constant marks, so torch can differentiate it further.
        messages, peak = ctx.saved_tensors
        marks, ties = ctx.marks or _marks(messages, peak, ctx.receiver)
        if torch.is_grad_enabled():
            ctx.marks = marks, ties  # for the backward pass through the forces
        return (gradient / ties).index_select(0, ctx.receiver) * marks, None, None, None


def _marks(messages: Tensor, peak: Tensor, receiver: Tensor) -> tuple[Tensor, Tensor]:
    """Return a mask of the extreme messages [n_edges, width], and their count at each atom.

    The count [n_atoms, width] is at least 1, so that it can be a divisor.
    """
    # Equal messages may differ in their last digits, by their rows in a matrix product. In place,
    # because comparing to booleans is eight times slower in torch.
    messages = messages.detach()
    eps = min(torch.finfo(messages.dtype).eps, torch.finfo(torch.float32).eps)
    rounding = messages.abs().mul_(4 * eps)  # that of bfloat16 would join different messages
    marks = peak.detach().index_select(0, receiver).sub_(messages).abs_().le_(rounding)
    return marks, sum_by(marks, receiver, peak.shape[0]).clamp(min=1.0)
