"""Child processes: they answer in lines of JSON, and end with their parents."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest
from driver_cases import is_at_work

from hydragnn_flow.processes import JsonProcess, ProcessDied

Scripted = Callable[[str], JsonProcess]


@pytest.fixture
def scripted(tmp_path):
    """Children that run a few lines of shell."""
    children: list[JsonProcess] = []

    def start(lines):
        script = tmp_path / f"child{len(children)}"
        script.write_text(f"#!/bin/sh\n{lines}\n")
        script.chmod(0o755)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "executable", str(script))
            patch.setenv("TAKEN_AWAY", "1")
            child = JsonProcess("module", "7", environment={"GIVEN": "a", "TAKEN_AWAY": None})
        children.append(child)
        return child

    yield start
    for child in children:
        child.close()


def test_requests_are_answered_and_silence_is_no_answer(scripted):
    child = scripted('while read line; do echo "{\\"got\\": $line}"; done')
    assert child.receive(0.01) is None
    child.send({"a": [1, None]})
    assert child.receive() == {"got": {"a": [1, None]}}


def test_a_child_has_the_arguments_and_the_environment_it_was_given(scripted):
    child = scripted('echo "[\\"$*\\", \\"$GIVEN\\", \\"${TAKEN_AWAY-gone}\\"]"; sleep 60')
    assert os.getsid(child.pid) != os.getsid(0), "Ctrl-C would end it"
    assert child.receive() == ["-m module 7", "a", "gone"]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("exit 3", "its process ended with exit code 3"),
        ("printf '{\"half\": '", "its process ended with exit code 0"),
        ("kill -9 $$", "killed by SIGKILL, as the system does when memory runs out"),
        ("kill -15 $$", "its process was killed by SIGTERM"),
    ],
)
def test_a_child_that_ends_without_an_answer_says_how(scripted, lines, says):
    child = scripted(lines)
    with pytest.raises(ProcessDied, match=says):
        child.receive()
    with pytest.raises(ProcessDied, match=says):
        child.send({"a": "x" * 100_000})
    assert not child.alive
    assert not child.was_killed


def test_a_child_is_gone_when_it_is_killed(scripted):
    child = scripted("sleep 60")
    child.kill()
    assert child.was_killed
    assert not psutil.pid_exists(child.pid)
    child.kill()
    with pytest.raises(ProcessDied, match="killed by SIGKILL"):
        child.send({})


def test_what_a_child_has_started_ends_with_it(scripted):
    child = scripted('sleep 600 & echo "{\\"started\\": $!}"; wait')
    started = child.receive()
    child.kill()
    give_up = time.monotonic() + 60
    while is_at_work(started["started"]):
        assert time.monotonic() < give_up
        time.sleep(0.01)


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline(), flush=True)
time.sleep(600)
"""
CHILD = """
import os, time
from hydragnn_flow.processes import end_with_parent
end_with_parent(os.getppid())
print(os.getpid(), flush=True)
time.sleep(600)
"""


def test_a_child_ends_when_its_parent_is_killed():
    command = [sys.executable, "-c", PARENT, CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
        child.wait(timeout=60)


def test_a_child_whose_parent_has_ended_before_ends_at_once():
    late = CHILD.replace("os.getppid()", "1 << 22")
    ran = subprocess.run([sys.executable, "-c", late], capture_output=True, timeout=60, check=False)
    assert ran.returncode == 1


def test_what_a_child_prints_is_no_answer():
    talks = (
        "from hydragnn_flow.processes import keep_stdout\n"
        "send = keep_stdout()\nprint('hello')\nsend({'a': 1})"
    )
    ran = subprocess.run([sys.executable, "-c", talks], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ('{"a": 1}\n', "hello\n")
