"""A part of a prediction: it does not hang for ever."""

import faulthandler
import subprocess
import sys
import time

from hydragnn_flow.ensemble import part_files


def chunks(seconds):
    yield "first"
    time.sleep(seconds)
    yield "second"


HANGS = """
import time
from hydragnn_flow.ensemble import part_files
part_files._SECONDS_BETWEEN_CHUNKS, part_files._CHUNKS_TO_WAIT = 0.02, 0.0
def chunks():
    yield "first"
    time.sleep(600.0)
list(part_files.watched(chunks()))
"""


def test_a_process_that_hangs_ends():
    """One of its own: a fork would wait for the thread by which pytest watches this one."""
    done = subprocess.run([sys.executable, "-c", HANGS], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "in watched" in done.stderr


def test_nobody_watches_what_has_ended(monkeypatch):
    called: list[str] = []
    for name in ("dump_traceback_later", "cancel_dump_traceback_later"):
        monkeypatch.setattr(faulthandler, name, lambda *_, name=name, **__: called.append(name))
    assert list(part_files.watched(chunks(0.0))) == ["first", "second"]
    assert called == [*["dump_traceback_later"] * 3, "cancel_dump_traceback_later"]
