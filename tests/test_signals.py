"""Signals that end a process let it give back what it holds."""

from __future__ import annotations

import os
import pty
import signal
import time
from pathlib import Path

import pytest

from hydragnn_flow.signals import leaving_in_order, undisturbed


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_block_is_left_in_order(number: int, status: int) -> None:
    with pytest.raises(SystemExit) as left, leaving_in_order():
        send(number)
        time.sleep(10)
    assert left.value.code == status
    assert signal.getsignal(number) is signal.SIG_DFL


def test_what_somebody_ignores_or_handles_stays_theirs() -> None:
    came: list[int] = []
    hup = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    term = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        with leaving_in_order():
            send(signal.SIGHUP)
            send(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, hup)
        signal.signal(signal.SIGTERM, term)
    assert came == [signal.SIGTERM]


def test_clearing_up_is_not_cut_short() -> None:
    done = False
    with pytest.raises(SystemExit) as left, leaving_in_order(), undisturbed():
        send(signal.SIGTERM)
        time.sleep(0.05)
        done = True
    assert done
    assert left.value.code == 143


def test_a_terminal_that_is_gone_does_not_end_the_clearing_up(tmp_path: Path) -> None:
    """Its window is closed, or the connection lost: each word to it would be an error."""
    child, terminal = pty.fork()
    if child == 0:
        try:
            with leaving_in_order():
                (tmp_path / "ready").touch()
                time.sleep(30)
        except SystemExit as left:
            os.write(1, b"clearing up\n")
            os.write(2, b"clearing up\n")
            (tmp_path / "cleared").touch()
            os._exit(int(str(left.code)))
        finally:
            os._exit(1)
    give_up = time.monotonic() + 30
    while not (tmp_path / "ready").exists() and time.monotonic() < give_up:
        time.sleep(0.01)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert (tmp_path / "cleared").exists()
