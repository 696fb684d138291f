"""Garbage collection in a process that keeps millions of objects."""

import gc
import subprocess
import sys
import weakref

import pytest

from hydragnn_flow import garbage
from hydragnn_flow.garbage import collection_of_new


class Ring:
    """Refers to itself."""

    def __init__(self):
        self.ring = self


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Each look makes a collection."""
    monkeypatch.setattr(garbage, "SECONDS_BETWEEN_COLLECTIONS", 0.0)
    of_hypothesis = [*gc.callbacks]
    gc.callbacks.clear()
    gc.collect()
    yield
    gc.callbacks[:] = of_hypothesis


def test_a_full_collection_goes_through_what_is_new():
    before = gc.get_freeze_count()
    with collection_of_new() as look:
        kept, ring = [Ring() for _ in range(100)], Ring()
        gone = weakref.ref(ring)
        del ring
        look()
        assert gone() is None, "garbage of a cycle was kept"
        assert gc.get_freeze_count() > before + len(kept), "they would be gone through again"
        ring = kept.pop()
        gone = weakref.ref(ring)
        del ring
        look()
        assert gone() is not None, "it was looked at again"


def test_no_full_collection_begins_by_itself():
    before = gc.get_threshold()
    with collection_of_new() as look:
        look()
        times = gc.get_stats()[2]["collections"]
        kept = [[number] for number in range(200_000)]
        assert gc.get_stats()[2]["collections"] == times
        del kept
    assert gc.get_threshold() == before


def test_what_was_left_alone_is_found_at_the_end_of_the_process():
    """Objects of ADIOS2 in a cycle otherwise cost 65 lines: "nanobind: leaked …"."""
    program = """
import sys
sys.modules["torch"] = None  # adios2 imports it where it can, which takes seconds
import gc, adios2.bindings, hydragnn_flow.garbage
ring = [adios2.bindings.ADIOS()]
ring.append(ring)
gc.freeze()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
