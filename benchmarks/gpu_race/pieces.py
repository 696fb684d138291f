"""The hand-written derivatives of this package beside torch's own of the same sums.

Each stays for as long as it wins on the machines it is for: a CPU, where they were tuned, and
accelerators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from turns import Turns, take_turns

from gpu_race.steps import seconds_of
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels import spline
from hydragnn_flow.models.kernels.edge_sums import filtered_sum, outer_sum
from hydragnn_flow.models.kernels.extremes import extreme
from hydragnn_flow.models.kernels.filtered_messages import filtered_message_sum, slices_of
from hydragnn_flow.models.kernels.neighbour_sums import neighbour_sums
from hydragnn_flow.models.kernels.spline import Interpolation, KnotBags, Knots

OURS, PLAIN = "ours", "torch's own"
INTERVALS, CUTOFF, WIDTH, HEADS = 200, 5.0, 64, 6

Function = Callable[..., Tensor]


class Piece(NamedTuple):
    """Two ways to compute one thing.

    Attributes
    ----------
    name
        Name of the module.
    ours, plain
        Functions of the operands.
    operands
        Tensors that are differentiated; forces come from the first.
    """

    name: str
    ours: Function
    plain: Function
    operands: tuple[Tensor, ...]


@dataclass(frozen=True)
class Timed:
    """One piece in one mode."""

    piece: str
    mode: str
    turns: Turns
    worst: float
    """Largest difference of the two ways' gradients, relative to the largest gradient."""


MODES = ("gradient", "gradient of forces")


def measure(
    device: torch.device,
    atoms: int,
    rounds: int,
    seconds: float,
) -> Iterator[Timed]:
    """Time every piece in every mode.

    Parameters
    ----------
    device
        Where.
    atoms
        Number of atoms of the crystal whose edges are summed over; each has some 42 of them.
    rounds, seconds
        Turns of each way, and the length of one [s].
    """
    for piece in pieces(device, atoms):
        for mode in MODES:
            work = {
                name: _work(mode, function, piece.operands)
                for name, function in ((OURS, piece.ours), (PLAIN, piece.plain))
            }
            worst = _difference(work[OURS](), work[PLAIN]())
            contenders = {name: partial(seconds_of, work[name], device, seconds) for name in work}
            yield Timed(piece.name, mode, take_turns(contenders, rounds), worst)


def pieces(device: torch.device, atoms: int) -> list[Piece]:
    """The pieces, on the edges of a rattled crystal; splines on those of an ideal one as well."""
    crystal, ideal = (_crystal(device, atoms, rattle) for rattle in (0.05, 0.0))
    n_edges = crystal.sender.shape[0]
    draw = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(device).requires_grad_()

    knots = Knots(INTERVALS, CUTOFF).to(device)
    n_knots, n_atoms = len(knots.lengths), crystal.n_atoms

    def lengths_of(geometry: Geometry) -> Tensor:
        return geometry.lengths.detach().clone().requires_grad_()

    def read(lengths: Tensor, coefficients: Tensor) -> Tensor:
        values: Tensor = knots(lengths)(coefficients)
        return values

    def plainly_read(lengths: Tensor, coefficients: Tensor) -> Tensor:
        return _plain(knots(lengths), coefficients)

    def filtered(lengths: Tensor, *others: Tensor) -> Tensor:
        receiver, sender, shift, filters = others
        interpolation = knots(lengths)
        edges = slices_of(crystal, interpolation)
        return filtered_message_sum(receiver, sender, shift, filters, interpolation.weights, edges)

    def plainly_filtered(lengths: Tensor, *others: Tensor) -> Tensor:
        receiver, sender, shift, filters = others
        interpolation = knots(lengths)
        x = crystal.of_receiver(receiver) + crystal.of_sender(sender)
        x = functional.silu(x + _plain(interpolation, shift))
        return crystal.sum_at_receiver(x * _plain(interpolation, filters))

    by_head = neighbour_sums(crystal, HEADS)
    alone = neighbour_sums(crystal)
    spline_operands = numbers(n_knots, WIDTH)
    of_atoms, of_knots = [[numbers(n, WIDTH) for _ in range(2)] for n in (n_atoms, n_knots)]
    rattled, whole_bags = (lengths_of(crystal), spline_operands), _with_whole_bags(read)
    filtered_operands = (lengths_of(crystal), *of_atoms, *of_knots)
    return [
        Piece("spline", read, plainly_read, rattled),
        Piece("spline, ideal crystal", read, plainly_read, (lengths_of(ideal), spline_operands)),
        Piece("spline, bags whole", whole_bags, plainly_read, rattled),
        Piece("filtered_messages", filtered, plainly_filtered, filtered_operands),
        Piece(
            "edge_sums, filtered",
            lambda filters, nodes: filtered_sum(nodes, filters, crystal),
            lambda filters, nodes: crystal.sum_at_receiver(
                crystal.of_sender(nodes) * filters[:, None]
            ),
            (numbers(n_edges, WIDTH), numbers(n_atoms, 3, WIDTH)),
        ),
        Piece(
            "edge_sums, outer",
            lambda vectors, features: outer_sum(vectors, features, crystal),
            lambda vectors, features: crystal.sum_at_receiver(
                vectors[:, :, None] * features[:, None]
            ),
            (numbers(n_edges, 3), numbers(n_edges, WIDTH)),
        ),
        Piece(
            "extremes",
            lambda messages: extreme(messages, crystal, "amax", own_zero=True),
            lambda messages: _plain_extreme(messages, crystal),
            (numbers(n_edges, WIDTH),),
        ),
        Piece(
            "neighbour_sums, plain",
            alone.sum,
            lambda nodes: crystal.sum_at_receiver(crystal.of_sender(nodes)),
            (numbers(n_atoms, WIDTH),),
        ),
        Piece(
            "neighbour_sums, weighted",
            lambda weights, values: by_head.weighted_sum(values, weights),
            lambda weights, values: crystal.sum_at_receiver(
                crystal.of_sender(values) * weights[:, :, None]
            ),
            (numbers(n_edges, HEADS), numbers(n_atoms, HEADS, WIDTH)),
        ),
    ]


