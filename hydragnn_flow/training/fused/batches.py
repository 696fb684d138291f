"""Batches of fused training: gradients of several trainings (members) in one pass.

In a batch, each member's own graphs come first, then padding atoms, edges and graphs, so that every
member has the same number of rows. Padding graphs count in no loss, and no
edge leads from a padding atom to a real one.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Batch, Data

from hydragnn_flow.data import Manifest
from hydragnn_flow.data.store.manifest import Key
from hydragnn_flow.models.stacked import StackedNetwork
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.loading import moved
from hydragnn_flow.training.plan.batching import Step
from hydragnn_flow.training.trainer import Trainer

Ints = NDArray[np.int64]
# Keys that networks read per atom and per edge; all others that they read have a row per graph.
_OF_ATOMS, _OF_EDGES = ("x", "pos", "pe"), ("edge_attr", "rel_pe")


@dataclass(frozen=True)
class FusedBatch:
    """Batch of several fused trainings (members), padded to equally many rows for each.

    Attributes
    ----------
    batch
        Graphs of all members, with padding.
    counts
        Number of graphs, and of atoms, in each member's step, float64 [n_members] each.
    counted
        Mask by level (``graph`` or ``node``): 1 for real rows, 0 for padding, [n_members, n, 1].
    """

    batch: Batch
    counts: Mapping[Literal["graphs", "atoms"], Tensor]
    counted: Mapping[str, Tensor]

    def on(self, device: torch.device) -> FusedBatch:
        """Return a copy of the batch on a device, copied asynchronously.

        On a CPU the batch itself is returned.
        """
        if device.type == "cpu":
            return self
        return FusedBatch(
            self.batch.pin_memory().to(device, non_blocking=True),
            {name: sent(value, device) for name, value in self.counts.items()},
            {name: sent(value, device) for name, value in self.counted.items()},
        )


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a host tensor on a device, copied asynchronously.

    On a CPU the tensor itself is returned.
    """
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)


class _Filled:
    """Padding of the rows of each member to ``size`` rows.

    ``own`` [n_members] has the number of rows of each member before padding.
    """

    def __init__(self, own: Ints, size: int) -> None:
        self.own, self.size, self.members = own, size, len(own)
        places = np.arange(size)
        self.is_own = places < own[:, None]
        """Mask of real rows, bool [n_members, size]."""
        first = np.cumsum(own) - own
        # Padding repeats the very first row, whose values are valid.
        self.rows = np.where(self.is_own, first[:, None] + places, 0).reshape(-1)
        """Index in the unpadded batch from which each padded row is copied, [n_members * size]."""

    @property
    def first(self) -> Ints:
        """Index of each member's first row after padding, [n_members]."""
        return np.arange(self.members) * self.size

    def moved(self, of: Ints, owner: Ints) -> Ints:
        """Return the indices after padding of the rows with indices ``of`` before padding.

        ``owner`` is the index of the member of each row, [n] like ``of``.
        """
        before = np.cumsum(self.own) - self.own
        places: Ints = of - before[owner] + self.first[owner]
        return places


def fused(batch: Batch, steps: Sequence[Step], manifest: Manifest, beyond: float) -> FusedBatch:
    """Pad a batch of several fused trainings (members), so that each has equally many rows.

    Parameters
    ----------
    batch
        Graphs of the first member, then those of the second, and so on.
    steps
        The step of each member.
    manifest
        Manifest of the store; its keys belong to atoms, edges or graphs.
    beyond
        Length of padding edges [Å], at which messages that fade with length are zero. Many padding
        edges may reach one atom, and their messages would otherwise add up to large values.
    """
    graphs = np.array([step.graphs for step in steps])
    ptr = batch.ptr.numpy()
    ends = np.cumsum(graphs)
    atoms = np.diff(ptr[ends], prepend=0)
    owner_of_atom = np.repeat(np.arange(len(steps)), atoms)
    edge_index = batch.edge_index.numpy()
    owner_of_edge = owner_of_atom[edge_index[0]]
    edges = np.bincount(owner_of_edge, minlength=len(steps))

    # Every member gets a padding graph, and every padding graph an atom at least.
    of_graphs = _Filled(graphs, int(graphs.max()) + 1)
    spare = of_graphs.size - graphs
    of_atoms = _Filled(atoms, int((atoms + spare).max()))
    of_edges = _Filled(edges, int(edges.max()))

    # Each padding graph has one atom, and a member's last one has all that are left.
    by_member = np.ones(of_graphs.is_own.shape, np.int64)
    by_member[of_graphs.is_own] = np.diff(ptr)
    by_member[:, -1] += of_atoms.size - by_member.sum(axis=1)
    sizes: Ints = by_member.reshape(-1)

    levels = {"node": of_atoms, "edge": of_edges, "graph": of_graphs}
    filled = Batch(_base_cls=Data)
    for name, key in manifest.keys.items():
        level = _level(name, manifest)
        if level is not None and name in batch:
            filled[name] = _repeated(batch[name], key, levels[level].rows, level)
    # Padding edges lead from padding atoms to themselves, spread evenly, in the order of the atoms.
    place = np.arange(of_edges.size) - edges[:, None]
    left_atoms, left_edges = of_atoms.size - atoms, np.maximum(of_edges.size - edges, 1)
    spread = place * left_atoms[:, None] // left_edges[:, None]
    to_itself = (of_atoms.first + atoms)[:, None] + spread
    is_own = of_edges.is_own.reshape(-1)
    index = np.stack([to_itself.reshape(-1)] * 2)
    index[:, is_own] = of_atoms.moved(edge_index, owner_of_edge)
    filled.edge_index = torch.from_numpy(index)
    shifts = batch.edge_shifts.numpy()[of_edges.rows]
    shifts[~is_own] = (beyond, 0.0, 0.0)
    filled.edge_shifts = torch.from_numpy(shifts)
    filled.batch = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))
    filled.ptr = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]))
    filled._num_graphs = len(sizes)
    return FusedBatch(
        filled,
        {"graphs": _numbers(graphs), "atoms": _numbers(atoms)},
        {
            "graph": torch.from_numpy(of_graphs.is_own[..., None].astype(np.float32)),
            "node": torch.from_numpy(of_atoms.is_own[..., None].astype(np.float32)),
        },
    )


