"""Help and mistakes are answered before anything heavy is imported.

torch, PyG and Parsl take seconds to import, on a login node's file system a minute. The tests look
at the modules that a command has imported, not at the time it took.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
import yaml
from campaign_cases import CONFIG

from hydragnn_flow import cli

_SCRIPT = Path(__file__).parents[1] / "workflows" / "ensemble_hpo.py"
_HEAVY = ("torch", "torch_geometric", "parsl", "optuna", "pandas", "scipy", "matplotlib", "ase")
# Runs each command as a user starts it, and says how it ended and what is imported by then.
_RUN = """
import contextlib, io, json, runpy, sys

commands, heavy = json.loads(sys.argv[1])
for command in commands:
    sys.argv = command
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if command[0].endswith(".py"):
                runpy.run_path(command[0], run_name="__main__")
            else:
                from hydragnn_flow import cli
                cli.main()
        except SystemExit as end:
            code = end.code
    imported = [name for name in heavy if name in sys.modules]
    print(json.dumps([code, err.getvalue(), imported]))
"""


class Answer(NamedTuple):
    """What came of a command."""

    code: int
    stderr: str
    imported: list[str]


def answers(commands, folder):
    """Run commands one after another in one fresh process."""
    asked = json.dumps([[[str(word) for word in command] for command in commands], _HEAVY])
    done = subprocess.run(
        [sys.executable, "-c", _RUN, asked], capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return [Answer(*json.loads(line)) for line in done.stdout.splitlines()]


@pytest.fixture
def folder(tmp_path):
    """A good configuration, one with a wrong key, one whose data are absent, and a site.yaml."""
    source = {"format": "ase", "train": "train.xyz", "targets": {"energy": "eV", "forces": "eV/Å"}}
    absent = {**CONFIG, "data": {**CONFIG["data"], "source": source}}
    written = {"good": CONFIG, "wrong": {**CONFIG, "serach": {}}, "absent": absent}
    written["lost"] = {**CONFIG, "network": "missing.json"}
    for name, values in written.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values))
    (tmp_path / "site.yaml").write_text("site: frontier\nnodes: 5\nblocks: 2\naccount: ABC123\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").touch()
    return tmp_path


_SCRIPT_MISTAKES: list[tuple[list[str], str]] = [
    (["--config", "no.yaml"], "no.yaml"),
    (["--config", "absent.yaml"], "train.xyz"),
    (["--config", "good.yaml", "--run-dir", "taken"], "--run-dir"),
    (["--config", "good.yaml", "--site", "frontire"], "frontire"),
]
MISTAKES: list[tuple[list[str], str]] = [
    (["run", "no.yaml"], "no.yaml"),
    (["run", "wrong.yaml"], "serach"),
    (["prepare", "wrong.yaml"], "serach"),
    (["run", "lost.yaml"], "missing.json"),
    (["run", "absent.yaml"], "train.xyz (data.source.train)"),
    (["run", "good.yaml", "--run-dir", "taken"], "--run-dir"),
    (["run", "good.yaml", "--run-dir", "good.yaml/run"], "is a file"),
    (["prepare", "good.yaml", "--run-dir", "good.yaml/run"], "is a file"),
    (["run", "good.yaml", "--site", "frontire"], "frontire"),
    (["run", "good.yaml", "--site", "frontier"], "--account"),
    (["run", "good.yaml", "--site", "site.yaml"], "multiple of `blocks`"),
    (["run", "good.yaml", "--site", "local", "-N", "2"], "`nodes`"),
    (["site", "show", "frontire"], "frontire"),
    (["site", "check", "no.yaml"], "no.yaml"),
    *(([name, "taken"], "run.yaml") for name in ("status", "report", "trials", "profile")),
    *(([name, "taken"], "run.yaml") for name in ("dashboard", "scaling")),
    (["trials", "taken", "-o", "out.txt"], "out.txt"),
    (["predict", "taken", "x.xyz"], "neither the directory of a run"),
    (["evaluate", "taken", "x.xyz"], "neither the directory of a run"),
    (["init", "nowhere"], "nowhere"),
    *((["store", name, "nowhere"], "nowhere") for name in ("info", "check")),
    (["export", "nowhere", "out"], "nowhere"),
]


def test_mistakes_are_told_before_anything_heavy_is_imported(folder):
    before = sorted(folder.rglob("*"))
    of_script = [[_SCRIPT, *words] for words, _ in _SCRIPT_MISTAKES]
    found = answers([*(["hydragnn-flow", *words] for words, _ in MISTAKES), *of_script], folder)
    assert sorted(folder.rglob("*")) == before, "something was changed"
    for (words, named), answer in zip([*MISTAKES, *_SCRIPT_MISTAKES], found, strict=True):
        assert answer.code == 2, words
        assert answer.stderr.startswith("error: "), words
        assert answer.stderr.count("\n") == 1, words
        assert named in answer.stderr, words
        assert answer.imported == [], words


_TO_THE_SITE = f"""
import sys
from hydragnn_flow import cli
from hydragnn_flow.commands.sites import Machine
from hydragnn_flow.errors import InputError

def load(machine):
    raise InputError(" ".join(["imported:", *{set(_HEAVY)} & sys.modules.keys()]))

Machine.load = load
cli.main()
"""


@pytest.mark.parametrize("word", ["run", "prepare"])
def test_the_run_directory_is_told_before_anything_heavy_is_imported(folder, word):
    """A site imports torch, to count devices."""
    command = [sys.executable, "-c", _TO_THE_SITE, word, "good.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert (done.stdout, done.stderr.strip()) == (
        "run directory: runs/small\n",
        "error: imported:",
    )


def test_help_and_versions_import_nothing_heavy(folder):
    group: Any = typer.main.get_command(cli.app)
    commands = [[], ["--version"]]
    for name, command in group.commands.items():
        commands.append([name])
        commands.extend([name, part] for part in getattr(command, "commands", ()))
    asked = [words if "--version" in words else [*words, "--help"] for words in commands]
    told = answers([*(["hydragnn-flow", *words] for words in asked), [_SCRIPT, "--help"]], folder)
    for words, answer in zip([*asked, []], told, strict=True):
        assert answer.code == 0, words
        assert answer.imported == [], words


def test_the_status_of_a_run_needs_neither_torch_nor_parsl_nor_matplotlib(folder):
    run = folder / "run"
    run.mkdir()
    (run / "run.yaml").write_text("search: {objectives: [val_error]}\n")
    [answer] = answers([["hydragnn-flow", "status", run]], folder)
    assert answer.code == 0, answer.stderr
    assert set(answer.imported) <= {"optuna", "pandas"}
