"""Predictions of trained models, and those stored in a checkpoint for the ensemble."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import Batch

from hydragnn_flow.config import NetworkConfig, load_network
from hydragnn_flow.config.sources import CALIBRATION, TEST, VALIDATION
from hydragnn_flow.models import build_model
from hydragnn_flow.models.geometry import in_components
from hydragnn_flow.models.leverage import Leverage
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.loading import on_device
from hydragnn_flow.training.plan.batching import Budget, Step

if TYPE_CHECKING:
    from hydragnn_flow.data import Manifest
    from hydragnn_flow.data.reading.split import Split


def restore_model(
    network: NetworkConfig | Mapping[str, Any],
    manifest: Manifest,
    weights: dict[str, Any],
    leverage: Mapping[str, Tensor] | None = None,
) -> nn.Module:
    """Return a network with trained weights, ready to predict.

    Parameters
    ----------
    network
        HydraGNN's `NeuralNetwork` section.
    manifest
        Manifest of the store that the network was trained on.
    weights
        State dict of the network, such as `best` in a checkpoint.
    leverage
        Tensors of the network's leverage by name; none if it is not known.
    """
    config = load_network(network)
    model = build_model(config, manifest)
    if config.Training.precision == "fp64":
        model = model.double()
    model.load_state_dict(weights)
    model.leverage = Leverage.of(manifest.has_atoms, leverage or {})
    return model.eval()


class Outputs:
    """Collector of a model's outputs, which copies them to the host several batches at a time."""

    def __init__(self) -> None:
        self._read: dict[str, list[NDArray[np.floating[Any]]]] = {}
        self._waiting: dict[str, list[Tensor]] = {}
        self._batches = 0

    def add(self, outputs: Mapping[str, Tensor]) -> None:
        """Add the outputs of the next batch: name -> ``[n_graphs, d]`` or ``[n_atoms, d]``."""
        for name, values in outputs.items():
            self._waiting.setdefault(name, []).append(values.detach())
        self._batches += 1
        # Number of batches whose outputs are read together; the host waits for every read.
        if self._batches % 64 == 0:
            self._bring()

    def arrays(self) -> dict[str, NDArray[np.floating[Any]]]:
        """Return the collected outputs on the host, by name: ``[n_graphs, d]`` or ``[n_atoms, d]``.

        Rows are in the order in which batches were added.
        """
        self._bring()
        return {name: np.concatenate(values) for name, values in self._read.items()}

    def _bring(self) -> None:
        for name, values in self._waiting.items():
            self._read.setdefault(name, []).append(torch.cat(values).cpu().numpy())
        self._waiting.clear()


def predict_batches(
    model: nn.Module, batches: Iterable[Batch], device: torch.device | str = "cpu"
) -> dict[str, NDArray[np.float64]]:
    """Predict batches of graphs with a model, one after the other, on a device.

    Returns
    -------
    dict
        Output name -> ``[n_graphs, d]`` or ``[n_atoms, d]`` float64, in the order of the input and
        in the data's units.
    """
    (found,) = predict_together([model], batches, device)
    return found


def predict_together(
    models: Sequence[nn.Module], batches: Iterable[Batch], device: torch.device | str = "cpu"
) -> list[dict[str, NDArray[np.float64]]]:
    """Predict batches of graphs with several models in one pass, which reads each batch once.

    The list has the result of :func:`predict_batches` for each model.
    """
    device = torch.device(device)
    models = [model.to(device).eval() for model in models]
    outputs = [Outputs() for _ in models]
    with torch.no_grad(), closing(on_device(batches, device)) as there:
        for batch in there:
            for model, found in zip(models, outputs, strict=True):
                found.add(model(batch))
    return [
        {name: values.astype(np.float64) for name, values in found.arrays().items()}
        for found in outputs
    ]


