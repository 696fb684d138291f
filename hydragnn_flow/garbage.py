"""Garbage collection in a process that reads, and keeps, millions of objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
