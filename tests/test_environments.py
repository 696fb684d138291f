"""Every command works in any environment that a cluster has, or says in one sentence why not."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from campaign_cases import CONFIG

pytestmark = pytest.mark.xdist_group("environments")  # begins with the first

GOLDEN = Path(__file__).parent / "golden" / "run_1"
Changes = Mapping[str, str | None]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
# What each changes of the environment, and a shell's redirection.
TERMINALS: dict[str, tuple[Changes, str]] = {
    "ASCII, dumb and narrow": ({**ASCII, "HOME": "ABSENT", "TERM": "dumb", "COLUMNS": "40"}, ""),
    "no terminal, no input": ({"PYTHONIOENCODING": "ascii", "TERM": None}, "<&-"),
    "no output": ({}, ">&-"),
    "none of the three": ({}, "<&- >&- 2>&-"),
    "a full disk": ({}, "> /dev/full"),
    "a reader that has gone": ({}, "| head -1"),
    "a directory that has gone": ({}, "in a directory that has gone"),
}
PRINTING = ["status RUN --log", "status NOWHERE"]
LATIN = {"LC_ALL": "en_US.ISO-8859-1", "LOCPATH": "LOCALES"}
# Each command takes seconds of a processor: there are as few as have every fault in one of them.
FILES: dict[str, tuple[Changes, str]] = {
    "no home, latin-1, temporary files absent": ({"HOME": None, **LATIN, "TMPDIR": "ABSENT"}, ""),
    "home read-only, no room for temporary files": ({"HOME": "/proc", "TMPDIR": "FULL"}, ""),
}
COMMANDS = [
    "site show local",
    "store info STORE",
    "trials RUN -o NEW/trials.csv",
    "report RUN",
    "store check STORE",
    "init DATA",
    "evaluate RUN DATA/a.extxyz -o NEW/errors.csv",
    "predict RUN DATA/a.extxyz -o NEW/a.csv",
    "predict RUN DATA/a.extxyz -o NEW/a.extxyz",
    "select RUN DATA/a.extxyz -n 3 -o NEW/chosen.extxyz",
    "export RUN NEW/exported",
    "plan CONFIG --draws 3",
    "simulate CONFIG",
    "site check local",
    "prepare CONFIG --run-dir NEW/prepared",
    "run CONFIG --run-dir NEW/run",
    "profile NEW/run",
    "scaling NEW/run --gcds 1 --seconds 0.1",
    "dashboard NEW/run",
]
# Those that keep something in the home directory or in temporary files.
KEEPING = [
    "report RUN",
    "predict RUN DATA/a.extxyz -o NEW/a.csv",
    "plan CONFIG --draws 3",
    "run CONFIG --run-dir NEW/run",
]
ENVIRONMENTS = {**TERMINALS, **FILES}


class Place:
    """Runs commands in environments, with the files that they are about."""

    def __init__(self, folder):
        self.folder = folder
        shutil.copytree(GOLDEN, folder / "RUN")
        (folder / "NEW").mkdir()

    def run(self, environment, command):
        changes, how = ENVIRONMENTS[environment]
        set_to = {name: value and self._placed(value) for name, value in changes.items()}
        words = [self._placed(word) for word in command.split()]
        script = f'"$@" {how}' if "|" in how else f'exec "$@" {how}'
        if "in a directory" in how:
            script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
        flow = [sys.executable, "-m", "hydragnn_flow", *words]
        with subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", script, "x", *flow],
            cwd=self.folder / "NEW",
            env={k: v for k, v in {**os.environ, **set_to}.items() if v is not None},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        ) as process:
            if words[0] == "dashboard":
                process.stdout.readline()
                process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        return subprocess.CompletedProcess(flow, process.returncode, out, err)

    def _placed(self, word):
        name = word.partition("/")[0]
        return (
            str(self.folder / word) if len(name) > 1 and name.isupper() and name.isalpha() else word
        )

    def answers(self, environment, commands):
        """Check each command: as it should be, or one sentence."""
        shutil.rmtree(self.folder / "NEW", ignore_errors=True)
        (self.folder / "NEW").mkdir()
        for command in commands:
            done = self.run(environment, command)
            said = done.stderr.splitlines()
            told = (environment, command, done.returncode, done.stdout[-2000:], said[-20:])
            refused = "NOWHERE" in command
            if environment == "none of the three":
                assert done.returncode == (2 if refused else 0), told
            elif not refused and environment != "a full disk":
                ends = {0, 130} if command.startswith("dashboard") else {0}  # by Ctrl-C
                # Only where it had more to say than the reader that has gone read.
                assert done.returncode in ends or environment == "a reader that has gone", told
                assert said == [] and (done.stdout or environment == "no output"), told
                made = [word for word in command.split() if word.startswith("NEW/")]
                assert all((self.folder / word).exists() for word in made), told
            else:
                assert done.returncode in (1, 2) and len(said) == 1, told
                assert said[0].startswith("error: "), told
                assert refused or "/dev/stdout" in said[0], told


def test_a_run_is_shown_in_any_environment(tmp_path):
    place = Place(tmp_path)
    for environment in ("ASCII, dumb and narrow", "none of the three", "a full disk"):
        place.answers(environment, ["status RUN"])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """All that the commands need; 64 KiB of a disk, which are full."""
    from ase.io import write
    from console_cases import structures

    place = Place(tmp_path_factory.mktemp("environments"))
    folder = place.folder
    (folder / "DATA").mkdir()
    made = structures(40)
    for atoms in made:
        atoms.info["remark"] = "Größe in Å"
    write(folder / "DATA" / "a.extxyz", made)
    changes = {"search": {**CONFIG["search"], "trials": 2, "min_epochs": 1}}
    changes["ensemble"] = {**CONFIG["ensemble"], "epochs": 6}
    (folder / "CONFIG").write_text(yaml.safe_dump({**CONFIG, **changes}), "utf-8")
    done = place.run("no terminal, no input", "prepare CONFIG --run-dir PREPARED")
    assert done.returncode == 0, done.stderr
    (folder / "PREPARED" / "store.gs").rename(folder / "STORE")
    (folder / "LOCALES").mkdir()
    locale = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", "LOCALES/en_US.ISO-8859-1"]
    if shutil.which("localedef"):
        subprocess.run(locale, cwd=folder, capture_output=True)
    full = folder / "FULL"
    full.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)]
    mounted = not os.geteuid() and not subprocess.run(mount, capture_output=True).returncode
    if mounted:
        subprocess.run(["dd", "if=/dev/zero", f"of={full / 'all'}"], capture_output=True)
    yield place
    if mounted:
        subprocess.run(["umount", "-l", str(full)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("environment", TERMINALS)
def test_what_is_printed_is_right_on_every_terminal(place, environment):
    place.answers(environment, PRINTING)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "commands"), zip(FILES, (COMMANDS, KEEPING), strict=True), ids=FILES
)
def test_commands_work_in_every_environment(place, environment, commands):
    if "latin-1" in environment and not any((place.folder / "LOCALES").iterdir()):
        pytest.skip("needs localedef and the locales' sources")
    if "no room" in environment and not any((place.folder / "FULL").iterdir()):
        pytest.skip("needs root, to mount a file system of 64 KiB")
    place.answers(environment, commands)
