"""Trainer process: one warm process that trains segment after segment on one GCD.

The node's agent that owns it imports neither torch nor the store, so that the agent survives
whatever happens to the process. Several may run on one GCD. Requests and replies are single lines
of JSON through pipes; the process ends when the agent does. What it prints goes to a file of the
node's own, from which the agent takes it when a segment has ended.

While it trains it sends a sign of life about every second. A process that hangs, in a GPU's queue
or in reading a file system, sends none and is killed; nothing else would notice.
"""

from __future__ import annotations

import fcntl
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from typing import Any

from hydragnn_flow.execution.binding import bound_to
from hydragnn_flow.processes import JsonProcess, ProcessDied

FUSED = "segments"
"""Key of a request with the segments to train fused, and of the answer with their outcomes."""
LAST = "last"
"""Key of an answer after which the process ends."""
SHARE = "share"
"""Key of a message with the fraction of its GCD's energy counters that the process is to count."""
RELEASE = "release"
"""Key of a message with the attempt of a segment that is to end by itself, with a checkpoint."""
ALIVE = "alive"
"""Key of a sign of life, with the longest training step so far [s]; 0 before the first."""
SECONDS_BETWEEN_SIGNS = 1.0
# Time from a request to the end of its first step [s]: torch is imported, a store is read or copied
# to the node, kernels are compiled.
SECONDS_TO_BEGIN = 3600.0
# From then on, longest time between two signs of life [s], or number of the longest steps.
SECONDS_BETWEEN_STEPS = 600.0
STEPS_TO_WAIT = 20.0
SECONDS_TO_SAVE = 20.0
"""Time in which a process ends, with a checkpoint, once its agent is gone or has asked for it [s];
schedulers kill 30 s after their warning."""
# Of what a process prints during a segment, the last that is kept [bytes].
_MOST_WORDS = 1_000_000


class Hung(ProcessDied):
    """The process was killed because it gave no sign of life."""


class TrainerProcess(JsonProcess):
    """The agent's handle of a trainer process.

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
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # as long as this object lives
        # At its end, wherever that is after it was emptied.
        fcntl.fcntl(self._words, fcntl.F_SETFL, os.O_APPEND)
        with bound_to(cores):
            super().__init__(
                "hydragnn_flow.execution.workers.trainer_main",
                environment=environment,
                stderr=self._words.fileno(),
            )

    def said(self) -> str:
        """What the process has printed since this was asked before."""
        number = self._words.fileno()
        size = os.fstat(number).st_size
        words = os.pread(number, _MOST_WORDS, max(0, size - _MOST_WORDS))
        os.ftruncate(number, 0)
        return words.decode(errors="replace")

    def stop(self) -> None:
        """Have the process end, with a checkpoint of the segment at work."""
        self._process.terminate()

    def release(self, attempt: str) -> None:
        """Have a segment end by itself, with a checkpoint; the process goes on with others.

        Nothing happens if the process is at work on another by now.
        """
        with suppress(ProcessDied):  # which whoever waits for its answer comes to know
            self.send({RELEASE: attempt})

    def share(self, fraction: float) -> None:
        """Have the process count a fraction of what its GCD's energy counters see."""
        with suppress(ProcessDied):  # which whoever waits for its answer comes to know
            self.send({SHARE: fraction})

    def call(
        self,
        request: Mapping[str, Any],
        seconds: float = math.inf,
        is_over: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Parameters
        ----------
        request
            What to do.
        seconds
            How long to wait for the first training step that is done; then less.
        is_over
            Asked about every second; the process is killed where it says yes.

        Raises
        ------
        ProcessDied, Hung
            If the process ends instead, or hangs; the message says how.
        """
        silent = longest = 0.0
        self.send(request)
        while True:
            message = self.receive(SECONDS_BETWEEN_SIGNS)
            if is_over() and (message is None or ALIVE in message):
                self.kill()
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
