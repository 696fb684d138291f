"""Help of the commands: by task, and whole at the width of any terminal."""

import os
import subprocess
import sys
from itertools import pairwise

import pytest
import typer
from typer.testing import CliRunner

from hydragnn_flow.cli import app

COMMANDS = typer.main.get_command(app).commands


def said(width, *words):
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": str(width)})
    assert result.exit_code == 0
    return result.stdout


def test_commands_are_listed_by_task_in_the_order_of_a_campaign():
    text = said(80)
    panels = [line.split()[1] for line in text.splitlines() if line.startswith("╭")]
    assert panels == ["Options", "Start", "Look", "Use", "Machine"]
    places = [text.index(f"│ {name} ") for name in ("init", "run", "status", "predict", "plan")]
    assert places == sorted(places)
    assert all(f"│ {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_paragraphs_fill_the_width(name, width):
    description = said(width, name).partition("╭")[0].splitlines()
    for line, following in pairwise(map(str.strip, description)):
        if line and following and not line.startswith("Usage"):
            assert len(line) + 1 + len(following.split()[0]) > width - 2, (line, following)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("pre", ["prepare", "predict"]),
        ("run x --site fro", ["frontier"]),
        ("site show pol", ["polaris"]),
    ],
)
def test_a_shell_completes_commands_and_sites(typed, offered):
    asks = {"COMP_WORDS": f"hydragnn-flow {typed}", "COMP_CWORD": str(len(typed.split()))}
    asks["_HYDRAGNN_FLOW_COMPLETE"] = "complete_bash"
    command = [sys.executable, "-m", "hydragnn_flow"]
    done = subprocess.run(command, env=os.environ | asks, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, offered), done.stderr
