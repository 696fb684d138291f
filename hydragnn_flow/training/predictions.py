"""Predictions kept beside a checkpoint, for the ensemble to read instead of making them again."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn_flow.data.splits import CALIBRATION, TEST, VALIDATION
from hydragnn_flow.files import patiently, replacing
from hydragnn_flow.training.batching import Step
from hydragnn_flow.training.checkpoint import SECONDS_TO_RECOVER
from hydragnn_flow.training.distributed import World

if TYPE_CHECKING:
    from hydragnn_flow.data import GraphSplit

Predicted = dict[str, NDArray[np.floating[Any]]]
"""Output name -> ``[n_graphs, d]`` or ``[n_atoms, d]``, in the order of a split."""

FILES = {VALIDATION: "validation.npz", CALIBRATION: "calibration.npz", TEST: "test.npz"}
"""File of each split whose predictions are kept, in the folder of the trial or member."""
_MADE_BY = "made by"  # no name of an output


def made_by(progress: Mapping[str, Any]) -> str:
    """Identifier of a checkpoint's best weights, different from all others that its folder has had.

    Parameters
    ----------
    progress
        Of the checkpoint.
    """
    return f"epoch {progress['best_epoch']}, error {float(progress['best_val_error']).hex()}"


def save_predictions(
    folder: Path,
    split: GraphSplit,
    predictions: Predicted,
    by: str,
    may_write: Callable[[], bool] = lambda: True,
) -> None:
    """Write predictions for a split; a crash leaves the old file or the new one, never a part.

    Values of atoms are kept in float32, as networks compute them; energies of
    structures in the precision they come in, as they may be large. Nothing is compressed: the last
    bits of a number are as good as random, and zlib makes a twelfth of it at a hundredth of a
    disk's speed.

    Parameters
    ----------
    folder
        Of the trial or member.
    split
        One of :data:`FILES`.
    predictions
        What to keep.
    by
        The weights that made them; see :func:`made_by`.
    may_write
        Asked right before an old file is replaced; where it says no, that stays.

    Raises
    ------
    OSError
        If the disk is full or out of reach for long.
    """
    # With the names of all that follows: a damaged directory may hide a part.
    content: dict[str, NDArray[Any]] = {_MADE_BY: np.array([by, *predictions])}
    for name, values in predictions.items():
        content[name] = values.astype(np.float32) if len(values) > len(split) else values

    def write() -> None:
        with (
            replacing(folder / FILES[split.name], may_write) as temporary,
            zipfile.ZipFile(temporary, "w") as archive,
        ):
            # As np.savez does, to which arrays are keywords: none could be named `file`.
            for name, values in content.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, values, allow_pickle=False)

    patiently(write, seconds=SECONDS_TO_RECOVER)


def load_predictions(folder: Path, split: str, by: str) -> dict[str, NDArray[np.float64]] | None:
    """Predictions kept by :func:`save_predictions`; None if there are none by these weights."""
    try:
        with np.load(folder / FILES[split], allow_pickle=False) as file:
            kept, *names = file[_MADE_BY].tolist()
            if kept != by:
                return None
            return {name: file[name].astype(np.float64) for name in names}
    except Exception:  # what is damaged makes them raise whatever they stumble over
        return None


def are_kept(folder: Path, split: str, by: str) -> bool:
    """Whether there are predictions of just these weights; whether they are whole is not read."""
    try:
        with np.load(folder / FILES[split], allow_pickle=False) as file:
            return str(file[_MADE_BY][0]) == by
    except Exception:
        return False


def gathered(
    outputs: Predicted,
    split: GraphSplit,
    steps: Sequence[Step],
    world: World,
    device: torch.device,
) -> Predicted | None:
    """Predictions of all ranks for a split, in its order, on each of them; all ranks call this.

    Parameters
    ----------
    outputs
        Of this rank, in the order of its graphs in the ``steps``.
    split
        What was predicted.
    steps
        As they were taken; every graph is in one of them, of one rank.
    world, device
        This rank's place, and where it computes.

    Returns
    -------
    dict
        None if a rank had no graphs, and so does not know what there is to gather.
    """
    answered = torch.tensor(float(bool(outputs)), device=device)
    if int(world.sum(answered)) < world.size:
        return None
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
