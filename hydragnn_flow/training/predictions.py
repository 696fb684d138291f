"""Predictions kept in a checkpoint, for the ensemble to read instead of making them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydragnn_flow.data.splits import CALIBRATION, TEST, VALIDATION
from hydragnn_flow.training.batching import Step
from hydragnn_flow.training.distributed import World

if TYPE_CHECKING:
    from hydragnn_flow.data.reading.split_part import Split

Predicted = dict[str, NDArray[np.floating[Any]]]
"""Output name -> ``[n_graphs, d]`` or ``[n_atoms, d]``, in the order of a split."""

SPLITS = (VALIDATION, CALIBRATION, TEST)
"""Splits whose predictions are kept, of a trial those for the first alone."""
KEY = "predicted"
"""Of a checkpoint: split -> output -> what its best weights predict."""


def kept(predictions: Predicted, split: Split) -> dict[str, Tensor]:
    """Predictions as a checkpoint has them.

    Values of atoms are kept in float32, as networks compute them; energies of structures in the
    precision they come in, as they may be large.

    Parameters
    ----------
    predictions
        To keep.
    split
        What they are for.
    """
    return {
        name: torch.from_numpy(values.astype(np.float32) if len(values) > len(split) else values)
        for name, values in predictions.items()
    }


def predictions_in(state: Mapping[str, Any], split: str) -> dict[str, NDArray[np.float64]] | None:
    """Predictions for a split in a checkpoint; None if it has none."""
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
    """Predictions of all ranks for a split, in its order, on each of them; all ranks call this.

    Parameters
    ----------
    outputs
        Of this rank, in the order of its graphs in the ``steps``; without rows if it has none.
    split
        What was predicted.
    steps
        As they were taken; every graph is in one of them, of one rank.
    world, device
        This rank's place, and where it computes.
    """
    graphs = np.concatenate([step.of_rank(world.rank) for step in steps])
    ends = np.cumsum(split.n_atoms)
    mine = split.n_atoms[graphs]
    # The atoms of each graph, one after the other.
    first = np.repeat(ends[graphs] - mine, mine)
    atoms = first + np.arange(len(first)) - np.repeat(np.cumsum(mine) - mine, mine)
    # The graphs of one rank may be single atoms, those of another not.
    more = torch.tensor([float(len(values) != len(graphs)) for values in outputs.values()])
    by_atom = world.sum(more.to(device)).tolist()
    whole: Predicted = {}
    for (name, values), is_more in zip(outputs.items(), by_atom, strict=True):
        rows, n_rows = (atoms, int(ends[-1])) if is_more else (graphs, len(split))
        full = torch.zeros((n_rows, *values.shape[1:]), dtype=torch.from_numpy(values).dtype)
        full[torch.from_numpy(rows)] = torch.from_numpy(values)
        whole[name] = world.sum(full.to(device)).cpu().numpy()
    return whole
