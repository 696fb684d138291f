"""Every command works in any environment that a cluster has, or says in one sentence why not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from campaign_cases import CONFIG

GOLDEN = Path(__file__).parent / "golden" / "run_1"
BEGIN = "from hydragnn_flow.__main__ import main; main()"
ENVIRONMENTS: dict[str, tuple[Mapping[str, str | None], str]] = {
    "no home": ({"HOME": None, "XDG_CACHE_HOME": None, "MPLCONFIGDIR": None}, ""),
    "a home that is absent": ({"HOME": "absent/home", "XDG_CACHE_HOME": None}, ""),
    "a home that is read-only": ({"HOME": "/proc", "XDG_CACHE_HOME": None}, ""),
    "C": ({"LC_ALL": "C", "LANG": None}, ""),
    "ASCII": ({"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, ""),
    "latin-1": ({"LC_ALL": "en_US.ISO-8859-1", "LOCPATH": "locales"}, ""),
    "a terminal of ASCII": ({"PYTHONIOENCODING": "ascii"}, ""),
    "no directory for temporary files": ({"TMPDIR": "absent"}, ""),
    "no room for temporary files": ({"TMPDIR": "full"}, ""),
    "a dumb, narrow terminal": ({"TERM": "dumb", "COLUMNS": "40"}, ""),
    "no terminal": ({"TERM": None}, ""),
    "no input": ({}, "<&-"),
    "no output": ({}, ">&-"),
    "none of the three": ({}, "<&- >&- 2>&-"),
    "a reader that has gone": ({}, "| head -1"),
    "a directory that has gone": ({}, "from a directory that has gone"),
}
COMMANDS = [
    "site show local",
    "status RUN --log",
    "trials RUN",
    "trials RUN -o NEW/trials.csv",
    "importance RUN",
    "report RUN",
    "store info STORE",
    "store check STORE",
    "init DATA -o NEW/init.yaml",
    "evaluate RUN STORE -o NEW/errors.csv",
    "predict RUN STORE -o NEW/a.csv",
    "predict RUN DATA/a.extxyz -o NEW/a.extxyz",
    "select RUN DATA/a.extxyz -n 3 -o NEW/chosen.extxyz",
    "export RUN NEW/exported",
    "plan CONFIG --draws 2",
    "simulate CONFIG",
    "profile RUN",
    "prepare CONFIG --run-dir NEW/prepared",
    "run CONFIG --run-dir NEW/run",
]


class Place:
    """Runs commands in environments, with the files that they are about."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(GOLDEN, folder / "RUN")
        (folder / "locales").mkdir()

    def run(self, environment: str, command: str) -> subprocess.CompletedProcess[str]:
        changes, how = ENVIRONMENTS[environment]
        values = {**os.environ, **changes}
        for name in ("HOME", "LOCPATH", "TMPDIR"):
            if name in changes and (value := changes[name]) is not None:
                values[name] = str(self.folder / value)
        words = [self._placed(word) for word in command.split()]
        script = f'"$@" {how}'
        if "gone" in how.split()[-1:]:
            script = 'mkdir gone && cd gone && rmdir ../gone && "$@"'
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", script, "x", sys.executable, "-c", BEGIN, *words],
            cwd=self.folder,
            env={name: value for name, value in values.items() if value is not None},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )

    def _placed(self, word: str) -> str:
        name = word.partition("/")[0]
        return str(self.folder / word) if name.isupper() and name.isalpha() else word

    def answers(self, environment: str, commands: Sequence[str]) -> None:
        """Check each command: as it should be, or one sentence."""
        for command in commands:
            shutil.rmtree(self.folder / "NEW", ignore_errors=True)
            (self.folder / "NEW").mkdir()
            done = self.run(environment, command)
            said = done.stderr.splitlines()
            told = (environment, command, done.returncode, done.stdout[-2000:], said[-20:])
            if done.returncode == 0:
                assert said == [], told
                assert done.stdout or "none" in environment or environment == "no output", told
                made = [word for word in command.split() if word.startswith("NEW/")]
                assert all((self.folder / word).exists() for word in made), told
            elif environment == "a reader that has gone":  # where it had more to say
                assert done.returncode == 1 and said == [], told
            else:
                assert done.returncode in (1, 2) and len(said) == 1, told
                assert said[0].startswith("error: "), told


@pytest.fixture
def small(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    "environment", ["ASCII", "none of the three", "a reader that has gone", "no terminal"]
)
def test_a_run_is_shown_in_any_environment(small: Place, environment: str) -> None:
    small.answers(environment, ["status RUN"])


@pytest.mark.parametrize("home", [None, "/dev/null"])
def test_adios2_needs_no_home(home: str | None) -> None:
    without_torch = 'import sys; sys.modules["torch"] = None'  # which adios2 imports, in seconds
    program = f"{without_torch}; import hydragnn_flow, adios2.bindings as a; a.ADIOS()"
    values = {**os.environ, "HOME": home}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={name: value for name, value in values.items() if value is not None},
    )
    assert done.returncode == 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
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
    search = {**CONFIG["search"], "trials": 2}
    (folder / "CONFIG").write_text(yaml.safe_dump({**CONFIG, "search": search}), "utf-8")
    assert place.run("no terminal", "prepare CONFIG --run-dir PREPARED").returncode == 0
    (folder / "PREPARED" / "store.gs").rename(folder / "STORE")
    made_locale = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", "locales/en_US.ISO-8859-1"]
    if shutil.which("localedef"):
        subprocess.run(made_locale, cwd=folder, capture_output=True)
    full = folder / "full"
    full.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)]
    mounted = not os.geteuid() and not subprocess.run(mount, capture_output=True).returncode
    if mounted:
        subprocess.run(["dd", "if=/dev/zero", f"of={full / 'all'}"], capture_output=True)
    yield place
    if mounted:
        subprocess.run(["umount", "-l", str(full)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_every_command_works_in_every_environment(place: Place, environment: str) -> None:
    if environment == "latin-1" and not any((place.folder / "locales").iterdir()):
        pytest.skip("needs localedef and the locales' sources")
    if environment == "no room for temporary files" and not any((place.folder / "full").iterdir()):
        pytest.skip("needs root, to mount a file system of 64 KiB")
    place.answers(environment, COMMANDS)
