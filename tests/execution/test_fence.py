"""One driver per run directory, and segments of one that another has replaced."""

import errno
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest
from segment_cases import make_spec
from trainer_cases import LONG, Running, checkpoint, run_alone

from hydragnn_flow import locks
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import DriverFile, Rank, fence, sole_driver
from hydragnn_flow.execution.fence import DRIVER_FILE, LOCK_FILE, is_driven
from hydragnn_flow.execution.workers import worker

pytestmark = pytest.mark.xdist_group("trainers")  # which are warm from file to file


def test_a_driver_that_starts_is_not_taken_for_one_that_is_being_asked_about(tmp_path, monkeypatch):
    """`hydragnn-flow status` takes the lock for an instant."""
    monkeypatch.setattr(fence, "SECONDS_TO_BECOME_DRIVER", 600.0)
    asking = ExitStack()
    asking.enter_context(locks.locked(tmp_path / LOCK_FILE, 0.0))
    threading.Timer(0.1, asking.close).start()
    with sole_driver(tmp_path):
        assert is_driven(tmp_path)


def test_a_second_driver_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(fence, "SECONDS_TO_BECOME_DRIVER", 0.0)
    with (
        sole_driver(tmp_path),
        pytest.raises(InputError, match=rf"is being worked on by process {os.getpid()} on"),
        sole_driver(tmp_path),
    ):
        pass


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    error = OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=error))
    with (
        pytest.raises(InputError, match=r"cannot lock files \(No locks available\); choose"),
        sole_driver(tmp_path),
    ):
        pass


def test_a_driver_learns_that_another_has_replaced_it(tmp_path):
    watched = DriverFile(tmp_path)
    with sole_driver(tmp_path) as old:
        watched.check(old)
        (tmp_path / LOCK_FILE).unlink()  # as where a file system takes the lock from its holder
        with sole_driver(tmp_path) as new:
            watched.check(new)
            with pytest.raises(
                CampaignStopped, match=rf"process {os.getpid()} on .* taken it over"
            ):
                watched.check(old)


@pytest.mark.parametrize("content", [None, b"", b'{"token": ', b"\xff\xfe"])
def test_a_token_that_is_no_other_drivers_stops_nobody(tmp_path, content):
    if content is not None:
        (tmp_path / DRIVER_FILE).write_bytes(content)
    DriverFile(tmp_path).check("mine")
    with sole_driver(tmp_path) as token:
        pass
    DriverFile(tmp_path).check(token)  # nor does its own, when it has ended


def test_a_disk_that_does_not_answer_says_nothing(tmp_path, monkeypatch):
    error = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    monkeypatch.setattr(Path, "stat", Mock(side_effect=error))
    with pytest.raises(OSError, match="Stale"):
        DriverFile(tmp_path).check("mine")


def test_an_orphan_gives_way_to_a_newer_driver(tmp_path, alloy_store, monkeypatch):
    """A driver is killed, its node computes on; the next driver's segment takes over."""
    monkeypatch.setattr(worker, "_SECONDS_BETWEEN_LOOKS", 0.1)
    monkeypatch.setattr(worker, "_watched", set())  # of another run
    with sole_driver(tmp_path) as token:
        pass  # the first driver is gone without a word to its nodes
    shared = {"run_directory": str(tmp_path), "attempt": "first"}
    orphan = make_spec(tmp_path / "trial", alloy_store, LONG, token=token, **shared)
    running = Running([Rank(orphan)])
    checkpoint(tmp_path / "trial")
    with sole_driver(tmp_path) as new:
        (orphaned,) = running.results()
        shared["attempt"] = "second"
        again = make_spec(
            tmp_path / "trial", alloy_store, orphaned.to_epoch + 1, token=new, **shared
        )
        result = run_alone(Rank(again, gcd=1))
    assert (orphaned.status, result.status) == ("interrupted", "ok")
    assert result.from_epoch == orphaned.to_epoch


def test_the_file_is_read_only_when_it_is_another(tmp_path, monkeypatch):
    """Each look is one call of a file system that thousands of nodes share."""
    read: list[Path] = []
    real = fence._driver
    monkeypatch.setattr(fence, "_driver", lambda folder: [read.append(folder), real(folder)][1])
    watched = DriverFile(tmp_path)
    assert watched.token() is None
    tokens = []
    for _ in range(2):
        with sole_driver(tmp_path) as token:
            tokens += [token, watched.token(), watched.token()]
    assert tokens[0:3] == [tokens[0]] * 3 and tokens[3:] == [tokens[3]] * 3
    assert len(read) == 2
