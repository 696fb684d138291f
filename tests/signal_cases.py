"""Signals that a test sends its own process."""

from __future__ import annotations

import os
import signal
import threading


def send(number: int) -> None:
    assert signal.getsignal(number) is not signal.SIG_DFL, "it would end the tests"
    os.kill(os.getpid(), number)


def together(*numbers: int) -> None:
    """Send this thread signals that all wait until it has time for them."""
    for number in numbers:
        assert signal.getsignal(number) is not signal.SIG_DFL, "it would end the tests"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        signal.pthread_kill(threading.get_ident(), number)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
