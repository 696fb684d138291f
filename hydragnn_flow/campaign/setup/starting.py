"""Weights that all trials begin with, from another run: checked, and kept in the run directory."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import torch
from torch import Tensor

from hydragnn_flow.campaign.setup.engine_probe import EngineProbe
from hydragnn_flow.campaign.setup.origin import find_origin
from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.config.network import Architecture, EngineNetwork
from hydragnn_flow.config.origins import StartConfig
from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import write_json
from hydragnn_flow.log import tell
from hydragnn_flow.models import Model, build_model
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.training.checkpoints.checkpoint import checkpoints, furthest, load_checkpoint
from hydragnn_flow.training.checkpoints.starting import (
    check_weights,
    freeze,
    keep_weights,
    weights_of,
)

_logger = logging.getLogger(__name__)


def weights_for(start: StartConfig, model: Model) -> tuple[dict[str, Tensor], Path]:
    """Return the initial weights of a network by parameter name, and their checkpoint's path.

    The weights are those that `start_from` names; the network is one that this package builds.

    Parameters
    ----------
    start
        Section `start_from`: source of the weights, and parameters to freeze.
    model
        Network, whose parameters are frozen in place; it may be on the device ``meta``.

    Raises
    ------
    InputError
        If no weights fit the network, or it lacks a parameter to freeze.
    """
    freeze(model, start.frozen)
    file, state = _read(find_origin(start).path)
    weights = weights_of(model, state, start.heads)
    check_weights(model, weights, file, start.heads)
    return weights, file


def check_start(
    start: StartConfig, network: NetworkConfig, store: GraphStore, target: Path | None = None
) -> Path:
    """Check that the networks of a campaign can begin with the weights that `start_from` names.

    If ``target`` is given, the weights are also written to that file.

    Parameters
    ----------
    start
        Section `start_from`, which names the weights.
    network
        Network of the campaign.
    store
        Store of the campaign, which the networks are built for.
    target
        File to write the weights to; None to only check them.

    Returns
    -------
    Path
        Checkpoint that the weights come from.

    Raises
    ------
    InputError
        If the weights do not fit the network, or cannot be read.
    """
    if isinstance(network, EngineNetwork):
        with EngineProbe(store.path) as probe:
            probe.weights(network, start, target)
        return start.path
    with torch.device("meta"):
        model = build_model(network, store)
    weights, file = weights_for(start, model)
    if target is not None:
        keep_weights(target, weights, start.heads == "keep")
    return file


def bring_weights(
    start: StartConfig, network: NetworkConfig, directory: RunDirectory, store: GraphStore
) -> None:
    """Write the weights with which all trials begin (`start_from`) to the run directory.

    Once the search has started, the source of the weights is not read again, as it may change.

    Raises
    ------
    InputError
        If :func:`check_start` refuses the weights, or their file in the run directory is missing
        after the search has started.
    """
    target = directory.weights
    if directory.has_begun:
        if not target.exists():
            raise InputError(
                f"{target}: is missing, and trials have begun with it; restore it from a copy, or "
                f"start the campaign in another directory"
            )
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    file = check_start(start, network, store, target)
    told = {
        "path": str(file),
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "heads": start.heads,
        "frozen": list(start.frozen),
    }
    write_json(directory.start, told)
    tell(_logger, "trials begin with the weights of %s", directory.started_from())
    architecture = network.Architecture
    statistics = architecture.statistics if isinstance(architecture, Architecture) else None
    known = statistics.elements if statistics else ()
    new = sorted(set(store.manifest.elements) - set(known))
    if known and new:
        tell(
            _logger,
            "start_from: the weights were not trained on the elements with atomic numbers %s",
            ", ".join(map(str, new)),
        )


def _read(path: Path) -> tuple[Path, dict[str, Tensor]]:
    """Read the best weights of a checkpoint; return its path and the weights by name.

    ``path`` is the checkpoint, or a folder, of whose checkpoints the one with most training counts.
    """
    remedy = "name another in start_from"
    files = checkpoints(path) if path.is_dir() else [path]
    found = furthest(files) if len(files) > 1 else None
    if not files:
        raise InputError(f"start_from: {path} has no checkpoint; {remedy}")
    file, state = found or (files[0], load_checkpoint(files[0], remedy=remedy))
    best = state.get("best")
    if not isinstance(best, dict) or not all(isinstance(v, torch.Tensor) for v in best.values()):
        raise InputError(f"start_from: {file} holds no weights; {remedy}")
    return file, best
