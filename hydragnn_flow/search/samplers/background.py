"""The driver's end of a process that proposes trials."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from hydragnn_flow.search.samplers.encoding import Space, Values


class Proposals(NamedTuple):
    """What a process proposes, and what it took."""

    values: list[Values]
    seconds: float
    """Wall time of them all."""


class ProposerDied(RuntimeError):
    """The process ended without an answer."""


class Background(Protocol):
    """What proposes beside the driver."""

    def propose(
        self,
        finished: Sequence[tuple[Mapping[str, Any], float]],
        running: Sequence[Mapping[str, Any]],
        count: int,
        seed: int,
    ) -> Future[Proposals]:
        """As `Proposer.propose`, at some later time; `ProposerDied` if there is no answer."""

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
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "hydragnn_flow.search.samplers.background_process",
                str(os.getpid()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        # It writes and waits, so that a full pipe cannot hold up the driver.
        self._thread = ThreadPoolExecutor(max_workers=1)
        domains = {name: domain.model_dump(mode="json") for name, domain in space.items()}
        self._thread.submit(self._write, domains)

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def propose(
        self,
        finished: Sequence[tuple[Mapping[str, Any], float]],
        running: Sequence[Mapping[str, Any]],
        count: int,
        seed: int,
    ) -> Future[Proposals]:
        """As `Proposer.propose`, at some later time; `ProposerDied` if there is no answer."""
        request = {"finished": finished, "running": running, "count": count, "seed": seed}
        return self._thread.submit(self._call, request)

    def close(self) -> None:
        """End the process; it is gone when this returns."""
        self._process.kill()
        self._process.wait()
        self._thread.shutdown()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _call(self, request: Mapping[str, Any]) -> Proposals:
        assert self._process.stdout is not None
        try:
            self._write(request)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.endswith("\n"):
            raise ProposerDied
        return Proposals(**json.loads(line))

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
