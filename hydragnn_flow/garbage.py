"""Garbage collection in a process that keeps millions of objects."""

from __future__ import annotations

import atexit
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS_BETWEEN_COLLECTIONS = 10.0
_NEVER = 2**31 - 1

# A stopped driver leaves reference cycles that contain open stores. ADIOS2 complains about these at
# the end of the process unless the interpreter's last collection finds them.
atexit.register(gc.unfreeze)


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection while long-lived objects are made in a ``with`` block.

    The collector would visit all of them again and again, and later now and then for seconds. From
    the end of the block on it ignores all objects that exist.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def collection_of_new() -> Iterator[Callable[[], None]]:
    """Make full collections visit only objects made since the last one.

    In a driver with 75,000 running trials a full collection takes four seconds, and finds a hundred
    objects. An object that survives one is ignored from then on: it is freed when nothing refers to
    it, unless it belongs to a cycle.

    Yields
    ------
    function
        Function to call regularly; it makes a full collection when one is due. None starts on its
        own, as a signal during code that the collector calls would lose its exception.
    """
    before = gc.get_threshold()
    looked = time.monotonic()

    def look() -> None:
        nonlocal looked
        if time.monotonic() - looked < SECONDS_BETWEEN_COLLECTIONS:
            return
        gc.collect()
        gc.freeze()
        looked = time.monotonic()

    gc.set_threshold(*before[:2], _NEVER)
    try:
        yield look
    finally:
        gc.set_threshold(*before)
