"""Driver's side of the process that proposes trials."""

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
    """Wall time of all proposals together [s]."""


class Background(Protocol):
    """Process that proposes trials next to the driver."""

    def propose(
        self, finished: Finished, running: Running, count: int, seed: int
    ) -> Future[Proposals]:
        """Run `Proposer.propose` later; the future raises `ProcessDied` if no answer comes."""

    def close(self) -> None:
        """End the process; it is gone when this returns."""


class BackgroundProposer:
    """`Proposer` in a separate process, with low priority and one thread.

    Parameters
    ----------
    space
        Domain of each parameter by dotted path; conditions follow the parameters they name.
    """

    def __init__(self, space: Space) -> None:
        self._process = JsonProcess(
            "hydragnn_flow.search.samplers.proposer",
            str(os.getpid()),
            environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        # This thread writes and waits, so a full pipe cannot block the driver.
        self._thread = ThreadPoolExecutor(max_workers=1)
        domains = {name: domain.model_dump(mode="json") for name, domain in space.items()}
        self._thread.submit(self._process.send, domains)

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    def propose(
        self, finished: Finished, running: Running, count: int, seed: int
    ) -> Future[Proposals]:
        request = {"finished": finished, "running": running, "count": count, "seed": seed}
        return self._thread.submit(self._call, request)

    def close(self) -> None:
        self._process.kill()
        self._thread.shutdown()
        self._process.close()

    def _call(self, request: Mapping[str, Any]) -> Proposals:
        self._process.send(request)
        answer = self._process.receive()
        assert answer is not None  # without a time limit
        return Proposals(**answer)
