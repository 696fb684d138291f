"""Predictions kept beside the weights that made them, so that nobody need make them again."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydragnn_flow.data.splits import TEST, VALIDATION
from hydragnn_flow.files import patiently, replacing
from hydragnn_flow.training.checkpoint import SECONDS_TO_RECOVER

Predicted = dict[str, NDArray[np.float64]]
"""Output name -> ``[n_graphs, d]`` or ``[n_atoms, d]``, in the order of a split."""

FILES = {VALIDATION: "validation.npz", TEST: "test.npz"}
"""Of each split that is kept, in the folder of the trial or member."""
_WEIGHTS = "digest of the weights"  # no name of an output


def save_predictions(
    folder: Path,
    split: str,
    predictions: Predicted,
    weights: Mapping[str, Tensor],
    may_write: Callable[[], bool] = lambda: True,
) -> None:
    """Write predictions for a split; a crash leaves the old file or the new one, never a part.

    Parameters
    ----------
    folder
        Of the trial or member.
    split
        One of :data:`FILES`.
    predictions
        What to keep.
    weights
        The state of the model that made them.
    may_write
        Asked right before an old file is replaced; where it says no, that stays.

    Raises
    ------
    OSError
        If the disk is full or out of reach for long.
    """
    content = {**predictions, _WEIGHTS: np.array(_digest(weights))}

    def write() -> None:
        with (
            replacing(folder / FILES[split], may_write) as temporary,
            zipfile.ZipFile(temporary, "w") as archive,
        ):
            # As np.savez does, to which arrays are keywords: none could be named `file`.
            for name, values in content.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, values, allow_pickle=False)

    patiently(write, seconds=SECONDS_TO_RECOVER)


def load_predictions(folder: Path, split: str, weights: Mapping[str, Tensor]) -> Predicted | None:
    """What :func:`save_predictions` kept; None where there is nothing of just these weights."""
    try:
        with np.load(folder / FILES[split], allow_pickle=False) as file:
            content = {name: file[name] for name in file.files}
    except Exception:  # what is damaged makes them raise whatever they stumble over
        return None
    made_by = content.pop(_WEIGHTS, None)
    return content if made_by is not None and str(made_by) == _digest(weights) else None


def _digest(weights: Mapping[str, Tensor]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for name, values in sorted(weights.items()):
        found.update(name.encode())
        flat = values.detach().cpu().contiguous().reshape(-1)
        found.update(flat.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
