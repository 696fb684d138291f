"""Signals that end a process let it give back what it holds."""

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from signal_cases import send, together

from hydragnn_flow import processes as signals
from hydragnn_flow.processes import leaving_in_order, undisturbed


@pytest.fixture(autouse=True)
def nothing_ignored():
    """Tests may have been started by `nohup`; what is ignored ends no block."""
    hup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, hup)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_block_is_left_in_order(number, status):
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
def test_signals_that_come_together_cut_no_clearing_up_short(numbers, left):
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


def test_a_signal_that_had_no_effect_may_be_sent_again(monkeypatch):
    """Python drops what a handler raises while it deletes an object, for example."""
    monkeypatch.setattr(signals, "SECONDS_OF_ONE", 0.0)
    with pytest.raises(SystemExit), leaving_in_order():
        with suppress(SystemExit):
            send(signal.SIGTERM)
            time.sleep(60)
        send(signal.SIGTERM)
        time.sleep(60)


def test_what_somebody_ignores_or_handles_stays_theirs():
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


def test_clearing_up_is_not_cut_short():
    done = False
    with pytest.raises(SystemExit) as left, leaving_in_order(), undisturbed():
        send(signal.SIGTERM)
        time.sleep(0.05)
        done = True
    assert done
    assert left.value.code == 143


@pytest.mark.parametrize("clearing_up", [leaving_in_order, undisturbed])
def test_a_terminal_that_is_gone_does_not_end_the_clearing_up(tmp_path, clearing_up):
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


INTERRUPTIBLE = """
import sys, threading
from hydragnn_flow.commands.console import interruptible
threading.Thread(target=sys.stdin.read).start()  # which the end of the process waits for
with interruptible():
    print("ready", file=sys.stderr, flush=True)
    threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("number", "status", "is_read"),
    [(signal.SIGINT, 130, True), (signal.SIGTERM, 143, False), (signal.SIGHUP, 129, False)],
)
def test_the_sentence_is_the_last_word_though_signals_follow_or_nobody_reads_it(
    number, status, is_read
):
    """Ctrl-C ends `tee` as well, and impatient users press it twice."""
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stderr.readline() == "ready\n"
    if not is_read:
        process.stdout.close()
    process.send_signal(number)
    if is_read:
        assert process.stdout.readline() == "stopped; the same command continues from here\n"
        process.send_signal(number)
    process.stdin.close()
    assert process.stderr.read() == ""
    assert process.wait() == status


LEAVING = """
import atexit, os, sys
import hydragnn_flow.cli as cli
from hydragnn_flow import __main__
class Kept:
    def __del__(self, write=os.write):
        write(1, b"taken apart")
def run():
    atexit.register(print, "at the exit")
    sys.kept = Kept()
    print("told")
    sys.exit(3)
cli.main = run
__main__.main()
"""


def test_a_command_ends_without_taking_apart_what_it_imported():
    done = subprocess.run([sys.executable, "-c", LEAVING], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (3, "told\nat the exit\n")