def join_members(predictions: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Stack the predictions of all ensemble members: output name -> ``[n_members, n, d]``.

    Outputs that not all members have are left out: only some may predict a noise.
    """
    common = [name for name in predictions[0] if all(name in p for p in predictions)]
    return {name: np.stack([p[name] for p in predictions]) for name in common}


def split_batches(split: Split, limit: int | Budget = 64) -> Iterable[Batch]:
    """Return the graphs of a split in batches of limited size, in the order of the split.

    Parameters
    ----------
    split
        Split or subset that is read.
    limit
        Number of graphs per batch, or limits of a batch; a graph above them gets its own batch.
    """
    budget = Budget(graphs=limit) if isinstance(limit, int) else limit
    n = len(split)
    sizes = {"graphs": np.ones(n, np.int64), "atoms": split.n_atoms, "edges": split.n_edges}
    filled = [(np.cumsum(sizes[name]), most) for name, most in budget.limits.items()]
    bounds = [0]
    while (start := bounds[-1]) < n:
        before = [up_to[start - 1] if start else 0 for up_to, _ in filled]
        ends = [
            int(up_to.searchsorted(done + most, "right"))
            for (up_to, most), done in zip(filled, before, strict=True)
        ]
        bounds.append(max(min(ends), start + 1))
    return split.batches(np.arange(*pair) for pair in pairwise(bounds))


Predicted = dict[str, NDArray[np.floating[Any]]]
"""Output name -> ``[n_graphs, d]`` or ``[n_atoms, d]``, in the order of a split."""

SPLITS = (VALIDATION, CALIBRATION, TEST)
"""Splits whose predictions a member's checkpoint stores; a trial's checkpoint stores those of the
first split only."""
KEY = "predicted"
"""Key of a checkpoint for predictions by its best weights: split -> output -> predictions."""


def labels_of(split: Split, target: str, dim: int) -> NDArray[np.float64]:
    """Return the true values of a target for a split, in ``dim`` components, ``[n, dim]``.

    A row belongs to a structure, or to an atom for a node target.
    """
    return in_components(split.target(target), target, dim)


def kept(predictions: Predicted, split: Split) -> dict[str, Tensor]:
    """Return predictions as tensors by name, in the form in which a checkpoint stores them.

    Atomic values are stored in float32, the precision of networks. Values of structures keep their
    precision, as energies may be large.

    Parameters
    ----------
    predictions
        Predictions by output name, ``[n_graphs, d]`` or ``[n_atoms, d]``.
    split
        Split that was predicted.
    """
    return {
        name: torch.from_numpy(values.astype(np.float32) if len(values) > len(split) else values)
        for name, values in predictions.items()
    }


def predictions_in(state: Mapping[str, Any], split: str) -> dict[str, NDArray[np.float64]] | None:
    """Return a checkpoint's predictions for a split: output -> ``[n, d]``; None if it has none."""
    found = state.get(KEY, {}).get(split)
    if found is None:
        return None
    return {str(name): values.numpy().astype(np.float64) for name, values in found.items()}


def gathered(
    outputs: Predicted,
    split: Split,
    steps: Sequence[Step],
    world: World,
    device: torch.device,
) -> Predicted:
    """Return a split's predictions by all ranks, in the order of the split (collective).

    The result is the same on every rank.

    Parameters
    ----------
    outputs
        Predictions of this rank in the order of its graphs in ``steps``; possibly without rows.
    split
        Split that was predicted.
    steps
        Steps of the evaluation; every graph is in one of them, on one rank.
    world, device
        Rank and number of ranks, and the device of collectives.
    """
    graphs = np.concatenate([step.of_rank(world.rank) for step in steps])
    ends = np.cumsum(split.n_atoms)
    mine = split.n_atoms[graphs]
    # Indices of the atoms of each graph, concatenated.
    first = np.repeat(ends[graphs] - mine, mine)
    atoms = first + np.arange(len(first)) - np.repeat(np.cumsum(mine) - mine, mine)
    # One rank may have only single atoms, so that its row numbers do not tell the level.
    more = torch.tensor([float(len(values) != len(graphs)) for values in outputs.values()])
    by_atom = world.sum(more.to(device)).tolist()
    whole: Predicted = {}
    for (name, values), is_more in zip(outputs.items(), by_atom, strict=True):
        rows, n_rows = (atoms, int(ends[-1])) if is_more else (graphs, len(split))
        full = torch.zeros((n_rows, *values.shape[1:]), dtype=torch.from_numpy(values).dtype)
        full[torch.from_numpy(rows)] = torch.from_numpy(values)
        whole[name] = world.sum(full.to(device)).cpu().numpy()
    return whole
