"""Training one of the peers' networks, in an environment that has torch and the peer alone.

A peer's script says how its network and loss are made; the loop is here. It does what their own
programs do, the moving average of the weights included, and gets no loader to wait for: graphs
have their edges, and batches are put together from tensors.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_TEST_BATCH = 50


@dataclass(frozen=True)
class Graph:
    """A molecule with labels."""

    numbers: Tensor
    """Atomic numbers, int64 [n_atoms]."""
    positions: Tensor
    """Positions [Å], [n_atoms, 3]."""
    forces: Tensor
    """Forces [eV/Å], [n_atoms, 3]."""
    edges: Tensor
    """Sender and receiver of each edge, int64 [2, n_edges]."""
    shifts: Tensor
    """Lattice vectors that are added to the receiver's position [Å], [n_edges, 3]."""
    energy: float
    """Energy [eV], or another property."""


@dataclass(frozen=True)
class Batch:
    """Graphs with their atoms and edges numbered through."""

    numbers: Tensor
    positions: Tensor
    edges: Tensor
    shifts: Tensor
    graph: Tensor
    """Graph of each atom, int64 [n_atoms]."""
    sizes: Tensor
    """Number of atoms of each graph, int64 [n_graphs]."""
    energies: Tensor
    """Above the mean of the training split [n_graphs]."""
    forces: Tensor


@dataclass(frozen=True)
class Peer:
    """A network and how it is trained."""

    model: nn.Module
    predict: Callable[[Batch], tuple[Tensor, Tensor]]
    """Energies [n_graphs] above the training split's mean, and forces."""
    loss: Callable[[Batch, Tensor, Tensor], Tensor]
    """From a batch, energies and forces."""
    optimizer: torch.optim.Optimizer
    """With the rate at first; it falls along half a cosine of the CPU time."""
    batch_size: int
    ema_decay: float
    clip: float | None = None
    """Largest norm of a gradient."""
    potential: bool = True
    """False if only a property is learnt and its mean absolute error is measured."""


def main(make: Callable[[Sequence[Graph], float], Peer]) -> None:
    """Train, test and print a line of JSON; the arguments are graphs, seed and CPU-seconds.

    Parameters
    ----------
    make
        Makes the peer from the training split and its mean number of neighbours.
    """
    torch.set_num_threads(1)
    file, seed, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    torch.manual_seed(seed)
    splits = {name: read_graphs(file, name) for name in ("trainset", "valset", "testset")}
    train = splits["trainset"]
    neighbours = sum(g.edges.shape[1] for g in train) / sum(len(g.numbers) for g in train)
    mean = float(np.mean([graph.energy for graph in train]))
    peer = make(train, neighbours)
    used, epochs, best = _train(peer, splits, mean, seed, seconds)
    errors = _errors(peer, splits["testset"], mean)
    said = {"seconds": used, "epochs": epochs, "best_epoch": best, "errors": errors}
    print(json.dumps(said))


def _train(
    peer: Peer, splits: dict[str, list[Graph]], mean: float, seed: int, seconds: float
) -> tuple[float, int, int]:
    """Train; CPU-seconds, epochs, and the epoch whose weights the model then has."""
    from torch_ema import ExponentialMovingAverage  # both peers bring it

    random = np.random.default_rng(seed)
    train, val = splits["trainset"], splits["valset"]
    ema = ExponentialMovingAverage(peer.model.parameters(), decay=peer.ema_decay)
    rate, begin = peer.optimizer.param_groups[0]["lr"], time.process_time()
    least, best, best_epoch, epochs = math.inf, {}, 0, 0
    passed = 0.0
    while passed < 1.0:
        order = random.permutation(len(train))
        for start in range(0, len(train), peer.batch_size):
            passed = (time.process_time() - begin) / seconds
            if passed >= 1.0:
                break
            cosine = 0.5 * (1 + math.cos(math.pi * passed))
            for group in peer.optimizer.param_groups:
                group["lr"] = rate * cosine
            batch = collate([train[k] for k in order[start : start + peer.batch_size]], mean)
            peer.optimizer.zero_grad()
            torch.autograd.backward(peer.loss(batch, *peer.predict(batch)))
            if peer.clip is not None:
                nn.utils.clip_grad_norm_(peer.model.parameters(), peer.clip)
            peer.optimizer.step()
            ema.update()
        epochs += 1
        with ema.average_parameters():
            loss = _loss(peer, val, mean)
            if loss < least:
                least, best_epoch = loss, epochs
                best = {key: value.clone() for key, value in peer.model.state_dict().items()}
    used = time.process_time() - begin
    peer.model.load_state_dict(best)
    return used, epochs, best_epoch


def collate(graphs: Sequence[Graph], mean: float) -> Batch:
    """Put graphs together."""
    sizes = torch.tensor([len(graph.numbers) for graph in graphs])
    first = torch.cumsum(sizes, 0) - sizes
    return Batch(
        numbers=torch.cat([graph.numbers for graph in graphs]),
        positions=torch.cat([graph.positions for graph in graphs]),
        edges=torch.cat([g.edges + at for g, at in zip(graphs, first, strict=True)], dim=1),
        shifts=torch.cat([graph.shifts for graph in graphs]),
        graph=torch.repeat_interleave(torch.arange(len(graphs)), sizes),
        sizes=sizes,
        energies=torch.tensor([graph.energy - mean for graph in graphs], dtype=torch.float32),
        forces=torch.cat([graph.forces for graph in graphs]),
    )


def _predictions(peer: Peer, graphs: list[Graph], mean: float) -> Any:
    for start in range(0, len(graphs), _TEST_BATCH):
        batch = collate(graphs[start : start + _TEST_BATCH], mean)
        energies, forces = peer.predict(batch)
        yield batch, energies.detach(), forces.detach()


def _loss(peer: Peer, graphs: list[Graph], mean: float) -> float:
    peer.model.eval()
    losses = [
        (float(peer.loss(batch, energies, forces)), len(batch.sizes))
        for batch, energies, forces in _predictions(peer, graphs, mean)
    ]
    peer.model.train()
    return sum(loss * n for loss, n in losses) / len(graphs)


def _errors(peer: Peer, graphs: list[Graph], mean: float) -> list[float]:
    """Root mean square errors of energies [meV] and forces [meV/Å], or the property's mean one."""
    peer.model.eval()
    found = list(_predictions(peer, graphs, mean))
    energies = torch.cat([said - batch.energies for batch, said, _ in found])
    if not peer.potential:
        return [float(energies.abs().mean())]
    forces = torch.cat([said - batch.forces for batch, _, said in found])
    return [1e3 * float(errors.square().mean().sqrt()) for errors in (energies, forces)]


def read_graphs(file: Path, split: str) -> list[Graph]:
    """A split of a file that :func:`peer_potentials.sides.write_graphs` has written."""
    with np.load(file) as data:
        part = {key.partition("/")[2]: data[key] for key in data if key.startswith(split)}
    atoms, edges = (np.cumsum([0, *part[name]]) for name in ("n_atoms", "n_edges"))
    of_atoms = (np.split(part[name], atoms[1:-1]) for name in ("numbers", "positions", "forces"))
    of_edges = np.split(part["edges"], edges[1:-1], axis=1)
    shifts = np.split(part["shifts"], edges[1:-1])
    tensor = torch.from_numpy
    return [
        Graph(tensor(n), tensor(x), tensor(f), tensor(e), tensor(s), float(energy))
        for n, x, f, e, s, energy in zip(*of_atoms, of_edges, shifts, part["energies"], strict=True)
    ]
