"""Members of an ensemble in its folder: their files, and the networks in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from hydragnn_flow.config.network import read_json
from hydragnn_flow.data import Manifest
from hydragnn_flow.errors import InputError
from hydragnn_flow.training.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.predict import restore_model
from hydragnn_flow.training.predictions import made_by

NETWORK = "config.json"
_REMEDY = "take it from a copy, or delete it and ensemble.json and start the run again"


def member_name(member: int) -> str:
    """The folder of a member's files, within that of the ensemble."""
    return f"members/{member}"


def member_folder(folder: Path, member: int) -> Path:
    """The folder of a member's files."""
    return folder / member_name(member)


def member_files(member: int) -> list[str]:
    """The files with which a member predicts, within the folder of the ensemble."""
    return [f"{member_name(member)}/{name}" for name in (NETWORK, FILE)]


def load_member(folder: Path, member: int, manifest: Manifest) -> tuple[nn.Module, str]:
    """A member of the ensemble's folder with its best weights, and an identifier of these.

    The rest of its checkpoint, several times as large, is gone by then.

    Raises
    ------
    InputError
        If its files cannot be read or do not fit each other, or a weight is not finite.
    """
    directory = member_folder(folder, member)
    file = directory / FILE
    network = read_json(directory / NETWORK)
    state = predicting_state(load_checkpoint(file, remedy=_REMEDY), file)
    for name, values in state["best"].items():
        if values.is_floating_point() and not torch.isfinite(values).all():
            raise InputError(
                f"{file}: {name} has weights that are not finite; leave the member out with "
                f"--without {member}, or {_REMEDY}"
            )
    try:
        model = restore_model(network["NeuralNetwork"], manifest, state["best"])
    except (KeyError, TypeError, RuntimeError):
        raise InputError(
            f"{file}: does not hold the weights of the network in {NETWORK}; {_REMEDY}"
        ) from None
    return model, made_by(state["progress"])


def predicting_state(state: dict[str, Any], file: Path) -> dict[str, Any]:
    """The part of a checkpoint with which a member predicts.

    Raises
    ------
    InputError
        If it has no such part.
    """
    try:
        return {"best": dict(state["best"]), "progress": dict(state["progress"])}
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{file}: holds no weights to predict with; {_REMEDY}") from None
