"""Predictions stored in a checkpoint, so that the ensemble need not make them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydragnn_flow.data.splits import CALIBRATION, TEST, VALIDATION
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.plan.batching import Step

if TYPE_CHECKING:
    from hydragnn_flow.data.reading.split_part import Split

Predicted = dict[str, NDArray[np.floating[Any]]]
"""Output name -> ``[n_graphs, d]`` or ``[n_atoms, d]``, in the order of a split."""

SPLITS = (VALIDATION, CALIBRATION, TEST)
"""Splits whose predictions are stored; for a trial only the first."""
KEY = "predicted"
"""Key of a checkpoint: split -> output -> predictions by its best weights."""


def kept(predictions: Predicted, split: Split) -> dict[str, Tensor]:
    """Return predictions in the form in which a checkpoint stores them.

    Atomic values are stored in float32, the precision of networks. Values of structures keep their
    precision, as energies may be large.

    Parameters
    ----------
    predictions
        Predictions by output name.
    split
        Split that they are for.
    """
    return {
        name: torch.from_numpy(values.astype(np.float32) if len(values) > len(split) else values)
        for name, values in predictions.items()
    }


def predictions_in(state: Mapping[str, Any], split: str) -> dict[str, NDArray[np.float64]] | None:
    """Return the predictions for a split in a checkpoint; None if it has none."""
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
    """Return the predictions of all ranks in the order of the split, on every rank (collective).

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
