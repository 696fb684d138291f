"""One of HydraGNN's networks on one data set: the same graphs, splits and CPU time as ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peers.hydragnn_training import predict, train
from torch_geometric.data import Data

from hydragnn_flow import GraphStore
from hydragnn_flow.data import GraphSplit
from model_accuracy.outcome import Outcome
from model_accuracy.sets import SETS, Contest, errors, labels, network


def train_and_test(
    contest: Contest, store: Path, seconds: float, checkout: Path, seed: int
) -> Outcome:
    """Train by HydraGNN's own loop.

    Energies are those above a sum over atoms of a number for each element, as HydraGNN's
    ``energy_linear_regression.py`` makes them; other targets are standardised. Both are undone
    before errors are taken.

    Parameters
    ----------
    contest
        Network and set.
    store
        Store of the set.
    seconds
        CPU time of the training, of all threads of this process.
    checkout
        Root of a checkout of HydraGNN.
    seed
        Seed of the weights and of the order of graphs.

    Raises
    ------
    CannotRun
        Where there is no such checkout or a package is missing.
    """
    chosen, opened = SETS[contest.set], GraphStore.open(store)
    train_split, test_split = opened["trainset"], opened["testset"]
    targets = _Targets(train_split, chosen.measures[0].target, chosen.potential)
    elements = np.flatnonzero(_counts(train_split).sum(axis=0)).tolist()
    splits = {
        name: [_graph(split[index], contest, targets, elements) for index in range(len(split))]
        for name in ("trainset", "valset", "testset")
        for split in [opened[name]]
    }
    trained = train(checkout, splits, _network(contest, len(elements)), seconds, seed)
    found = None
    if trained.best_epoch is not None:
        said = predict(trained.model, splits["testset"], chosen.potential)
        names = ["energy", "forces"] if chosen.potential else [chosen.measures[0].target]
        predictions = dict(zip(names, said, strict=True))
        predictions[names[0]] = targets.undo(predictions[names[0]], test_split)
        found = errors(contest.set, test_split, predictions)
    remark = f"NaN in epoch {trained.epochs}" if trained.is_nan else ""
    return Outcome(trained.seconds, trained.epochs, trained.best_epoch or 0, found, remark)


class _Targets:
    """The target as HydraGNN learns it: value = spread × learnt + Σ over elements of a number.

    Parameters
    ----------
    train
        The training split.
    name
        Name of the target.
    potential
        Whether it is a potential's energy.
    """

    def __init__(self, train: GraphSplit, name: str, potential: bool) -> None:
        self.name, self._potential = name, potential
        values = labels(train, name)[:, 0]
        if potential:
            self._spread = 1.0
            of_element = np.linalg.lstsq(_counts(train), values, rcond=None)[0]
            self._of_element = of_element.astype(np.float64)
        else:
            self._mean, self._spread = float(values.mean()), float(values.std())

    def learnt(self, graph: Data) -> float:
        """The number that HydraGNN learns of a graph."""
        return (float(graph[self.name]) - float(self._offsets(_histogram(graph.x)))) / self._spread

    def undo(self, learnt: NDArray[np.float64], split: GraphSplit) -> NDArray[np.float64]:
        """Predictions in the data's units, [n_graphs, 1]."""
        return learnt * self._spread + self._offsets(_counts(split))[:, None]

    def _offsets(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        if self._potential:
            return counts @ self._of_element
        return np.full(counts.shape[:-1], self._mean)


def _graph(graph: Data, contest: Contest, targets: _Targets, elements: list[int]) -> Data:
    """A graph with the keys that HydraGNN reads."""
    learnt = targets.learnt(graph)
    made = Data(
        x=graph.x[:, :1].float(),
        pos=graph.pos.float(),
        edge_index=graph.edge_index,
        edge_shifts=graph.edge_shifts.float(),
        y=torch.tensor([learnt], dtype=torch.float32),
        y_loc=torch.tensor([[0, 1]]),
    )
    if contest.one_hot:
        made.x = (graph.x[:, :1] == torch.tensor(elements)).float()
    if contest.lengths:
        sender, receiver = graph.edge_index
        vectors = graph.pos[receiver] - graph.pos[sender] + graph.edge_shifts
        made.edge_attr = vectors.norm(dim=1, keepdim=True).float()
    if SETS[contest.set].potential:
        made.energy = torch.tensor([learnt], dtype=torch.float64)
        made.forces = graph.forces.float()
    return made


def _network(contest: Contest, n_elements: int) -> dict[str, Any]:
    """Our JSON with the keys that HydraGNN needs besides."""
    section: dict[str, Any] = network(contest)
    section["Variables_of_interest"] |= {
        "input_node_features": list(range(n_elements)) if contest.one_hot else [0],
        "output_index": [0],
        "output_dim": [1],
        "denormalize_output": False,
    }
    section["Architecture"]["periodic_boundary_conditions"] = SETS[contest.set].periodic
    return section


def _counts(split: GraphSplit) -> NDArray[np.float64]:
    """Atoms of each atomic number in each graph [n_graphs, 119]."""
    return np.stack([_histogram(split[index].x) for index in range(len(split))])


def _histogram(x: Mapping[str, Any] | torch.Tensor) -> NDArray[np.float64]:
    numbers = torch.as_tensor(x)[:, 0].round().long()
    return torch.bincount(numbers, minlength=119).double().numpy()
