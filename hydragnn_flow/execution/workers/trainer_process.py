"""Trainer process: one warm process that trains segment after segment on one GCD.

The Parsl worker that owns it imports neither torch nor the store, so that the worker survives
whatever happens to the process. Several may run on one GCD. Requests and replies
are single lines of JSON through pipes; the process ends when its worker does.

While it trains it sends a sign of life about every second. A process that hangs, in a GPU's queue
or in reading a file system, sends none and is killed; nothing else would notice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import Any

from hydragnn_flow.execution.binding import bound_to
from hydragnn_flow.processes import JsonProcess, ProcessDied

CALL, ARGUMENT = "call", "argument"
"""Keys of a request to call a function, `module:function`, with a dict."""
LAST = "last"
"""Key of an answer after which the process ends."""
ALIVE = "alive"
"""Key of a sign of life, with the longest training step so far [s]; 0 before the first."""
SECONDS_BETWEEN_SIGNS = 1.0
# Time from a request to the end of its first step [s]: torch is imported, a store is read or copied
# to the node, kernels are compiled.
SECONDS_TO_BEGIN = 3600.0
# From then on, longest time between two signs of life [s], or number of the longest steps.
SECONDS_BETWEEN_STEPS = 600.0
STEPS_TO_WAIT = 20.0


class Hung(ProcessDied):
    """The process was killed because it gave no sign of life."""


class TrainerProcess(JsonProcess):
    """The worker's handle of a trainer process.

    Parameters
    ----------
    environment
        Variables to set for the process, among them the GCD it sees; None removes one.
    cores
        CPU cores it runs on; all that this process may use if none are given.
    """

    def __init__(
        self, environment: Mapping[str, str | None], cores: Set[int] = frozenset()
    ) -> None:
        with bound_to(cores):
            super().__init__(
                "hydragnn_flow.execution.workers.trainer_main", environment=environment
            )

    def run(self, function: str, argument: Mapping[str, Any]) -> dict[str, Any]:
        """Have the process call a function; returns its answer.

        Parameters
        ----------
        function
            Its name, `module:function`: this process need not import what it needs.
        argument
            What it is called with, as JSON.

        Raises
        ------
        ProcessDied
            If the process ends instead.
        """
        return self.call({CALL: function, ARGUMENT: argument})

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
        ProcessDied, Hung
            If the process ends instead, or hangs; the message says how.
        """
        silent = longest = 0.0
        self.send(request)
        while True:
            message = self.receive(SECONDS_BETWEEN_SIGNS)
            if message is None:
                # Not by the clock: a batch job that was suspended had no time to give signs.
                silent += SECONDS_BETWEEN_SIGNS
                if silent > seconds:
                    self.kill()
                    raise Hung(
                        f"it hung: its process gave no sign of life for {silent:.0f} s, and the "
                        f"longest of its steps took {longest:.1f} s"
                    )
            elif ALIVE in message:
                silent, longest = 0.0, max(longest, message[ALIVE])
                if longest > 0:
                    seconds = max(SECONDS_BETWEEN_STEPS, STEPS_TO_WAIT * longest)
            else:
                if message.pop(LAST, False):
                    self.wait()  # the next request is for another process
                return message
