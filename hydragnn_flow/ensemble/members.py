"""Members of an ensemble: their files in its folder, and their networks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hydragnn_flow.config.network import NETWORK, load_network
from hydragnn_flow.data import Manifest
from hydragnn_flow.ensemble.summary import SUMMARY, member_folder, member_name
from hydragnn_flow.errors import InputError
from hydragnn_flow.plain_files import sound
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.predict import restore_model
from hydragnn_flow.training.predictions import SPLITS, predictions_in

Floats = NDArray[np.float64]
_REMEDY = "take it from a copy, or delete it and ensemble.json and start the run again"


def member_files(member: int) -> list[str]:
    """Return the files with which a member predicts, relative to the ensemble's folder."""
    return [f"{member_name(member)}/{name}" for name in (NETWORK, FILE)]


def remaining_members(
    summary: Mapping[str, Any], folder: Path, without: Collection[int]
) -> tuple[list[int], NDArray[np.float64]]:
    """Return numbers and weights of the members that are not left out.

    Parameters
    ----------
    summary
        Content of the file `ensemble.json`.
    folder
        Folder that contains the file.
    without
        Numbers of the members to leave out.

    Raises
    ------
    InputError
        If the weights do not add up to one, a member to leave out does not exist, or fewer than two
        members or no weight would be left.
    """
    members = {row["member"]: float(row["weight"]) for row in summary["members"]}
    total = sum(members.values())
    if not abs(total - 1) < 1e-6:
        raise InputError(
            f"{folder / SUMMARY}: weights of the members add up to {total:g}, not to 1; take the "
            f"file from a copy, or, in the directory of a run, delete it and start the run again"
        )
    numbers = [member for member in members if member not in without]
    weights = np.array([members[number] for number in numbers])
    if set(without) - members.keys() or len(numbers) < 2 or not weights.sum() > 0:
        told = ", ".join(map(str, sorted(without)))
        raise InputError(
            f"{folder}: member {told} cannot be left out; two of its members, "
            f"{', '.join(map(str, members))}, must be left, and one of them with a weight"
        )
    return numbers, weights / weights.sum() if without else weights


def load_member(
    folder: Path, member: int, manifest: Manifest
) -> tuple[nn.Module, dict[str, dict[str, Floats]]]:
    """Load a member with its best weights, and the predictions kept with them.

    The rest of its checkpoint, several times as large, is freed before this returns.

    Returns
    -------
    model, predictions
        Model, and the predictions by split and output, as far as they were kept; an export has
        none.

    Raises
    ------
    InputError
        If files cannot be read or do not match, or a weight is not finite.
    """
    directory = member_folder(folder, member)
    file = directory / FILE
    network = load_network(directory / NETWORK)
    whole = load_checkpoint(file, remedy=_REMEDY)
    state = predicting_state(whole, file)
    with sound(file, _REMEDY):
        found = {split: predictions_in(whole, split) for split in SPLITS}
        for name, values in state["best"].items():
            if values.is_floating_point() and not torch.isfinite(values).all():
                raise InputError(
                    f"{file}: {name} has weights that are not finite; leave the member out with "
                    f"--without {member}, or {_REMEDY}"
                )
    try:
        model = restore_model(network, manifest, state["best"])
    except (KeyError, TypeError, RuntimeError):
        raise InputError(
            f"{file}: does not hold the weights of the network in {NETWORK}; {_REMEDY}"
        ) from None
    return model, {split: values for split, values in found.items() if values is not None}


def predicting_state(state: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the entries of a checkpoint with which a member predicts.

    Raises
    ------
    InputError
        If the checkpoint lacks them.
    """
    try:
        return {"best": dict(state["best"]), "progress": dict(state["progress"])}
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{file}: holds no weights to predict with; {_REMEDY}") from None
