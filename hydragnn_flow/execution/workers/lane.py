"""A lane: one warm process that trains segment after segment on one GCD.

The Parsl worker that owns a lane imports neither torch nor the store, so whatever happens to a
lane, the worker lives to tell. Several lanes on one GCD share it. Requests and replies are single
lines of JSON through pipes; a lane ends when its worker does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Set
from typing import Any

from hydragnn_flow.execution.workers.binding import bound_to

LAST = "last"
"""Key of an answer after which the process ends."""


class LaneDied(RuntimeError):
    """The process ended without an answer."""


class Lane:
    """The worker's end of a lane.

    Parameters
    ----------
    environment
        Variables to set for the process, among them the GCD it sees; None removes one.
    cores
        CPU cores it runs on; all that this process may use where none are given.
    """

    def __init__(
        self, environment: Mapping[str, str | None], cores: Set[int] = frozenset()
    ) -> None:
        variables = {**os.environ, **environment}
        with bound_to(cores):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hydragnn_flow.execution.workers.lane_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={key: value for key, value in variables.items() if value is not None},
            )
        self.was_killed = False
        """Whether :meth:`kill` ended it, and not something else before."""

    @property
    def alive(self) -> bool:
        """Whether the process can take a request."""
        return self._process.poll() is None

    def call(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Raises
        ------
        LaneDied
            If the process ends instead; the message says how.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.endswith("\n"):
            raise LaneDied(_ending(self._process.wait()))
        answer: dict[str, Any] = json.loads(line)
        if answer.pop(LAST, False):
            self._process.wait()  # it ends by itself; the next request is for another
        return answer

    def kill(self) -> None:
        """End the process at once; it is gone when this returns."""
        if self.alive:
            self.was_killed = True
            self._process.kill()
        self._process.wait()


def _ending(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"its process was killed by {name}{hint}"
