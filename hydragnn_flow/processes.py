"""Processes: children that answer in lines of JSON, and children that end with their parent."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import psutil

# A process that the system cannot end, in the middle of reading from a disk, is left to it.
SECONDS_TO_DIE = 10.0
_STAYS = "its process was killed and does not end"


class ProcessDied(RuntimeError):
    """A child process ended without an answer; the message says how."""


class JsonProcess:
    """A child process that takes requests and answers them, each a line of JSON.

    Parameters
    ----------
    module
        Name of the module that it runs.
    *arguments
        Its command line.
    environment
        Variables to set for it; None removes one.
    stderr
        Descriptor of the file that it prints to; that of this process if not given.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str | None] | None = None,
        stderr: int | None = None,
    ) -> None:
        variables = {**os.environ, **(environment or {})}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={key: value for key, value in variables.items() if value is not None},
            # Ctrl-C, and the loss of a terminal, are for this process, which then closes the pipe.
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._come = select.poll()
        self._come.register(self._answers, select.POLLIN)
        self._read = b""
        self._sending = threading.Lock()
        self.was_killed = False
        """Whether :meth:`kill` ended it, and not something else before."""

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process can take a request."""
        return not self.was_killed and self._process.poll() is None

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message.

        Raises
        ------
        ProcessDied
            If the process has ended.
        """
        line = f"{json.dumps(message)}\n".encode()
        try:
            with self._sending:
                self._requests.write(line)
                self._requests.flush()
        except (BrokenPipeError, ValueError):  # the latter where :meth:`close` has closed it
            raise self._death() from None

    def receive(self, seconds: float | None = None) -> dict[str, Any] | None:
        """The next message of the process; None if it is silent for that time.

        Parameters
        ----------
        seconds
            How long to wait; for as long as it lives if not given.

        Raises
        ------
        ProcessDied
            If the process has ended, or was killed.
        """
        while b"\n" not in self._read:
            if not self._come.poll(None if seconds is None else 1000 * seconds):
                if self.was_killed:
                    raise self._death()
                return None
            more = os.read(self._answers.fileno(), 1 << 16)
            if not more:
                raise self._death()
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _death(self) -> ProcessDied:
        try:
            return ProcessDied(_ending(self._process.wait(SECONDS_TO_DIE)))
        except subprocess.TimeoutExpired:
            return ProcessDied(_STAYS)

    def kill(self) -> None:
        """End the process and what it has started; unless the system cannot, it is gone then."""
        if self.alive:
            self.was_killed = True
            self._process.send_signal(signal.SIGSTOP)  # or it might start others
            kill_below(self.pid)
            self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(SECONDS_TO_DIE)

    def wait(self) -> None:
        """Wait until the process has ended by itself; one that takes too long is killed."""
        try:
            self._process.wait(SECONDS_TO_DIE)
        except subprocess.TimeoutExpired:  # in giving back a GPU's memory, for example
            self.kill()

    def close(self) -> None:
        """Kill the process and close its pipes, which no thread may be using any more."""
        self.kill()
        for pipe in (self._requests, self._answers):
            with suppress(BrokenPipeError):
                pipe.close()


def keep_stdout() -> Callable[[Mapping[str, Any]], None]:
    """Keep standard output for messages to the parent; returns the function that sends one.

    Everything else printed to standard output goes to standard error from then on.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    return send


def end_with_parent(parent: int) -> None:
    """Have this process end when its parent does, however that ends.

    A parent that is killed sends no message, and its pipes may be held open by other children.

    Parameters
    ----------
    parent
        Number of the parent process. One that has ended already ends this process too.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def kill_below(pid: int) -> None:
    """End what a process has started, such as the programs that a user's function calls."""
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                child.kill()


def _ending(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"its process was killed by {name}{hint}"
