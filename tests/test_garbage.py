"""Garbage collection in a process that keeps millions of objects."""

from __future__ import annotations

import gc
import weakref

from hydragnn_flow.garbage import collection_of_new


class Ring:
    """Refers to itself."""

    def __init__(self) -> None:
        self.ring = self


def test_a_full_collection_goes_through_what_is_new() -> None:
    gc.collect()
    before = gc.get_freeze_count()
    with collection_of_new():
        kept, ring = [Ring() for _ in range(100)], Ring()
        gone = weakref.ref(ring)
        del ring
        gc.collect()
        assert gone() is None, "garbage of a cycle was kept"
        assert gc.get_freeze_count() > before + len(kept), "they would be gone through again"
        plain = [Ring()]
        plain[0].ring = None  # type: ignore[assignment]
        gc.collect()
        gone = weakref.ref(plain.pop())
        assert gone() is None, "what has no cycle goes at once"
        ring = kept.pop()
        gone = weakref.ref(ring)
        del ring
        gc.collect()
        assert gone() is not None, "it was looked at again"
    gc.collect()
    assert gone() is None, "it was kept for good"
