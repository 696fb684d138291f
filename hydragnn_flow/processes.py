"""Child processes: some answer in lines of JSON, some end with their parent."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import psutil

# Time after which a killed process is abandoned [s]: one that reads from a disk may not end.
SECONDS_TO_DIE = 10.0
_STAYS = "its process was killed and does not end"


class ProcessDied(RuntimeError):
    """Error: a child process has ended without an answer; the message says how it ended."""


class JsonProcess:
    """Child Python process that reads requests and writes answers, each as one line of JSON.

    Parameters
    ----------
    module
        Name of the module to run.
    *arguments
        Arguments of its command line.
    environment
        Environment variables to set for the process; a value of None removes the variable.
    stderr
        Descriptor of the file for its standard error; by default the parent's standard error.
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
            # Only this process gets Ctrl-C and the loss of a terminal; it then closes the pipe.
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._come = select.poll()
        self._come.register(self._answers, select.POLLIN)
        self._lines, self._part = deque[bytes](), list[bytes]()
        self._sending = threading.Lock()
        self.was_killed = False
        """True if :meth:`kill` ended the process; False if it ended before that, or still runs."""

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True if the child process runs and can take a request; False if it has ended."""
        return not self.was_killed and self._process.poll() is None

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to the child process, as one line of JSON.

        Raises
        ------
        ProcessDied
            If the process has ended.
        """
        line = f"{json.dumps(message)}\n".encode()
        if self.was_killed:  # another process, forked meanwhile, may still hold its pipe open
            raise self._death()
        try:
            with self._sending:
                self._requests.write(line)
                self._requests.flush()
        except (BrokenPipeError, ValueError):  # ValueError after :meth:`close`
            raise self._death() from None

    def receive(self, seconds: float | None = None) -> dict[str, Any] | None:
        """Return the next message of the child process; None if none comes within ``seconds``.

        Parameters
        ----------
        seconds
            Longest time to wait [s]; by default until the process ends.

        Raises
        ------
        ProcessDied
            If the process has ended, or was killed.
        """
        while not self._lines:
            if not self._come.poll(None if seconds is None else 1000 * seconds):
                if self.was_killed:
                    raise self._death()
                return None
            more = os.read(self._answers.fileno(), 1 << 16)
            if not more:
                raise self._death()
            first, *lines = more.split(b"\n")
            self._part.append(first)
            if lines:  # each but the last is whole
                self._lines += [b"".join(self._part), *lines[:-1]]
                self._part = [lines[-1]]
        message: dict[str, Any] = json.loads(self._lines.popleft())
        return message

    def _death(self) -> ProcessDied:
        try:
            return ProcessDied(_ending(self._process.wait(SECONDS_TO_DIE)))
        except subprocess.TimeoutExpired:
            return ProcessDied(_STAYS)

    def kill(self) -> None:
        """Kill the child process and its descendants, and wait at most ten seconds for its end."""
        if self.alive:
            self.was_killed = True
            self._process.send_signal(signal.SIGSTOP)  # so that it starts no more children
            kill_below(self.pid)
            self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(SECONDS_TO_DIE)

    def wait(self) -> None:
        """Wait at most ten seconds until the child process ends by itself, and then kill it."""
        try:
            self._process.wait(SECONDS_TO_DIE)
        except subprocess.TimeoutExpired:  # while freeing a GPU's memory, for example
            self.kill()

    def close(self) -> None:
        """Kill the child process and close its pipes; no thread may be using them any more."""
        self.kill()
        for pipe in (self._requests, self._answers):
            with suppress(BrokenPipeError):
                pipe.close()


def keep_stdout() -> Callable[[Mapping[str, Any]], None]:
    """Reserve standard output for messages to the parent process; return a function to send one.

    Everything else printed to standard output goes to standard error from then on.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    return send


def end_with_parent(parent: int) -> None:
    """Start a thread that ends this process within a second after its parent has ended.

    A killed parent sends no message, and other children may hold its pipes open.

    Parameters
    ----------
    parent
        Process id of the parent. If it has already ended, this process ends too.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def kill_below(pid: int) -> None:
    """Kill the descendants of a process, such as programs that a user's function runs."""
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


# Sent by Ctrl-C, by `kill` and the guards of a login node, and on loss of a connection.
_ENDING: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_UNHANDLED = (signal.SIG_DFL, signal.default_int_handler)
# Signals within this time count as one [s]: the exception of a second one would interrupt the
# `finally` blocks that handle the first.
SECONDS_OF_ONE = 2.0


@contextmanager
def leaving_in_order() -> Iterator[None]:
    """Raise `SystemExit` in a ``with`` block on SIGTERM or SIGHUP, so that clean-up code runs.

    By default both signals end the process at once. The exit status follows the shell: 128 plus the
    number of the signal. A signal that has a handler, or is ignored as under nohup, is left alone.

    Signals that come within two seconds raise one exception: systemd ends a session by SIGTERM and
    SIGHUP at once, and a user whose Ctrl-C waits for a long computation may close the terminal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    ours = {number: handler for number, handler in before.items() if handler in _UNHANDLED}
    leave = _leaving()
    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delay SIGINT, SIGTERM and SIGHUP until the end of a ``with`` block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def put_off(number: int, frame: FrameType | None) -> None:
        del frame
        _keep_silent_without_terminal()
        came.append(number)

    before = {number: signal.signal(number, put_off) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            os.kill(os.getpid(), number)


def _leaving() -> Callable[[int, FrameType | None], None]:
    """Return a signal handler that raises an exception, then ignores signals for two seconds."""
    left = float("-inf")

    def leave(number: int, frame: FrameType | None) -> None:
        nonlocal left
        del frame
        _keep_silent_without_terminal()
        if time.monotonic() - left < SECONDS_OF_ONE:
            return
        left = time.monotonic()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    return leave


def ignore_endings() -> None:
    """Ignore SIGINT, SIGTERM and SIGHUP from now on, in a process that is about to end."""
    if threading.current_thread() is threading.main_thread():
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)


def _keep_silent_without_terminal() -> None:
    """Discard further output if the terminal or the reader of a pipe is gone.

    Otherwise an error of `print` would interrupt the clean-up.
    """
    for output in (1, 2):
        ends = select.poll()
        ends.register(output, 0)
        try:
            os.write(output, b"")
            is_open = not any(event & select.POLLERR for _, event in ends.poll(0))
        except OSError:
            is_open = False
        if not is_open:
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
