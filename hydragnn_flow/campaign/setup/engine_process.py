"""Process that measures networks of engines: `python -m …engine_process DRIVER_PID`.

An engine is an external library that builds a network. Requests and answers are single lines of
JSON through pipes; the process ends when the driver does.
"""

from __future__ import annotations

import json
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from hydragnn_flow.config.base import with_place
from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.splits import TRAIN
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import EngineModel, Model, build_model, probed_cost
from hydragnn_flow.processes import end_with_parent, keep_stdout
from hydragnn_flow.training.checkpoints.starting import (
    check_weights,
    freeze,
    keep_weights,
    weights_of,
)


@lru_cache(maxsize=1)
def _open(path: str) -> GraphStore:
    return GraphStore.open(path, without=("y", "y_loc"))


def _cost(engine: str, model: Model, graphs: GraphStore, batch: dict[str, int]) -> dict[str, Any]:
    weights = dict(model.named_parameters()).keys()
    cost = probed_cost(model, graphs[TRAIN], **batch)
    if made := dict(model.named_parameters()).keys() - weights:
        raise InputError(
            f"network: engine {engine} makes weights in a training step, which nobody would train "
            f"({min(made)}); make them when it builds the network"
        )
    return vars(cost)


def _begin(
    model: Model, file: str, heads: str, frozen: list[str], target: str | None
) -> dict[str, Any]:
    """Check the weights that a network begins with; return an empty dict.

    Parameters
    ----------
    model
        Network of an engine; parameters named in ``frozen`` are frozen in it.
    file
        Path of the file with the weights.
    heads
        `keep` to begin with all weights, `new` to begin with those of the encoder.
    frozen
        Names of parameters or modules that are not trained.
    target
        Path of a file to write the weights to; None to write nothing.
    """
    assert isinstance(model, EngineModel)
    freeze(model, frozen)
    weights = weights_of(model, model.read_weights(Path(file)), heads)
    check_weights(model, weights, file, heads)
    if target is not None:
        keep_weights(Path(target), weights, heads == "keep")
    return {}


def _tried(
    network: dict[str, Any],
    store: str,
    batch: dict[str, int] | None = None,
    start: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Answer a request: measure the cost of a training step, or check the initial weights.

    Parameters
    ----------
    network
        Configuration of the network as JSON values.
    store
        Path of the store.
    batch
        Number of ``atoms``, ``edges`` and ``graphs`` in a batch whose cost is measured.
    start
        Arguments of :func:`_begin` to check weights; None to measure the cost.

    Returns
    -------
    dict
        Fields of the cost; nothing if weights are checked; or ``refused``, an error message.
    """
    try:
        torch.manual_seed(0)
        graphs = _open(store)
        model = build_model(network, graphs)
        if start is not None:
            return _begin(model, **start)
        assert batch is not None
        return _cost(network["engine"], model, graphs, batch)
    except InputError as error:
        return {"refused": str(error)}
    except Exception as error:  # whatever an engine's module does
        name, what = network["engine"], "a training step" if start is None else "reading weights"
        return {
            "refused": f"network: engine {name} fails in {what} ({with_place(error)}); correct it"
        }


def _serve() -> None:
    """Answer requests until the driver closes the pipe."""
    end_with_parent(int(sys.argv[1]))
    os.nice(10)  # the driver and its other children have precedence
    torch.set_num_threads(1)
    send = keep_stdout()
    for line in sys.stdin:
        send(_tried(**json.loads(line)))


if __name__ == "__main__":
    _serve()