def _work(mode: str, function: Function, operands: tuple[Tensor, ...]) -> Callable[[], Any]:
    """Gradients of a function that a training step needs, including those of the forces."""

    def gradient() -> Any:
        return torch.autograd.grad(function(*operands).square().sum(), operands)

    def gradient_of_forces() -> Any:
        energy = function(*operands).square().sum()
        (forces,) = torch.autograd.grad(energy, operands[0], create_graph=True)
        return torch.autograd.grad(energy + forces.square().sum(), operands)

    return gradient if mode == MODES[0] else gradient_of_forces


def _difference(ours: Any, theirs: Any) -> float:
    pairs = zip(ours, theirs, strict=True)
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)


def _crystal(device: torch.device, atoms: int, rattle: float) -> Geometry:
    """An fcc crystal of copper, all edges of up to the cutoff [Å]."""
    side = max(2, round((atoms / 4) ** (1 / 3)))
    corners = torch.cartesian_prod(*[torch.arange(side, dtype=torch.float32)] * 3)
    basis = torch.tensor([[0, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]])
    draw = torch.Generator().manual_seed(1)
    places = 3.61 * (corners[:, None] + basis).view(-1, 3)
    places += rattle * torch.randn(places.shape, generator=draw)
    senders, receivers = [], []
    for first in range(0, len(places), 512):
        near = torch.cdist(places[first : first + 512], places) < CUTOFF
        receiver, sender = near.nonzero(as_tuple=True)
        receivers.append(receiver + first)
        senders.append(sender)
    sender, receiver = torch.cat(senders), torch.cat(receivers)
    apart = sender != receiver
    sender, receiver = sender[apart], receiver[apart]
    return Geometry(
        sender=sender.to(device),
        receiver=receiver.to(device),
        vectors=(places[receiver] - places[sender]).to(device),
        cutoff=CUTOFF,
        graph=torch.zeros(len(places), dtype=torch.int64, device=device),
        n_graphs=1,
    )


def _plain(interpolation: Interpolation, coefficients: Tensor) -> Tensor:
    """A spline read with torch's gathers."""
    index = interpolation.rows.of_edge
    rows = coefficients.index_select(0, index.view(-1)).view(*index.shape, -1)
    return (interpolation.weights[:, :, None] * rows).sum(dim=1)


def _plain_extreme(messages: Tensor, geometry: Geometry) -> Tensor:
    index = geometry.receiver[:, None].expand_as(messages)
    empty = messages.new_zeros((geometry.n_atoms, messages.shape[1]))
    return empty.scatter_reduce(0, index, messages, "amax", include_self=True)


def _with_whole_bags(function: Function) -> Function:
    """With bags of splines as a CPU has them, on an accelerator as well."""

    def call(*operands: Tensor) -> Tensor:
        before = spline.longest_bag
        spline.longest_bag = lambda device: None
        try:
            value = function(*operands)
            assert isinstance(value.grad_fn.form.bags, KnotBags)  # type: ignore[union-attr]  # now
            return value
        finally:
            spline.longest_bag = before

    return call
