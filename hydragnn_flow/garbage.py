"""Garbage collection in a process that keeps millions of objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
def collection_of_new() -> Iterator[None]:
    """Have a full collection go through what was made since the last one, not through all.

    Of a driver with 75,000 running trials it would take four seconds, to find a hundred objects.
    What outlives one is left alone until the end of the ``with`` block. It still goes when nothing
    refers to it, unless it is part of a cycle.
    """

    def leave_alone(phase: str, about: dict[str, Any]) -> None:
        if phase == "stop" and about["generation"] == 2:
            gc.freeze()

    gc.callbacks.append(leave_alone)
    try:
        yield
    finally:
        gc.callbacks.remove(leave_alone)
        gc.unfreeze()
