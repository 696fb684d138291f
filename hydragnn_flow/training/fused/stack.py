"""Stack of several trainings: their weights in one matrix, stepped together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from hydragnn_flow.models.stacked import StackedNetwork
from hydragnn_flow.training.averaging import Average
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.fused.batches import FusedBatch, sent
from hydragnn_flow.training.measures.losses import Loss

_MOMENTS = ("exp_avg", "exp_avg_sq")
# The constant of torch's clip_grad_norm_.
_SMALLEST_NORM = 1e-6


class Member(Protocol):
    """State of a training that the stack reads, and writes back."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: Average
    loss: Loss
    most_norm: float
    """Largest norm of a step's gradient; longer ones are clipped."""

    @property
    def weights(self) -> list[nn.Parameter]:
        """Parameters that are trained."""
        ...


class Stack:
    """Weights, averages and optimiser states of several trainings, [members, n] each.

    Parameters
    ----------
    members
        Trainings of networks of one shape.

    Raises
    ------
    InputError
        If the networks have layers that cannot be stacked.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self._loss = members[0].loss
        self._network = StackedNetwork(members[0].model, len(members)).train()
        named = [dict(member.model.named_parameters()) for member in members]
        trained = _trained(named[0])
        self._layout = layout = _Layout(self._network, trained)
        self._weights = layout.rows([each.values() for each in map(_trained, named)])
        self._averages = layout.rows([_averages(member, [*trained]) for member in members])
        self._steps = [_steps_taken(member.optimizer) for member in members]
        self._kind = type(members[0].optimizer).__name__
        moments = () if self._kind == "SGD" else _MOMENTS
        self._moments = [layout.rows([_moment(each, name) for each in members]) for name in moments]
        self._leaves = [leaf.requires_grad_() for leaf in layout.leaves(self._weights)]
        self._network.put(dict(zip(trained, self._leaves, strict=True)))
        if fixed := {name: one for name, one in named[0].items() if name not in trained}:
            others = _Layout(self._network, fixed)
            kept = others.rows([[each[name] for name in fixed] for each in named])
            self._network.put(dict(zip(fixed, others.leaves(kept), strict=True)))

    def gradient(self, batch: FusedBatch) -> tuple[Tensor, Tensor]:
        """Compute the members' losses [members] float64 and their gradients [members, n]."""
        losses = self.losses(batch)
        # Each member's loss depends on its own weights alone.
        parts = torch.autograd.grad(losses.sum(), self._leaves, allow_unused=True)
        flat = [
            torch.zeros_like(leaf).flatten(1) if part is None else part.flatten(1)
            for part, leaf in zip(parts, self._leaves, strict=True)
        ]
        return losses.detach(), torch.cat(flat, dim=1)

    def losses(self, batch: FusedBatch) -> Tensor:
        """Compute the members' losses on their own batches, [members] float64."""
        outputs = self._network(batch.batch)
        means = []
        found = self._loss.term_values(outputs, batch.batch)
        for term, (values, elements) in zip(self._loss.terms, found, strict=True):
            width = values.shape[1]
            rows = values.view(len(self.members), -1, width)
            counted = batch.counted[term.level]
            sums = (rows * counted.to(rows.dtype)).sum((1, 2))
            count = batch.counts[elements] if width == 1 else batch.counts[elements] * width
            means.append(sums.double() / count)
        return self._loss.of_rank(torch.stack(means, dim=1), World())

    @torch.no_grad()
    def step(self, batch: FusedBatch) -> tuple[Tensor, Tensor]:
        """Take a step of every member; returns losses and gradient norms, [members] each.

        Each member has the learning rate of its optimiser. If memory runs out, nothing has changed.
        """
        with torch.enable_grad():
            losses, gradient = self.gradient(batch)
        norms = torch.linalg.vector_norm(gradient, dim=1)
        most, *settings = self._columns(self._settings())
        clipped = gradient * (most / (norms[:, None] + _SMALLEST_NORM)).clamp(max=1.0)
        new, moments = self._stepped(clipped, settings)
        # From here on only a few numbers are allocated, so memory cannot run out halfway.
        averaged = [
            member.average.weight_of_a_step() if member.average.decay else 1.0
            for member in self.members
        ]
        self._weights.copy_(new)
        self._moments = moments
        self._steps = [number + 1 for number in self._steps]
        self._averages.lerp_(new, *self._columns([averaged]))
        return losses, norms

    def _settings(self) -> list[list[float]]:
        """Return the settings of the next step, a row each: clipping norm, then the optimiser's."""
        groups = [member.optimizer.param_groups[0] for member in self.members]
        rates = [group["lr"] for group in groups]
        decays = [group["weight_decay"] for group in groups]
        if self._kind == "AdamW":
            decays = [1 - rate * decay for rate, decay in zip(rates, decays, strict=True)]
        settings = [[member.most_norm for member in self.members], rates, decays]
        if self._kind == "SGD":
            return settings
        betas, steps = [group["betas"] for group in groups], [n + 1 for n in self._steps]
        return [
            *settings,
            [1 - b for b, _ in betas],
            [1 - b for _, b in betas],
            [-lr / (1 - b**n) for lr, (b, _), n in zip(rates, betas, steps, strict=True)],
            [(1 - b**n) ** -0.5 for (_, b), n in zip(betas, steps, strict=True)],
            [group["eps"] for group in groups],
        ]

    def _stepped(self, gradient: Tensor, settings: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return weights and moments after a step, by the formulas of torch's optimisers."""
        weights = self._weights.detach()
        rate, decay, *of_moments = settings
        if self._kind == "AdamW":
            weights = weights * decay
        else:
            gradient = torch.addcmul(gradient, weights, decay)
        if self._kind == "SGD":
            return torch.addcmul(weights, gradient, rate, value=-1.0), []
        first, second, size, root, eps = of_moments
        means = self._moments[0].lerp(gradient, first)
        squares = self._moments[1].lerp(gradient.square(), second)
        divisor = torch.addcmul(eps, squares.sqrt(), root)
        return torch.addcdiv(weights, means * size, divisor), [means, squares]

    @torch.no_grad()
    def give_back(self, row: int) -> None:
        """Copy a member's weights, averages and moments from the stack into its training."""
        member, layout = self.members[row], self._layout
        weights = [weight.detach() for weight in member.weights]
        torch._foreach_copy_(weights, layout.tensors(self._weights[row]))
        if member.average.decay:
            averages = _averages(member, layout.names)
            torch._foreach_copy_(averages, layout.tensors(self._averages[row]))
        if not self._moments or not self._steps[row]:
            return
        moments = [layout.tensors(moment[row]) for moment in self._moments]
        is_fused = bool(member.optimizer.param_groups[0].get("fused"))
        for place, weight in enumerate(member.weights):
            # Like torch's optimisers: a fused one has its step count on the device.
            where = weight.device if is_fused else torch.device("cpu")
            member.optimizer.state[weight] = {
                "step": torch.tensor(float(self._steps[row]), device=where),
                **{
                    name: moment[place].clone(memory_format=torch.contiguous_format)
                    for name, moment in zip(_MOMENTS, moments, strict=True)
                },
            }

    def _columns(self, rows: list[list[float]]) -> tuple[Tensor, ...]:
        """Return one column [members, 1] per row of numbers, in the precision of the weights."""
        like = self._weights
        return sent(torch.tensor(rows, dtype=like.dtype), like.device).unsqueeze(2).unbind(0)


class _Layout:
    """Positions of a network's weights, by name, in a row; the network wants some transposed."""

    def __init__(self, network: StackedNetwork, weights: Mapping[str, Tensor]) -> None:
        self.names = list(weights)
        self._turned = [network.is_turned(name) for name in weights]
        self._shapes = [
            weight.t().shape if turned else weight.shape
            for weight, turned in zip(weights.values(), self._turned, strict=True)
        ]
        self._sizes = [shape.numel() for shape in self._shapes]

    def rows(self, members: Sequence[Iterable[Tensor]]) -> Tensor:
        """Concatenate each member's weights, or tensors of their shapes, to a row [members, n]."""
        return torch.stack([torch.cat([*self._flat(tensors)]) for tensors in members])

    def leaves(self, rows: Tensor) -> list[Tensor]:
        """Return each weight of all members, [members, …], as a view of the rows."""
        parts = torch.split(rows, self._sizes, dim=1)
        return [part.view(-1, *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def tensors(self, row: Tensor) -> list[Tensor]:
        """Return the weights in one member's row."""
        leaves = self.leaves(row[None])
        return [
            leaf[0].t() if turned else leaf[0]
            for leaf, turned in zip(leaves, self._turned, strict=True)
        ]

    def _flat(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        for tensor, turned in zip(tensors, self._turned, strict=True):
            yield (tensor.t() if turned else tensor).detach().flatten()


def _trained(named: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in named.items() if weight.requires_grad}


def _steps_taken(optimizer: torch.optim.Optimizer) -> int:
    states = list(optimizer.state.values())
    return int(states[0]["step"]) if states and "step" in states[0] else 0


def _moment(member: Member, name: str) -> list[Tensor]:
    """Return a moment of the gradient of each weight; zero before the first step."""
    state = member.optimizer.state
    return [state[w][name] if w in state else torch.zeros_like(w) for w in member.weights]


def _averages(member: Member, names: Sequence[str]) -> list[Tensor]:
    """Return the averaged weights of the given names; without an average the weights themselves."""
    weights = member.average.weights or dict(member.model.named_parameters())
    return [weights[name] for name in names]
