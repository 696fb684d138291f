"""Trainer processes of a node: kept alive on each GCD, and lent to one job at a time.

The node's agent imports neither torch nor the store, so it survives whatever happens to a trainer
process. Several trainer processes may run on one GCD. Requests and replies are single lines of JSON
through pipes; a trainer process ends when the agent does. Its output goes to a file on the node,
which the agent reads when a job has ended.

While a trainer process trains it sends a heartbeat about every second. If it hangs, in a GPU's
queue or in reading a file system, it sends none and is killed; nothing else would notice.
"""

from __future__ import annotations

import fcntl
import math
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.binding import bound_to, cores_of, environment
from hydragnn_flow.execution.site import Node
from hydragnn_flow.processes import JsonProcess, ProcessDied

LAST = "last"
"""Key of an answer after which the process ends."""
SHARE = "share"
"""Key of a message with the process's fraction of its GCD's energy counters, and the most memory
that it may reserve there [GiB]."""
RELEASE = "release"
"""Key of a message with the identifier of the attempt at a segment that has to stop at a
checkpoint."""
ALIVE = "alive"
"""Key of a heartbeat (sign of life), with the time of the longest training step so far [s]; 0
before the first step has ended."""
EPOCH = "epoch"
"""Key of a heartbeat with the training's last epoch, if that has ended since the one before: the
fields of :class:`~hydragnn_flow.log.LastEpoch`."""
SECONDS_BETWEEN_SIGNS = 1.0
# Time from a request to the end of its first step [s]: importing torch, reading a store or copying
# it to the node, compiling kernels.
SECONDS_TO_BEGIN = 3600.0
# Afterwards, longest time between two heartbeats [s], or in units of the longest step.
SECONDS_BETWEEN_STEPS = 600.0
STEPS_TO_WAIT = 20.0
SECONDS_TO_SAVE = 20.0
"""Time for a process to write a checkpoint and end, once its agent has died or asked it to end [s];
schedulers kill 30 s after their warning."""
# Amount of a process's output during a segment that is kept, from its end [bytes].
_MOST_WORDS = 1_000_000


class Hung(ProcessDied):
    """Error: a trainer process was killed because its heartbeats (signs of life) stopped."""


class TrainerProcess(JsonProcess):
    """Handle of a trainer process, by which its node's agent sends it jobs and stops it.

    Parameters
    ----------
    environment
        Values of environment variables by name, which select the GCD that the process sees; None
        removes a variable.
    cores
        Numbers of the CPU cores that the process runs on; if empty, all cores of the agent.
    """

    def __init__(
        self, environment: Mapping[str, str | None], cores: Set[int] = frozenset()
    ) -> None:
        self.runs_apps: bool | None = None
        """True if it has run a script's apps, False if other jobs, None if none; an app may leave
        its process changed in ways that would change a training."""
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # as long as this object lives
        # Written at its end, wherever that is after truncation.
        fcntl.fcntl(self._words, fcntl.F_SETFL, os.O_APPEND)
        with bound_to(cores):
            super().__init__(
                "hydragnn_flow.execution.workers.trainer_main",
                environment=environment,
                stderr=self._words.fileno(),
            )

    def said(self) -> str:
        """Return the output of the process since the last call, at most its last megabyte."""
        number = self._words.fileno()
        size = os.fstat(number).st_size
        words = os.pread(number, _MOST_WORDS, max(0, size - _MOST_WORDS))
        os.ftruncate(number, 0)
        return words.decode(errors="replace")

    def stop(self) -> None:
        """Ask the process to end, after a checkpoint of the running segment (job of training)."""
        self._process.terminate()

    def release(self, attempt: str) -> None:
        """Stop a segment (job of training) at a checkpoint; the process can then run other jobs.

        Nothing happens if the process does not run the attempt with the identifier ``attempt``.
        """
        with suppress(ProcessDied):  # noticed by the thread that waits for its answer
            self.send({RELEASE: attempt})

    def share(self, energy: float, memory_gib: float | None) -> None:
        """Set the process's fraction of its device's energy, 0 to 1, and its most memory [GiB].

        Without a limit of memory, ``memory_gib`` is None.
        """
        with suppress(ProcessDied):  # noticed by the thread that waits for its answer
            self.send({SHARE: [energy, memory_gib]})

    def call(
        self,
        request: Mapping[str, Any],
        seconds: float = math.inf,
        is_over: Callable[[], bool] = lambda: False,
        epoch_ended: Callable[[list[float]], None] = lambda epoch: None,
    ) -> dict[str, Any]:
        """Send a request for a job and wait for the answer, a dict of JSON values.

        Parameters
        ----------
        request
            Request in the form of JSON values.
        seconds
            Longest time without a heartbeat until the first training step has ended [s]; after that
            the limit follows from the longest step.
        is_over
            Function called about every second; the process is killed when it returns True.
        epoch_ended
            Function called with the last epoch of a training once it has ended, as :data:`EPOCH`.

        Raises
        ------
        ProcessDied, Hung
            If the process ends without an answer, or hangs; the message says how.
        """
        silent = longest = 0.0
        self.send(request)
        while True:
            message = self.receive(SECONDS_BETWEEN_SIGNS)
            if is_over() and (message is None or ALIVE in message):
                self.kill()
            if message is None:
                # Not measured by the clock: a suspended batch job had no time to send any.
                silent += SECONDS_BETWEEN_SIGNS
                if silent > seconds:
                    self.kill()
                    raise Hung(
                        f"it hung: its process gave no sign of life for {silent:.0f} s, and the "
                        f"longest of its steps took {longest:.1f} s"
                    )
            elif ALIVE in message:
                silent, longest = 0.0, max(longest, message[ALIVE])
                if EPOCH in message:
                    epoch_ended(message[EPOCH])
                if longest > 0:
                    seconds = max(SECONDS_BETWEEN_STEPS, STEPS_TO_WAIT * longest)
            else:
                if message.pop(LAST, False):
                    self.wait()  # the next request goes to another process
                return message


