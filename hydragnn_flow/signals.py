"""Signals that end a process, handled so that it first releases its resources."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

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
    """Delay signals that end the process until the end of a ``with`` block."""
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
    """Return a signal handler that raises an exception, but none within two seconds of the last."""
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
    """Ignore further signals in a process that is about to end."""
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
