"""Signals that end a process, for those who have something to give back first."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# What `kill` and the guards of a login node send, and what a lost connection leaves.
_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def leaving_in_order() -> Iterator[None]:
    """Leave a ``with`` block by `SystemExit` on SIGTERM and SIGHUP, as on Ctrl-C by its exception.

    Left alone, both end the process at once. The exit status is a shell's: 128 and the number of
    the signal. A signal that somebody handles, or ignores as nohup does, stays theirs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put signals that end the process off until the end of a ``with`` block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    ending: list[int] = [signal.SIGINT, *_ENDING]
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in ending}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            os.kill(os.getpid(), number)


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    for output in (1, 2):
        try:
            os.write(output, b"")
        except OSError:  # a terminal that is gone: a word to it must not end the clearing up
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    raise SystemExit(128 + number)