@dataclass(eq=False)
class _Lent:
    trainer: TrainerProcess
    memory_gib: float


class Trainers:
    """Trainer processes of this node, each on one GCD (device), which are lent to jobs.

    They stay alive between jobs, so that a job finds torch imported and the store read.

    Parameters
    ----------
    node
        Description of the site's nodes.
    """

    def __init__(self, node: Node) -> None:
        self._node, self._lock = node, threading.Lock()
        self._idle: dict[int, list[TrainerProcess]] = {n: [] for n in range(len(node.gcds))}
        self._lent: dict[int, list[_Lent]] = {n: [] for n in range(len(node.gcds))}

    @contextmanager
    def lend(
        self, gcd: int, memory_gib: float = 0.0, *, runs_apps: bool = False
    ) -> Iterator[TrainerProcess]:
        """Context manager: lend a trainer process; start one if none is idle on the GCD (device).

        Parameters
        ----------
        gcd
            Index of the GCD on the node.
        memory_gib
            Expected memory of the job, the process included [GiB]; idle processes for which this
            leaves no memory on the GCD are ended.
        runs_apps
            True for a script's app, False for other jobs; these share no process.

        Raises
        ------
        InputError
            If the batch job got fewer devices than the site's nodes have.
        """
        lent = self._take(gcd, memory_gib, runs_apps)
        try:
            yield lent.trainer
        finally:
            self._give_back(lent, gcd)

    def idle(self, gcd: int) -> list[TrainerProcess]:
        """Return the idle trainer processes on the GCD (device) at index ``gcd`` of the node."""
        with self._lock:
            return [*self._idle[gcd]]

    def _take(self, gcd: int, memory_gib: float, runs_apps: bool) -> _Lent:
        with self._lock:
            idle = self._idle[gcd] = [each for each in self._idle[gcd] if each.alive]
            fit = [each for each in idle if each.runs_apps in (None, runs_apps)]
            trainer = fit[-1] if fit else self._start(gcd)
            if fit:
                idle.remove(trainer)
            trainer.runs_apps = runs_apps
            lent = _Lent(trainer, memory_gib)
            self._lent[gcd].append(lent)
        self._settle(gcd)
        return lent

    def _give_back(self, lent: _Lent, gcd: int) -> None:
        with self._lock:
            self._lent[gcd].remove(lent)
            trainer = lent.trainer
            if not trainer.alive:
                # It restarts while the driver decides what comes next. If that fails, the next
                # segment that needs the process reports it, and this one is not affected.
                with suppress(OSError, InputError):
                    trainer = self._start(gcd)
            self._idle[gcd].append(trainer)
        self._settle(gcd)

    def _start(self, gcd: int) -> TrainerProcess:
        return TrainerProcess(environment(self._node, gcd), cores_of(self._node, gcd))

    def _settle(self, gcd: int) -> None:
        """End idle processes for which running jobs leave no memory; share out energy and memory.

        Each running process gets its fraction of the GCD's energy counters. Those of sockets see
        all CPU slots. Each slot is charged with the same fraction whatever runs on the others, so
        that a trial's energy does not depend on its neighbours. Beside others, each process may use
        what these are not expected to need, so that one that takes too much fails alone.
        """
        slots = len(self._node.gcds) if self._node.device == "cpu" else 1
        with self._lock:
            each, idle, running = self._node.gcd, self._idle[gcd], self._lent[gcd]
            left = each.memory_gib - sum(lent.memory_gib for lent in running)
            most = max(0, int(left / each.process_gib)) if running else len(idle)
            self._idle[gcd], surplus = idle[:most], idle[most:]
            for lent in running:
                own = left + lent.memory_gib - each.process_gib if len(running) > 1 else None
                lent.trainer.share(1 / (slots * len(running)), own)
        for trainer in surplus:
            trainer.kill()