def _level(name: str, manifest: Manifest) -> str | None:
    """Return the level of a key's rows; None for a key that no network reads."""
    key, target = manifest.keys[name], manifest.targets.get(name)
    if target is not None:
        return target.level
    # The number of rows cannot tell: a batch may have as many edges as atoms, or as graphs.
    if name in _OF_EDGES:
        return "edge"
    if name in _OF_ATOMS:
        return "node"
    return None if key.rows is None or "index" in name else "graph"


def _repeated(values: Tensor, key: Key, rows: Ints, level: str) -> Tensor:
    """Return a copy of the ``rows`` of a key's values.

    For the level ``graph``, ``rows`` are indices of graphs, and all rows of each graph are copied.
    """
    if level == "graph" and key.rows != 1:
        each = np.arange(key.rows or 0)
        rows = (rows[:, None] * (key.rows or 0) + each).reshape(-1)
    return torch.from_numpy(values.numpy().take(rows, axis=key.dim))


def _numbers(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.float64))


class FusedMember(Trainer):
    """Trainer of one of several fused networks, whose gradients are computed together."""

    def micro_batches(self, steps: Sequence[Step]) -> Generator[list[Batch | None], None, None]:
        """Yield an empty list for each step, as the batches of all members are read elsewhere."""
        for _ in steps:
            yield []

    def step_alone(self, step: Step) -> tuple[Tensor, Tensor]:
        """Take a training step of this member alone; return its loss and gradient norm, scalars."""
        self.model.train()
        return self.train_step(step, moved(self.train.batch(step.of_rank(0)), self.device))


class Stack:
    """Stack of the networks of several trainings, which are computed as one network.

    Each training keeps its weights, optimiser and average; only their gradients come from here.

    Parameters
    ----------
    members
        Trainings of networks of one shape.

    Raises
    ------
    InputError
        If the networks have layers that cannot be stacked.
    """

    def __init__(self, members: Sequence[FusedMember]) -> None:
        self.members = list(members)
        self._network = StackedNetwork(members[0].model, len(members)).train()
        self._named = [dict(member.model.named_parameters()) for member in members]
        self._trained = [weight for member in members for weight in member.parallel.weights]

    def gradients(self, batch: FusedBatch) -> Tensor:
        """Compute the gradients of all members' weights in place; return their losses, [n_members].

        Each member's loss is that on its own graphs of the batch.
        """
        for member in self.members:
            member.optimizer.zero_grad()
        losses = self._losses(batch)
        # Each member's loss depends on its own weights alone.
        torch.autograd.backward(losses.sum(), inputs=self._trained)
        return losses.detach()

    def _losses(self, batch: FusedBatch) -> Tensor:
        self._network.put(self._named)
        loss, means = self.members[0].loss, []
        found = loss.term_values(self._network(batch.batch), batch.batch)
        for term, (values, elements) in zip(loss.terms, found, strict=True):
            rows = values.view(len(self.members), -1, values.shape[1])
            sums = (rows * batch.counted[term.level].to(rows.dtype)).sum((1, 2))
            means.append(sums.double() / (batch.counts[elements] * values.shape[1]))
        return loss.of_rank(torch.stack(means, dim=1), World())
