"""A part of a prediction: it does not hang for ever."""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hydragnn_flow.ensemble import part_files


def chunks(seconds: float) -> Iterator[Any]:
    yield "first"
    time.sleep(seconds)
    yield "second"


def test_a_process_that_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_files, "_SECONDS_BETWEEN_CHUNKS", 0.02)
    monkeypatch.setattr(part_files, "_CHUNKS_TO_WAIT", 0.0)
    hanging = os.fork()
    if not hanging:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        list(part_files.watched(chunks(600.0)))
        os._exit(0)
    _, status = os.waitpid(hanging, 0)
    assert os.waitstatus_to_exitcode(status) == 1


def test_nobody_watches_what_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in ("dump_traceback_later", "cancel_dump_traceback_later"):
        monkeypatch.setattr(faulthandler, name, lambda *_, name=name, **__: called.append(name))
    assert list(part_files.watched(chunks(0.0))) == ["first", "second"]
    assert called == [*["dump_traceback_later"] * 3, "cancel_dump_traceback_later"]
