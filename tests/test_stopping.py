"""Ctrl-C at a terminal and SIGTERM end a command with its sentence, and nothing behind it."""

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from campaign_cases import write_config
from driver_cases import PATIENCE

_BEGIN = "from hydragnn_flow.__main__ import main; main()"
_IMPORTING = r"import time:.* {}\r\n"
BEHIND = re.compile("nanobind|Traceback")
_ON = "stopped; the same command continues from here"


def stopped(command, seen, how, folder):
    """Exit status and last words of a command that is stopped once a pattern is on its terminal."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(its)
    printed, sent = "", None
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        if not select.select([ours], [], [], 1.0)[0]:
            continue
        try:
            printed += os.read(ours, 1 << 16).decode(errors="replace")
        except OSError:  # the terminal has no user any more
            break
        if sent is None and re.search(seen, printed):
            sent = len(printed)
            if how == "Ctrl-C":
                os.write(ours, b"\x03")
            else:
                process.send_signal(signal.SIGTERM)
    else:
        process.kill()
    os.close(ours)
    assert sent is not None, printed[-3000:]
    words = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed[sent:]).replace("^C", "").splitlines()
    return process.wait(60), [
        word for word in words if word.strip() and not word.startswith("import time:")
    ]


@pytest.mark.parametrize("module", ["typer", "yaml"])
def test_ctrl_c_while_modules_are_imported(tmp_path, module):
    shutil.copytree(Path(__file__).parent / "golden" / "run_1", tmp_path / "run")
    command = ["-X", "importtime", "-c", _BEGIN, "status", "run"]
    code, words = stopped(command, _IMPORTING.format(module), "Ctrl-C", tmp_path)
    assert (code, words) == (130, ["stopped"])


@pytest.mark.slow
def test_the_sentence_is_the_last_word_in_every_phase(tmp_path):
    """Each stop is followed by the same command, which comes to the next phase."""
    command = ["-c", _BEGIN, "run", str(write_config(tmp_path))]
    for seen, how in [
        ("structures", "SIGTERM"),
        ("[12] running", "Ctrl-C"),
        ("[12] running", "SIGTERM"),
        ("ensemble", "Ctrl-C"),
        ("finish", "SIGTERM"),
    ]:
        code, said = stopped(command, seen, how, tmp_path)
        assert (code, said[-1]) == (130 if how == "Ctrl-C" else 143, _ON), (seen, said)
        assert not BEHIND.search(" ".join(said)), seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "seen", "how", "told"),
    [
        ("prepare", "structures", "Ctrl-C", _ON),
        ("plan", _IMPORTING.format("torch"), "SIGTERM", "stopped"),
        ("simulate", _IMPORTING.format("torch"), "Ctrl-C", "stopped"),
    ],
)
def test_the_sentence_is_the_last_word(tmp_path, word, seen, how, told):
    options = ["-X", "importtime"] if seen == _IMPORTING.format("torch") else []
    command = [*options, "-c", _BEGIN, word, str(write_config(tmp_path))]
    code, said = stopped(command, seen, how, tmp_path)
    assert (code, said[-1]) == (130 if how == "Ctrl-C" else 143, told)
    assert not BEHIND.search(" ".join(said))
