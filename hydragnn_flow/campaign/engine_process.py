"""Process that measures networks of engines: `python -m …engine_process DRIVER_PID`.

Requests and answers are single lines of JSON through pipes; it ends when the driver does.
"""

from __future__ import annotations

import json
import os
import sys
from functools import lru_cache
from typing import Any

import torch

from hydragnn_flow.config.user_classes import with_place
from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.splits import TRAIN
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model, probed_cost
from hydragnn_flow.processes import end_with_parent, keep_stdout


@lru_cache(maxsize=1)
def _open(path: str) -> GraphStore:
    return GraphStore.open(path, without=("y", "y_loc"))


def _tried(network: dict[str, Any], store: str, batch: dict[str, int]) -> dict[str, Any]:
    """Measure the cost of a step of a network, or explain why it has none."""
    try:
        torch.manual_seed(0)
        graphs = _open(store)
        model = build_model(network, graphs)
        weights = dict(model.named_parameters()).keys()
        cost = probed_cost(model, graphs[TRAIN], **batch)
        if made := dict(model.named_parameters()).keys() - weights:
            raise InputError(
                f"network: engine {network['engine']} makes weights in a training step, which "
                f"nobody would train ({min(made)}); make them when it builds the network"
            )
        return vars(cost)
    except InputError as error:
        return {"refused": str(error)}
    except Exception as error:  # an engine's module may raise anything
        name = network["engine"]
        return {
            "refused": f"network: engine {name} fails in a training step ({with_place(error)}); "
            f"correct it"
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
