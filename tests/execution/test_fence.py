"""One driver per run directory, and writers that know when they are none any more."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from pathlib import Path

import pytest
from segment_cases import make_spec
from trainer_cases import LONG, NODE, Running, checkpoint

from hydragnn_flow import locks
from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import RankGroup, check_driver, fence, run_rank_groups, sole_driver
from hydragnn_flow.execution.fence import (
    ATTEMPT_FILE,
    DRIVER_FILE,
    LOCK_FILE,
    Busy,
    Fence,
    is_driven,
    sole_writer,
)
from hydragnn_flow.execution.workers.trainer_main import _written_by
from hydragnn_flow.training.checkpoint import FILE

pytestmark = pytest.mark.xdist_group("trainers")  # which are warm from file to file


def fence_of(folder: Path, token: str) -> Fence:
    values = {"run_directory": str(folder), "token": token, "attempt": "mine"}
    return Fence(make_spec(folder, None, 1, **values))


def test_a_driver_that_starts_is_not_taken_for_one_that_is_being_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hydragnn-flow status` takes the lock for an instant."""
    monkeypatch.setattr(fence, "SECONDS_TO_BECOME_DRIVER", 30.0)
    holding, answered = threading.Event(), threading.Event()

    def ask() -> None:
        with locks.locked(tmp_path / LOCK_FILE, 0.0):
            holding.set()
            answered.wait(0.1)

    watcher = threading.Thread(target=ask)
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
    assert not fence_of(tmp_path, "mine").deposed()


def test_a_disk_that_does_not_answer_allows_no_write_and_deposes_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / DRIVER_FILE).write_text(json.dumps({"token": "mine"}))
    (tmp_path / ATTEMPT_FILE).write_text("mine")
    fence = fence_of(tmp_path, "mine")
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


def test_an_orphan_gives_way_to_a_newer_driver(tmp_path: Path, alloy_store: GraphStore) -> None:
    """A driver is killed, its worker computes on; the next driver's worker takes over."""
    with sole_driver(tmp_path) as token:
        pass  # the first driver is gone without a word to its workers
    shared = {"run_directory": str(tmp_path), "token": token}
    orphan_spec = make_spec(tmp_path / "trial", alloy_store, LONG, **shared)
    orphan = Running([RankGroup(orphan_spec)])
    checkpoint(tmp_path / "trial")
    with sole_driver(tmp_path) as new_token:
        spec = make_spec(
            tmp_path / "trial", alloy_store, 1, run_directory=str(tmp_path), token=new_token
        )
        (result,) = run_rank_groups(NODE, [RankGroup(spec, (1,))])
    (orphaned,) = orphan.results()
    assert (orphaned.status, result.status) == ("interrupted", "ok")


def test_a_segment_sent_again_takes_over(tmp_path: Path, alloy_store: GraphStore) -> None:
    """The driver lost sight of a worker and repeats its segment; the worker is still there."""
    lost = Running([RankGroup(make_spec(tmp_path / "trial", alloy_store, LONG, attempt="first"))])
    checkpoint(tmp_path / "trial")
    second = make_spec(tmp_path / "trial", alloy_store, 1, attempt="second")
    (result,) = run_rank_groups(NODE, [RankGroup(second, (1,))])
    assert (lost.results()[0].status, result.status) == ("interrupted", "ok")


def test_a_segment_that_was_sent_again_writes_no_more(
    tmp_path: Path, alloy_store: GraphStore
) -> None:
    """Lock or no lock: a file system that took its node for dead has given that away."""
    spec = make_spec(tmp_path / "trial", alloy_store, LONG, attempt="first")
    running = Running([RankGroup(spec)])
    checkpoint(spec.folder)
    (spec.folder / "attempt").write_text("second")
    time.sleep(0.3)  # what was being written is
    checkpoint(spec.folder).unlink()
    (lost,) = running.results()
    assert lost.status == "interrupted"
    assert not (spec.folder / FILE).exists()


def test_a_fence_holds_only_for_newer_drivers(tmp_path: Path) -> None:
    with sole_driver(tmp_path) as token:
        assert not fence_of(tmp_path, token).deposed()
    assert not fence_of(tmp_path, token).deposed(), "a driver that ended is not a newer one"
    with sole_driver(tmp_path):
        assert fence_of(tmp_path, token).deposed()


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with (
        sole_writer(tmp_path, "first"),
        pytest.raises(Busy, match="another process"),
        sole_writer(tmp_path, "second", patience_seconds=0.3),
    ):
        pass
    with sole_writer(tmp_path, "third"):
        pass
