"""Probe of networks of engines, in a process of its own.

An engine's code may crash or need much memory, so the driver does not run it itself.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from hydragnn_flow.config.network import EngineNetwork
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import NetworkCost
from hydragnn_flow.processes import JsonProcess, ProcessDied

SECONDS = 600.0
"""Time limit for a network to be built and to take its steps [s]."""


class EngineProbe:
    """Process that measures training steps of networks that engines build.

    It uses a few graphs of a store, starts with the first network and ends with this object.

    Parameters
    ----------
    store
        Path of the store.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._process: JsonProcess | None = None

    def __enter__(self) -> EngineProbe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cost(self, network: EngineNetwork, atoms: int, edges: int, graphs: int) -> NetworkCost:
        """Measure the cost of a training step on a batch of a given size.

        Raises
        ------
        InputError
            If the engine cannot build the network, it returns something else than requested, or its
            step fails.
        """
        request = {
            "network": network.to_json(),
            "store": str(self._store),
            "batch": {"atoms": atoms, "edges": edges, "graphs": graphs},
        }
        answer = self._ask(network.engine, request)
        if "refused" in answer:
            raise InputError(answer["refused"])
        return NetworkCost(**answer)

    def close(self) -> None:
        """End the process; it is gone when this returns."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _ask(self, engine: str, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._process = JsonProcess(
                "hydragnn_flow.campaign.engine_process",
                str(os.getpid()),
                # An accelerator of a login node must not be used for this, and output of the
                # process would disturb the driver's display.
                stderr=DEVNULL,
                environment={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            )
            weakref.finalize(self, self._process.close)
        try:
            self._process.send(request)
            answer = self._process.receive(SECONDS)
        except ProcessDied as death:
            self.close()
            raise InputError(
                f"network: engine {engine} does not get through a training step: {death}"
            ) from None
        if answer is None:
            self.close()
            raise InputError(
                f"network: engine {engine} took more than {SECONDS:g} s for a training step of a "
                f"few graphs; make it smaller"
            )
        return answer
