"""Functions of the edge length alone: evaluated at knots, interpolated by cubic B-splines.

A network that reads only the length need not run on each of a batch's many thousand edges. It runs
on a few hundred knots, and its values there are the coefficients of a spline in the length. The
spline has two continuous derivatives, so forces are smooth. They are the exact gradient of the
energy, because the spline is the model and not a later approximation.

An edge reads four coefficients. Written with torch's gathers and sums, this takes longer than the
network itself. Here it is one kernel, ``embedding_bag``, which torch cannot differentiate twice.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from hydragnn_flow.models.kernels.multilinear import derivative

_PER_EDGE = 4
"""Number of coefficients that a cubic spline reads at one length."""


class Knots(nn.Module):
    """Equidistant knots of a cubic spline in the edge length, from zero to the cutoff.

    One more knot lies beyond each end.

    Parameters
    ----------
    intervals
        Number of intervals between zero and the cutoff.
    cutoff
        Largest length that is interpolated [Å], beyond which the spline is constant.

    Attributes
    ----------
    lengths
        Lengths of the knots [intervals + 3, 1] in Å, from one spacing below zero to one above the
        cutoff.
    """

    lengths: Tensor

    def __init__(self, intervals: int, cutoff: float) -> None:
        super().__init__()
        self.intervals = intervals
        self.spacing = cutoff / intervals
        lengths = torch.arange(-1, intervals + 2) * self.spacing
        self.register_buffer("lengths", lengths[:, None], persistent=False)

    def forward(self, lengths: Tensor, factor: Tensor | None = None) -> Interpolation:
        """Return an interpolation of functions from their values at the knots to edge lengths.

        Parameters
        ----------
        lengths
            Lengths of the edges [n_edges, 1] in Å.
        factor
            Factor of the interpolated values at each edge [n_edges, 1]; None for no factor.
        """
        steps = lengths.clamp(max=self.intervals * self.spacing) / self.spacing
        # A NaN of diverged weights stays in u; as an index it would crash the process.
        start = steps.detach().nan_to_num(nan=0.0).floor().clamp(max=self.intervals - 1)
        u = steps - start
        v = 1.0 - u
        # Uniform cubic B-splines: de Boor, A Practical Guide to Splines, chapter IX.
        basis = [v * v * v, 4.0 + u * u * (3.0 * u - 6.0), 4.0 + v * v * (3.0 * v - 6.0), u * u * u]
        weights = torch.cat(basis, dim=1)
        weights = weights * (1.0 / 6.0 if factor is None else factor / 6.0)
        return Interpolation(KnotRows(start[:, 0].long(), self.intervals), weights)


class Interpolation:
    """Spline interpolation of functions of the length at the edges of a batch.

    It is made by :class:`Knots`.

    Attributes
    ----------
    rows
        Indices of the four coefficients that each edge reads.
    weights
        Weights of these coefficients [n_edges, 4].
    """

    def __init__(self, rows: KnotRows, weights: Tensor) -> None:
        self.rows = rows
        self.weights = weights

    def __call__(self, coefficients: Tensor) -> Tensor:
        """Compute functions at edges [n_edges, width] from values at the knots [n_knots, width]."""
        return derivative(self.rows, 0, coefficients, self.weights)


class KnotBags(NamedTuple):
    """Bags (sets) of edges: the gradients of the edges in a bag are summed into one coefficient.

    An edge is in four bags: its length lies between four coefficients of a cubic spline.

    Attributes
    ----------
    edges
        Indices of the edges, one bag after another, int64 [4 * n_edges].
    begins
        Index in ``edges`` where each bag begins, int64 [n_bags].
    coefficients
        Index of the spline coefficient that each bag's sum is added to, int64 [n_bags].
    """

    edges: Tensor
    begins: Tensor
    coefficients: Tensor


def longest_bag(device: torch.device) -> int | None:
    """Return the largest number of edges that a bag (set that is summed) may have on a device.

    The result is None for no limit. On an accelerator one thread sums a bag, edge by edge, so long
    bags are slow. In an ideal crystal half of all edges may lie in one interval.
    """
    return None if device.type == "cpu" else 64


class KnotRows:
    """Derivatives of a sum of spline values over a batch's edges, by each tensor in the sum.

    The sum is Σ_em values_e · weights_em · coefficients_[start_e + m]. Each edge e reads four
    coefficients, from ``start`` (int64 [n_edges]) on. A call returns the derivative by values,
    coefficients or weights, for the backward passes of autograd functions; the result is not
    differentiable itself. ``intervals`` is the number of intervals of the spline.
    """

    def __init__(self, start: Tensor, intervals: int) -> None:
        self.start = start
        self.intervals = intervals

    def __call__(self, of: int, operands: list[Any]) -> Tensor:
        """Return the derivative by operand ``of``: 0 values, 1 coefficients, 2 weights."""
        values, coefficients, weights = operands
        if of == 0:
            return self.read(coefficients, weights)
        return self.spread(values, weights) if of == 1 else self.compare(values, coefficients)

    @cached_property
    def of_edge(self) -> Tensor:
        """Indices of the four spline coefficients that each edge reads, int64 [n_edges, 4]."""
        return self.start[:, None] + torch.arange(_PER_EDGE, device=self.start.device)

    @cached_property
    def first(self) -> Tensor:
        """Index of each edge's first entry in the flattened :attr:`of_edge`, int64 [n_edges]."""
        n = self.start.shape[0]
        return torch.arange(0, n * _PER_EDGE, _PER_EDGE, device=self.start.device)

    @cached_property
    def reader(self) -> Tensor:
        """Index of the edge that reads each entry of the flattened :attr:`of_edge`.

        Its shape is int64 [4 * n_edges].
        """
        edges = torch.arange(self.start.shape[0], device=self.start.device)
        return edges.repeat_interleave(_PER_EDGE)

    @cached_property
    def by_interval(self) -> tuple[Tensor, Tensor]:
        """Spline intervals that the edges' lengths lie in, sorted, and the edges in that order.

        Both are indices, int64 [n_edges].
        """
        in_order, edges = torch.sort(self.start)
        return in_order, edges

    @cached_property
    def bags(self) -> KnotBags:
        """Bags (sets) of edges whose sums make up the gradient by the spline coefficients."""
        in_order, edges = self.by_interval
        n, device = edges.shape[0], edges.device
        begins = torch.searchsorted(in_order, torch.arange(self.intervals, device=device))
        owners = torch.arange(self.intervals, device=device)
        if (longest := longest_bag(device)) is not None:
            counts = begins.diff(append=begins.new_full((1,), n))
            n_bags = torch.div(counts + (longest - 1), longest, rounding_mode="floor")
            ends = n_bags.cumsum(0)
            # The largest possible number of bags, so that the host need not wait for the real one.
            # Surplus bags are empty.
            number = torch.arange(n // longest + self.intervals, device=device)
            owners = torch.searchsorted(ends, number, right=True).clamp(max=self.intervals - 1)
            nth = number - (ends - n_bags).index_select(0, owners)
            begins = (begins.index_select(0, owners) + nth * longest).clamp(max=n)
        return KnotBags(
            edges.repeat(_PER_EDGE),
            torch.cat([begins + n * which for which in range(_PER_EDGE)]),
            torch.cat([owners + which for which in range(_PER_EDGE)]),
        )

    def read(self, coefficients: Tensor, weights: Tensor) -> Tensor:
        """Compute the spline's value at each edge e, [n_edges, width].

        The value is Σ_m weights[e, m] · coefficients[start[e] + m].
        """
        return functional.embedding_bag(
            self.of_edge.view(-1),
            coefficients.detach(),
            self.first,
            mode="sum",
            per_sample_weights=weights.detach().reshape(-1),
        )

    def sort(self, weights: Tensor) -> Tensor:
        """Sort interpolation weights [n_edges, 4] to [4 * n_edges], the order of ``bags.edges``."""
        return weights.detach().t().index_select(1, self.by_interval[1]).reshape(-1)

    def spread(self, values: Tensor, weights: Tensor) -> Tensor:
        """Compute the gradient by spline coefficients, [n_knots, width], from that at the edges.

        ``values`` [n_edges, width] is the gradient by the spline's values at the edges. ``weights``
        [n_edges, 4] are the interpolation weights.
        """
        coefficients = values.new_zeros((self.intervals + _PER_EDGE - 1, values.shape[1]))
        self.add_spread(coefficients, values, self.sort(weights))
        return coefficients

    def add_spread(self, coefficients: Tensor, values: Tensor, sorted_weights: Tensor) -> None:
        """Add the gradient by the spline coefficients to ``coefficients``, in place.

        The gradient is the result of :meth:`spread`. ``sorted_weights`` come from :meth:`sort`.
        """
        sums = functional.embedding_bag(
            self.bags.edges,
            values.detach().contiguous(),
            self.bags.begins,
            mode="sum",
            per_sample_weights=sorted_weights,
        )
        coefficients.index_add_(0, self.bags.coefficients, sums)

    def compare(self, values: Tensor, coefficients: Tensor) -> Tensor:
        """Compute the gradient by the interpolation weights, [n_edges, 4], from that at the edges.

        ``values`` [n_edges, width] is the gradient by the spline's values at the edges.
        """
        weights: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            values.contiguous(),
            coefficients.contiguous(),
            self.of_edge.view(-1),
            self.first,
            self.reader,
            0,  # the sum
        )
        return weights.view(-1, _PER_EDGE)
