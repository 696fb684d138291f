"""Initial weights of all trials: found, checked, and kept in the run directory."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import torch
from torch import Tensor

from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.network import Architecture, load_network
from hydragnn_flow.config.start_from import Origin, StartConfig, find_origin
from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import write_json
from hydragnn_flow.log import tell
from hydragnn_flow.models import build_model
from hydragnn_flow.models.hydragnn.weights import read_hydragnn_weights
from hydragnn_flow.models.model import HydraModel
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.training.checkpoint import checkpoints, furthest, load_checkpoint
from hydragnn_flow.training.starting import (
    check_weights,
    freeze,
    keep_weights,
    weights_of,
)

_logger = logging.getLogger(__name__)


def weights_for(start: StartConfig, model: HydraModel) -> tuple[dict[str, Tensor], Path]:
    """Find the initial weights of a network, and the checkpoint that they come from.

    Parameters
    ----------
    start
        Source of the weights, and what to freeze.
    model
        Network, in which only the freezing changes; it may be on the device ``meta``.

    Raises
    ------
    InputError
        If no weights fit the network, or it lacks what is to be frozen.
    """
    freeze(model, start.frozen)
    origin = find_origin(start)
    file, state = _read(origin, model, start.heads)
    weights = weights_of(state, start.heads)
    check_weights(model, weights, file)
    return weights, file


def bring_weights(config: RunConfig, directory: RunDirectory, store: GraphStore) -> None:
    """Write the initial weights of all trials to the run directory.

    Once the search has started, their source is not read again, as it may change.

    Raises
    ------
    InputError
        If :func:`weights_for` refuses them, or the written ones are gone.
    """
    start, target = config.start_from, directory.weights
    assert start is not None
    if directory.has_begun:
        if not target.exists():
            raise InputError(
                f"{target}: is missing, and trials have begun with it; restore it from a copy, or "
                f"start the campaign in another directory"
            )
        return
    with torch.device("meta"):
        model = build_model(config.network_with({}), store)
    assert isinstance(model, HydraModel)  # checked by load_config
    weights, file = weights_for(start, model)
    target.parent.mkdir(parents=True, exist_ok=True)
    keep_weights(target, weights, start.heads == "keep")
    told = {
        "path": str(file),
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "heads": start.heads,
        "frozen": list(start.frozen),
    }
    write_json(directory.start, told)
    tell(_logger, "trials begin with the weights of %s", directory.started_from())
    new = sorted(set(store.manifest.elements) - set(_elements(config)))
    if _elements(config) and new:
        tell(
            _logger,
            "start_from: the weights were not trained on the elements with atomic numbers %s",
            ", ".join(map(str, new)),
        )


def _elements(config: RunConfig) -> tuple[int, ...]:
    architecture = config.network_with({}).Architecture
    assert isinstance(architecture, Architecture)  # checked by load_config
    statistics = architecture.statistics
    return statistics.elements if statistics else ()


def _read(origin: Origin, model: HydraModel, heads: str) -> tuple[Path, dict[str, Tensor]]:
    """Read a checkpoint: its path, and its best weights by the names in our networks."""
    remedy = "name another in start_from"
    if origin.is_hydragnn:
        levels = load_network(origin.network, origin.file).Variables_of_interest.type
        return origin.file, read_hydragnn_weights(origin.file, model, levels, heads)
    if origin.file.is_dir():
        found = furthest(checkpoints(origin.file))
        if found is None:
            raise InputError(f"start_from: {origin.file} has no checkpoint; {remedy}")
        file, state = found
    else:
        file, state = origin.file, load_checkpoint(origin.file, remedy=remedy)
    best = state.get("best")
    if not isinstance(best, dict) or not all(isinstance(v, torch.Tensor) for v in best.values()):
        raise InputError(f"start_from: {file} holds no weights; {remedy}")
    return file, best
