"""The driver's end of a process that proposes trials."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from hydragnn_flow.processes import JsonProcess
from hydragnn_flow.search.samplers.encoding import Finished, Running, Space, Values


class Proposals(NamedTuple):
    """Proposals of a process, and the time they took."""

    values: list[Values]
    seconds: float
    """Wall time of them all."""


class Background(Protocol):
    """The process that proposes beside the driver."""

    def propose(
        self, finished: Finished, running: Running, count: int, seed: int
    ) -> Future[Proposals]:
        """As `Proposer.propose`, at some later time; `ProcessDied` if there is no answer."""

    def close(self) -> None:
        """End it; nothing is left when this returns."""


class BackgroundProposer:
    """A `Proposer` in a process of its own, of low priority and with one thread.

    Parameters
    ----------
    space
        Dotted path -> domain, conditions after the parameters they name.
    """

    def __init__(self, space: Space) -> None:
        self._process = JsonProcess(
            "hydragnn_flow.search.samplers.proposer",
            str(os.getpid()),
            environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        # It writes and waits, so that a full pipe cannot hold up the driver.
        self._thread = ThreadPoolExecutor(max_workers=1)
        domains = {name: domain.model_dump(mode="json") for name, domain in space.items()}
        self._thread.submit(self._process.send, domains)

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def propose(
        self, finished: Finished, running: Running, count: int, seed: int
    ) -> Future[Proposals]:
        """As `Proposer.propose`, at some later time; `ProcessDied` if there is no answer."""
        request = {"finished": finished, "running": running, "count": count, "seed": seed}
        return self._thread.submit(self._call, request)

    def close(self) -> None:
        """End the process; it is gone when this returns."""
        self._process.kill()
        self._thread.shutdown()
        self._process.close()

    def _call(self, request: Mapping[str, Any]) -> Proposals:
        self._process.send(request)
        answer = self._process.receive()
        assert answer is not None  # it was waited for
        return Proposals(**answer)
