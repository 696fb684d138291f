"""A lane: one warm process that trains segment after segment on one GCD.

The Parsl worker that owns a lane imports neither torch nor the store, so whatever happens to a
lane, the worker lives to tell. Several lanes on one GCD share it. Requests and replies are single
lines of JSON through pipes; a lane ends when its worker does.

A lane that trains sends a sign of life about every second. One that hangs, in a GPU's queue or in
reading a file system, sends none and is killed; nobody else would ever notice.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Set
from contextlib import suppress
from typing import Any

from hydragnn_flow.execution.workers.binding import bound_to

LAST = "last"
"""Key of an answer after which the process ends."""
ALIVE = "alive"
"""Key of a sign of life, with the longest training step so far [s]; 0 before the first."""
SECONDS_BETWEEN_SIGNS = 1.0
# From the request to the first step that is done: torch is imported, a store is read or copied to
# the node, kernels are compiled.
SECONDS_TO_BEGIN = 3600.0
# Then a sign of life is due within this time, or within this number of the longest steps.
SECONDS_BETWEEN_STEPS = 600.0
STEPS_TO_WAIT = 20.0
# A process that the system cannot end, in the middle of reading from a disk, is left to it.
SECONDS_TO_DIE = 10.0


class LaneDied(RuntimeError):
    """The process ended without an answer."""


class LaneHung(LaneDied):
    """The process was killed because it gave no sign of life."""


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
                env={key: value for key, value in variables.items() if value is not None},
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout.fileno()
        self._come = select.poll()
        self._come.register(self._replies, select.POLLIN)
        self._read = b""
        self.was_killed = False
        """Whether :meth:`kill` ended it, and not something else before."""

    @property
    def alive(self) -> bool:
        """Whether the process can take a request."""
        return not self.was_killed and self._process.poll() is None

    def call(self, request: Mapping[str, Any], seconds: float = math.inf) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Parameters
        ----------
        request
            What to do.
        seconds
            How long to wait for the first training step that is done; then less.

        Raises
        ------
        LaneDied, LaneHung
            If the process ends instead, or hangs; the message says how.
        """
        silent = longest = 0.0
        try:
            self._requests.write(f"{json.dumps(request)}\n".encode())
            self._requests.flush()
        except BrokenPipeError:
            raise LaneDied(_ending(self._process.wait())) from None
        while True:
            message = self._message()
            if message is None:
                # Not by the clock: a batch job that was suspended had no time to give signs.
                silent += SECONDS_BETWEEN_SIGNS
                if silent > seconds:
                    self.kill()
                    raise LaneHung(
                        f"it hung: its process gave no sign of life for {silent:.0f} s, and the "
                        f"longest of its steps took {longest:.1f} s"
                    )
            elif ALIVE in message:
                silent, longest = 0.0, max(longest, message[ALIVE])
                if longest > 0:
                    seconds = max(SECONDS_BETWEEN_STEPS, STEPS_TO_WAIT * longest)
            else:
                if message.pop(LAST, False):
                    self._end()
                return message

    def kill(self) -> None:
        """End the process at once; unless the system cannot, it is gone when this returns."""
        if self.alive:
            self.was_killed = True
            self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(SECONDS_TO_DIE)

    def _end(self) -> None:
        """Wait until the process has ended by itself; the next request is for another."""
        try:
            self._process.wait(SECONDS_TO_DIE)
        except subprocess.TimeoutExpired:  # in giving back the GPU's memory, for example
            self.kill()

    def _message(self) -> dict[str, Any] | None:
        """The next line of the process; nothing where none comes for a while.

        Raises
        ------
        LaneDied
            If the process has ended, or was killed.
        """
        while b"\n" not in self._read:
            if not self._come.poll(1000 * SECONDS_BETWEEN_SIGNS):
                if self.was_killed:  # and has not ended
                    raise LaneDied("its process was killed and does not end")
                return None
            more = os.read(self._replies, 1 << 16)
            if not more:
                raise LaneDied(_ending(self._process.wait()))
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


def _ending(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"its process was killed by {name}{hint}"
