"""Functions of the edge length alone: evaluated at knots, and interpolated by cubic B-splines.

A network that reads nothing but the length need not run on each of a batch's many thousand edges.
It runs on a few hundred knots, and its values there are the coefficients of a spline in the
length. The spline has two continuous derivatives, so forces are smooth, and they are exactly the
gradient of the energy: the spline is the model, not an approximation made afterwards.

An edge reads four coefficients. Written with torch's gathers and sums that takes longer than the
network's products; here it is one kernel, ``embedding_bag``, which torch cannot differentiate
twice.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from hydragnn_flow.models.kernels.multilinear import derivative

_PER_EDGE = 4
"""Coefficients that a cubic spline reads."""


class Knots(nn.Module):
    """Equidistant knots from zero to the cutoff, and the one more on each side that splines need.

    Parameters
    ----------
    intervals
        Between zero and the cutoff.
    cutoff
        Last length at which the spline may be read [Å]; it is constant beyond.

    Attributes
    ----------
    lengths
        Where functions are to be evaluated [intervals + 3, 1] in Å, slightly beyond both ends.
    """

    lengths: Tensor

    def __init__(self, intervals: int, cutoff: float) -> None:
        super().__init__()
        self.intervals = intervals
        self.spacing = cutoff / intervals
        lengths = torch.arange(-1, intervals + 2) * self.spacing
        self.register_buffer("lengths", lengths[:, None], persistent=False)

    def forward(self, lengths: Tensor, factor: Tensor | None = None) -> Interpolation:
        """Prepare to read functions at edges.

        Parameters
        ----------
        lengths
            Of the edges [n_edges, 1] in Å.
        factor
            What to multiply the values of each edge by [n_edges, 1].
        """
        steps = lengths.clamp(max=self.intervals * self.spacing) / self.spacing
        # NaN, of weights that diverged, stays in u; as an index it would end the process.
        start = steps.detach().nan_to_num(nan=0.0).floor().clamp(max=self.intervals - 1)
        u = steps - start
        v = 1.0 - u
        # The basis in its uniform form, de Boor, A Practical Guide to Splines, chapter IX.
        basis = [v * v * v, 4.0 + u * u * (3.0 * u - 6.0), 4.0 + v * v * (3.0 * v - 6.0), u * u * u]
        weights = torch.cat(basis, dim=1)
        weights = weights * (1.0 / 6.0 if factor is None else factor / 6.0)
        return Interpolation(KnotRows(start[:, 0].long(), self.intervals), weights)


class Interpolation:
    """Reads functions at the lengths of the edges. Made by :class:`Knots`.

    Attributes
    ----------
    rows
        Which coefficients each edge reads.
    weights
        What it multiplies them by [n_edges, 4].
    """

    def __init__(self, rows: KnotRows, weights: Tensor) -> None:
        self.rows = rows
        self.weights = weights

    def __call__(self, coefficients: Tensor) -> Tensor:
        """Values [n_edges, width] of functions from their values at the knots [n_knots, width]."""
        return derivative(self.rows, 0, coefficients, self.weights)


class KnotBags(NamedTuple):
    """Edges that are added up, four times: for each of the coefficients that an edge reads.

    Attributes
    ----------
    edges
        Those of a bag follow one another, int64 [4 * n_edges].
    begins
        Where a bag begins in ``edges``, int64 [n_bags].
    coefficients
        The coefficient that reads a bag's sum, int64 [n_bags].
    """

    edges: Tensor
    begins: Tensor
    coefficients: Tensor


def longest_bag(device: torch.device) -> int | None:
    """Most edges of a bag, where bags of any length are not as good.

    One thread of an accelerator adds up a bag, one edge after the other. In an ideal crystal half
    of all edges may be in one interval.
    """
    return None if device.type == "cpu" else 64


class KnotRows:
    """Which coefficients each edge reads: ``start``, int64 [n_edges], and the three after it.

    Called, it computes the derivatives of Σ_em values_e · weights_em coefficients_[start_e + m].
    torch does not differentiate the methods: they are for autograd functions.
    """

    def __init__(self, start: Tensor, intervals: int) -> None:
        self.start = start
        self.intervals = intervals

    def __call__(self, of: int, operands: list[Any]) -> Tensor:
        """See :data:`~hydragnn_flow.models.kernels.multilinear.Form`."""
        values, coefficients, weights = operands
        if of == 0:
            return self.read(coefficients, weights)
        return self.spread(values, weights) if of == 1 else self.compare(values, coefficients)

    @cached_property
    def of_edge(self) -> Tensor:
        """All four [n_edges, 4]."""
        return self.start[:, None] + torch.arange(_PER_EDGE, device=self.start.device)

    @cached_property
    def first(self) -> Tensor:
        """Start of each edge in the flattened :attr:`of_edge` [n_edges]."""
        n = self.start.shape[0]
        return torch.arange(0, n * _PER_EDGE, _PER_EDGE, device=self.start.device)

    @cached_property
    def reader(self) -> Tensor:
        """Index of the reading edge, four times each [4 * n_edges]."""
        edges = torch.arange(self.start.shape[0], device=self.start.device)
        return edges.repeat_interleave(_PER_EDGE)

    @cached_property
    def by_interval(self) -> tuple[Tensor, Tensor]:
        """The intervals in order, and the edge that each is of [n_edges]."""
        in_order, edges = torch.sort(self.start)
        return in_order, edges

    @cached_property
    def bags(self) -> KnotBags:
        """Bags of edges whose sums are the gradient of the coefficients."""
        in_order, edges = self.by_interval
        n, device = edges.shape[0], edges.device
        begins = torch.searchsorted(in_order, torch.arange(self.intervals, device=device))
        owners = torch.arange(self.intervals, device=device)
        if (longest := longest_bag(device)) is not None:
            counts = begins.diff(append=begins.new_full((1,), n))
            n_bags = torch.div(counts + (longest - 1), longest, rounding_mode="floor")
            ends = n_bags.cumsum(0)
            # As many as there may be, so that the host need not wait for their number. Those left
            # over are empty.
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
        """Σ_m weights[e, m] · coefficients[start[e] + m], [n_edges, width]."""
        return functional.embedding_bag(
            self.of_edge.view(-1),
            coefficients.detach(),
            self.first,
            mode="sum",
            per_sample_weights=weights.detach().reshape(-1),
        )

    def sort(self, weights: Tensor) -> Tensor:
        """Weights [n_edges, 4] in the order in which :meth:`add_spread` takes them."""
        return weights.detach().t().index_select(1, self.by_interval[1]).reshape(-1)

    def spread(self, values: Tensor, weights: Tensor) -> Tensor:
        """Gradient of the coefficients [n_knots, width] from that of the values."""
        coefficients = values.new_zeros((self.intervals + _PER_EDGE - 1, values.shape[1]))
        self.add_spread(coefficients, values, self.sort(weights))
        return coefficients

    def add_spread(self, coefficients: Tensor, values: Tensor, sorted_weights: Tensor) -> None:
        """Add the gradient of :meth:`spread` to ``coefficients`` in place."""
        sums = functional.embedding_bag(
            self.bags.edges,
            values.detach().contiguous(),
            self.bags.begins,
            mode="sum",
            per_sample_weights=sorted_weights,
        )
        coefficients.index_add_(0, self.bags.coefficients, sums)

    def compare(self, values: Tensor, coefficients: Tensor) -> Tensor:
        """Gradient of the weights [n_edges, 4]: of values with the coefficients they read."""
        weights: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            values.contiguous(),
            coefficients.contiguous(),
            self.of_edge.view(-1),
            self.first,
            self.reader,
            0,  # the sum
        )
        return weights.view(-1, _PER_EDGE)
