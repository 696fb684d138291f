"""Probe of networks that engines (HydraGNN, a user's module) build, in a process of its own.

An engine's code may crash or need much memory, so the driver does not run it itself.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from hydragnn_flow.config.network import EngineNetwork
from hydragnn_flow.config.origins import StartConfig
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import NetworkCost
from hydragnn_flow.processes import JsonProcess, ProcessDied

SECONDS = 600.0
"""Time limit for a network to be built and to take its steps [s]."""


class EngineProbe:
    """Probe that tries networks of engines: takes a training step, or reads initial weights.

    Its process starts with the first network and ends with this object.

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
        """Measure the cost of a training step on a batch of so many atoms, edges and graphs.

        Raises
        ------
        InputError
            If the engine cannot build the network, the network returns something else than
            requested, or its training step fails.
        """
        batch = {"atoms": atoms, "edges": edges, "graphs": graphs}
        return NetworkCost(**self._ask(network, batch=batch))

    def weights(self, network: EngineNetwork, start: StartConfig, target: Path | None) -> None:
        """Read the weights that a network begins with, and write them to a file.

        Parameters
        ----------
        network
            Network that an engine builds.
        start
            Source of the weights, and the parameters to freeze.
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
        """End the process, and wait until it is gone."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _ask(self, network: EngineNetwork, **what: Any) -> dict[str, Any]:
        engine = network.engine
        if self._process is None:
            self._process = JsonProcess(
                "hydragnn_flow.campaign.setup.engine_process",
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
