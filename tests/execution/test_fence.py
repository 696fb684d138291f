"""One driver per run directory, and writers that know when they are none any more."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import pytest
from segment_cases import make_spec

from hydragnn_flow import locks
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import check_driver, fence, sole_driver
from hydragnn_flow.execution.fence import ATTEMPT_FILE, DRIVER_FILE, LOCK_FILE, Fence, is_driven
from hydragnn_flow.execution.workers.trainer_main import _written_by


def test_a_driver_that_starts_is_not_taken_for_one_that_is_being_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hydragnn-flow status` takes the lock for an instant."""
    monkeypatch.setattr(fence, "SECONDS_TO_BECOME_DRIVER", 30.0)
    holding, looked = threading.Event(), threading.Event()

    def look() -> None:
        with locks.locked(tmp_path / LOCK_FILE, 0.0):
            holding.set()
            looked.wait(0.1)

    watcher = threading.Thread(target=look)
    watcher.start()
    holding.wait(10)
    with sole_driver(tmp_path):
        assert is_driven(tmp_path)
    watcher.join()


def test_a_second_driver_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "SECONDS_TO_BECOME_DRIVER", 0.0)
    with (
        sole_driver(tmp_path),
        pytest.raises(InputError, match=rf"is being worked on by process {os.getpid()} on"),
        sole_driver(tmp_path),
    ):
        pass


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    with (
        pytest.raises(InputError, match=r"cannot lock files \(No locks available\); choose"),
        sole_driver(tmp_path),
    ):
        pass


def test_a_driver_learns_that_another_has_replaced_it(tmp_path: Path) -> None:
    with sole_driver(tmp_path) as old:
        check_driver(tmp_path, old)
        (tmp_path / LOCK_FILE).unlink()  # as where a file system takes the lock from its holder
        with sole_driver(tmp_path) as new:
            check_driver(tmp_path, new)
            with pytest.raises(
                CampaignStopped, match=rf"process {os.getpid()} on .* taken it over"
            ):
                check_driver(tmp_path, old)


@pytest.mark.parametrize("content", [None, b"", b'{"token": ', b"\xff\xfe"])
def test_a_token_that_is_no_other_drivers_stops_nobody(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / DRIVER_FILE).write_bytes(content)
    check_driver(tmp_path, "mine")
    assert not Fence(tmp_path, "mine", tmp_path, "attempt").deposed()


def test_a_disk_that_does_not_answer_allows_no_write_and_deposes_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / DRIVER_FILE).write_text(json.dumps({"token": "mine"}))
    (tmp_path / ATTEMPT_FILE).write_text("mine")
    fence = Fence(tmp_path, "mine", tmp_path, "mine")
    assert fence.may_write()

    def read_text(*_: object, **__: object) -> str:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(Path, "read_text", read_text)
    assert not fence.deposed()
    with pytest.raises(OSError, match="Stale"):
        fence.may_write()
    with pytest.raises(OSError, match="Stale"):
        check_driver(tmp_path, "mine")


def test_whoever_writes_next_sweeps_up_what_a_killed_writer_left(tmp_path: Path) -> None:
    left = [".checkpoint.pt.4711.tmp", ".checkpoint.pt.0f3c.tmp", ".validation.npz.77aa.tmp"]
    for name in (*left, ".attempt.3d.tmp"):  # the last may be about to be put up
        (tmp_path / name).touch()
    spec = make_spec(tmp_path, None, 1, attempt="mine")
    with _written_by(spec):
        assert not {entry.name for entry in tmp_path.iterdir()} & set(left)
        assert (tmp_path / ".attempt.3d.tmp").exists()
