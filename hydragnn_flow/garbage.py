"""Garbage collection in a process that keeps millions of objects."""

from __future__ import annotations

import atexit
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS_BETWEEN_COLLECTIONS = 10.0
_NEVER = 2**31 - 1

# A driver that is stopped leaves cycles, with open stores in them, which ADIOS2 complains of at the
# end of the process unless the interpreter's own last collection finds them.
atexit.register(gc.unfreeze)


@contextmanager
def no_collection() -> Iterator[None]:
    """Make objects that stay, without searches among them for those that do not.

    The collector would go through all of them again and again, and later once in a while for
    seconds. From the end of the ``with`` block on it leaves alone what is there.
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
    """Have full collections go through what was made since the last one, not through all.

    Of a driver with 75,000 running trials it would take four seconds, to find a hundred objects.
    What outlives one is left alone from then on: it goes when nothing refers to it, unless it is
    part of a cycle.

    Yields
    ------
    function
        To be called now and then; makes a full collection if it is time for one. None begins by
        itself, where a signal might come to code that the collector calls, which loses exceptions.
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
