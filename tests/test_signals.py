"""Signals that end a process let it give back what it holds."""

from __future__ import annotations

import os
import pty
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest
from signal_cases import send, together

from hydragnn_flow import signals
from hydragnn_flow.signals import leaving_in_order, undisturbed


@pytest.fixture(autouse=True)
def nothing_ignored() -> Iterator[None]:
    """Tests may have been started by `nohup`; what is ignored ends no block."""
    hup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, hup)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_block_is_left_in_order(number: int, status: int) -> None:
    with pytest.raises(SystemExit) as left, leaving_in_order():
        send(number)
        time.sleep(60)
    assert left.value.code == status
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("numbers", "left"),
    [
        ([signal.SIGTERM, signal.SIGHUP], SystemExit),  # systemd's end of a session
        ([signal.SIGHUP, signal.SIGINT], SystemExit),
        ([signal.SIGINT, signal.SIGTERM], KeyboardInterrupt),
    ],
)
def test_signals_that_come_together_cut_no_clearing_up_short(
    numbers: list[int], left: type[BaseException]
) -> None:
    """Python calls the handler of the second at the first call that a `finally` makes."""
    cleared = False
    with pytest.raises(left), leaving_in_order():
        try:
            together(*numbers)
        finally:
            str(Path("a call"))
            cleared = True
    assert cleared
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_that_had_no_effect_may_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python drops what a handler raises while it deletes an object, for example."""
    monkeypatch.setattr(signals, "SECONDS_OF_ONE", 0.0)
    with pytest.raises(SystemExit), leaving_in_order():
        with suppress(SystemExit):
            send(signal.SIGTERM)
            time.sleep(60)
        send(signal.SIGTERM)
        time.sleep(60)


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


@pytest.mark.parametrize("clearing_up", [leaving_in_order, undisturbed])
def test_a_terminal_that_is_gone_does_not_end_the_clearing_up(
    tmp_path: Path, clearing_up: Callable[[], AbstractContextManager[None]]
) -> None:
    """Its window is closed, or the connection lost: each word to it would be an error."""
    child, terminal = pty.fork()
    if child == 0:
        try:
            with leaving_in_order(), clearing_up():
                (tmp_path / "ready").touch()
                give_up = time.monotonic() + 60
                while not (tmp_path / "closed").exists() and time.monotonic() < give_up:
                    time.sleep(0.01)
                os.write(2, b"clearing up\n")
        except SystemExit as left:
            os.write(1, b"clearing up\n")
            os.write(2, b"clearing up\n")
            (tmp_path / "cleared").touch()
            os._exit(int(str(left.code)))
        finally:
            os._exit(1)
    give_up = time.monotonic() + 60
    while not (tmp_path / "ready").exists() and time.monotonic() < give_up:
        time.sleep(0.01)
    os.close(terminal)
    (tmp_path / "closed").touch()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert (tmp_path / "cleared").exists()
