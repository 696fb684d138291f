"""Predictions of one trained model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import Batch

from hydragnn_flow.config import load_network
from hydragnn_flow.data.reading.plan import Budget
from hydragnn_flow.models import build_model
from hydragnn_flow.training.loading import on_device

if TYPE_CHECKING:
    from hydragnn_flow.data import GraphSplit, Manifest

# Batches whose outputs are read together; for what is read the host waits.
_TOGETHER = 64


def restore_model(
    network: Mapping[str, Any], manifest: Manifest, weights: dict[str, Any]
) -> nn.Module:
    """Build a network and put trained weights into it, ready to predict.

    Parameters
    ----------
    network
        HydraGNN's `NeuralNetwork` section.
    manifest
        Of the store it was trained on.
    weights
        The state of its parameters, such as the `best` of a checkpoint.
    """
    config = load_network(network)
    model: nn.Module = build_model(config, manifest)
    if config.Training.precision == "fp64":
        model = model.double()
    model.load_state_dict(weights)
    return model.eval()


def predict_batches(
    model: nn.Module, batches: Iterable[Batch], device: torch.device | str = "cpu"
) -> dict[str, NDArray[np.float64]]:
    """Evaluate ``model`` batch by batch.

    Returns
    -------
    dict
        Output name -> ``[n_graphs, d]`` or ``[n_atoms, d]`` float64, in the order of the input and
        in the data's units.
    """
    device = torch.device(device)
    model = model.to(device).eval()
    read: dict[str, list[NDArray[np.float64]]] = {}
    waiting: dict[str, list[Tensor]] = {}

    def read_all() -> None:
        for name, values in waiting.items():
            read.setdefault(name, []).append(torch.cat(values).cpu().double().numpy())
        waiting.clear()

    with torch.no_grad(), closing(on_device(batches, device)) as there:
        for number, batch in enumerate(there, start=1):
            for name, values in model(batch).items():
                waiting.setdefault(name, []).append(values.detach())
            if number % _TOGETHER == 0:
                read_all()
        read_all()
    return {name: np.concatenate(values) for name, values in read.items()}


def split_batches(split: GraphSplit, limit: int | Budget = 64) -> Iterable[Batch]:
    """The graphs of a split in order, some at a time.

    Parameters
    ----------
    split
        The graphs.
    limit
        Graphs in a batch, or what it may hold; a graph beyond that gets a batch of its own.
    """
    budget = Budget(graphs=limit) if isinstance(limit, int) else limit
    n_graphs = len(split)
    sizes = {"graphs": np.ones(n_graphs, np.int64), "atoms": split.n_atoms, "edges": split.n_edges}
    filled = [(np.cumsum(sizes[name]), most) for name, most in budget.limits.items()]
    bounds = [0]
    while bounds[-1] < n_graphs:
        start = bounds[-1]
        before = [up_to[start - 1] if start else 0 for up_to, _ in filled]
        ends = [
            int(up_to.searchsorted(done + most, "right"))
            for (up_to, most), done in zip(filled, before, strict=True)
        ]
        bounds.append(max(min(ends), start + 1))
    return split.batches(np.arange(*pair) for pair in pairwise(bounds))
