"""Probe of networks that engines (HydraGNN, a user's module) build, in a process of its own.

An engine's code may crash or need much memory, so the driver does not run it itself. The process is
`python -m …engine_probe DRIVER_PID`. Requests and answers are single lines of JSON through pipes;
it ends when the driver does.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import torch

from hydragnn_flow.config.base import with_place
from hydragnn_flow.config.network import EngineNetwork
from hydragnn_flow.config.origins import StartConfig
from hydragnn_flow.config.sources import TRAIN
from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import EngineModel, Model, NetworkCost, build_model, probed_cost
from hydragnn_flow.processes import JsonProcess, ProcessDied, end_with_parent, keep_stdout
from hydragnn_flow.training.checkpoints.starting import (
    check_weights,
    freeze,
    keep_weights,
    weights_of,
)

SECONDS = 600.0
"""Time limit for a network to be built and to take its steps [s]."""


class EngineProbe:
    """Separate process that tries the networks of engines, which may crash it.

    An engine is an external library that builds networks. The probe takes a training step with a
    network, or reads its initial weights. The process starts with the first network and ends with
    this object.

    Parameters
    ----------
    store
        Path of the store, a few of whose graphs are used.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._process: JsonProcess | None = None

    def __enter__(self) -> EngineProbe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cost(self, network: EngineNetwork, atoms: int, edges: int, graphs: int) -> NetworkCost:
        """Measure the cost of a network's training step: operations, bytes and memory.

        The batch has as many atoms, edges and graphs as the arguments say.

        Raises
        ------
        InputError
            If the engine cannot build the network, the network returns something else than
            requested, or its training step fails.
        """
        batch = {"atoms": atoms, "edges": edges, "graphs": graphs}
        return NetworkCost(**self._ask(network, batch=batch))

    def weights(self, network: EngineNetwork, start: StartConfig, target: Path | None) -> None:
        """Check the weights that an engine's network begins with, and write them to a file.

        Parameters
        ----------
        network
            Network that an engine builds.
        start
            Section `start_from`: source of the weights, and parameters to freeze.
        target
            File to write; None if the weights are only checked.

        Raises
        ------
        InputError
            If the engine cannot read the weights, or they are of another network.
        """
        asked = {"file": str(start.path), "heads": start.heads, "frozen": list(start.frozen)}
        self._ask(network, start={**asked, "target": None if target is None else str(target)})

    def close(self) -> None:
        """End the process of the probe, and wait until it is gone."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _ask(self, network: EngineNetwork, **what: Any) -> dict[str, Any]:
        engine = network.engine
        if self._process is None:
            self._process = JsonProcess(
                "hydragnn_flow.campaign.setup.engine_probe",
                str(os.getpid()),
                # An accelerator of a login node must not be used for this, and output of the
                # process would disturb the driver's display.
                stderr=DEVNULL,
                environment={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            )
            weakref.finalize(self, self._process.close)
        try:
            store = str(self._store)
            self._process.send({"network": network.to_json(), "store": store, **what})
            answer = self._process.receive(SECONDS)
        except ProcessDied as death:
            self.close()
            raise InputError(
                f"network: engine {engine} does not get through {_tried(what)}: {death}"
            ) from None
        if answer is None:
            self.close()
            raise InputError(
                f"network: engine {engine} took more than {SECONDS:g} s for {_tried(what)}; make "
                f"it smaller"
            )
        if "refused" in answer:
            raise InputError(answer["refused"])
        return answer


def _tried(what: Collection[str]) -> str:
    return "reading weights" if "start" in what else "a training step"


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


def _answer(
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
        name, what = network["engine"], _tried(() if start is None else ("start",))
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
        send(_answer(**json.loads(line)))


if __name__ == "__main__":
    _serve()
