"""A part of a prediction: it does not hang for ever."""

import faulthandler
import os
import time

from hydragnn_flow.ensemble import part_files


def chunks(seconds):
    yield "first"
    time.sleep(seconds)
    yield "second"


def test_a_process_that_hangs_ends(monkeypatch):
    monkeypatch.setattr(part_files, "_SECONDS_BETWEEN_CHUNKS", 0.02)
    monkeypatch.setattr(part_files, "_CHUNKS_TO_WAIT", 0.0)
    hanging = os.fork()
    if not hanging:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        list(part_files.watched(chunks(600.0)))
        os._exit(0)
    _, status = os.waitpid(hanging, 0)
    assert os.waitstatus_to_exitcode(status) == 1


def test_nobody_watches_what_has_ended(monkeypatch):
    called: list[str] = []
    for name in ("dump_traceback_later", "cancel_dump_traceback_later"):
        monkeypatch.setattr(faulthandler, name, lambda *_, name=name, **__: called.append(name))
    assert list(part_files.watched(chunks(0.0))) == ["first", "second"]
    assert called == [*["dump_traceback_later"] * 3, "cancel_dump_traceback_later"]
