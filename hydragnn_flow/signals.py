"""Signals that end a process, handled so that it gives its resources back first."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# Sent by Ctrl-C, by `kill` and the guards of a login node, and when a connection is lost.
_ENDING: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_UNHANDLED = (signal.SIG_DFL, signal.default_int_handler)
# Signals within this time count as one [s]: the exception of a second one would end the `finally`
# of the first.
SECONDS_OF_ONE = 2.0


@contextmanager
def leaving_in_order(at_once: Callable[[], None] | None = None) -> Iterator[None]:
    """Leave a ``with`` block by `SystemExit` on SIGTERM and SIGHUP, as on Ctrl-C by its exception.

    Left alone, both end the process at once. The exit status is a shell's: 128 and the number of
    the signal. A signal that has a handler, or is ignored as nohup does, is left as it is.

    Signals that come together raise one exception: systemd ends a session by SIGTERM and SIGHUP at
    once, and a user whose Ctrl-C has to wait for a long computation may close the terminal.

    Parameters
    ----------
    at_once
        Is called, and the process ended, for a signal that comes during an import: many a module
        catches every exception of those that it can do without. Exceptions only if not given.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    around = next((one for one in before.values() if isinstance(one, _Leaving)), None)
    replaced = _UNHANDLED if around is None else (*_UNHANDLED, around)
    ours = {number: handler for number, handler in before.items() if handler in replaced}
    leave = _Leaving(at_once, [float("-inf")] if around is None else around.left)
    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put signals that end the process off until the end of a ``with`` block."""
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


class _Leaving:
    """A handler that raises the exception of a signal, and none for those right behind it."""

    def __init__(self, at_once: Callable[[], None] | None, left: list[float]) -> None:
        self._at_once, self.left = at_once, left

    def __call__(self, number: int, frame: FrameType | None) -> None:
        _keep_silent_without_terminal()
        if time.monotonic() - self.left[0] < SECONDS_OF_ONE:
            return
        self.left[0] = time.monotonic()
        while self._at_once is not None and frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                self._at_once()
                os._exit(128 + number)
            frame = frame.f_back
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


def _keep_silent_without_terminal() -> None:
    """Print nowhere if the terminal is gone: an error of `print` would end the clearing up."""
    for output in (1, 2):
        try:
            os.write(output, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
